"""The schema: the log, the narrow rows beside it, and what people query in SQL as views over it."""

from __future__ import annotations

from alembic import op

revision = "one_log"
down_revision = None

TABLES = """
CREATE TABLE investigations (
  id                uuid PRIMARY KEY,
  namespace         text NOT NULL,
  name              text NOT NULL,
  generation        bigint NOT NULL,
  alert_type        text NOT NULL,
  alert_data        text NOT NULL,
  severity          text,
  runbook_url       text,
  fingerprint       text,
  alert_status      text CONSTRAINT investigations_alert_status_check CHECK (alert_status IN ('firing', 'resolved')),
  duplicates        bigint NOT NULL DEFAULT 0,
  chain_name        text,
  chain_namespace   text,
  chain_generation  bigint,
  chain_hash        text,
  chain_version     integer,
  chain             json,
  stage_names       text[] NOT NULL DEFAULT '{}',
  stage_agents      integer[] NOT NULL DEFAULT '{}',
  on_resolved       text,
  chain_ttl_seconds bigint,
  ttl_seconds       bigint,
  admitted_at       timestamptz NOT NULL DEFAULT now(),
  ended_at          timestamptz,
  gone_at           timestamptz
);
CREATE INDEX investigations_fingerprint ON investigations (namespace, fingerprint, admitted_at)
  WHERE fingerprint IS NOT NULL;
CREATE INDEX investigations_open ON investigations (namespace) WHERE ended_at IS NULL;
CREATE INDEX investigations_present ON investigations (ended_at) WHERE ended_at IS NOT NULL AND gone_at IS NULL;

CREATE TABLE work (
  investigation             uuid PRIMARY KEY REFERENCES investigations ON DELETE CASCADE,
  run                       integer NOT NULL DEFAULT 0,
  state                     text NOT NULL CONSTRAINT work_state_check CHECK (state IN ('queued', 'running', 'ended')),
  owner                     uuid,
  token                     uuid,
  lease_until               timestamptz,
  claims                    integer NOT NULL DEFAULT 0,
  attempts                  integer NOT NULL DEFAULT 0,
  attempts_without_progress integer NOT NULL DEFAULT 0,
  log_seq                   bigint NOT NULL DEFAULT 0,
  revision                  bigint NOT NULL DEFAULT 1,
  stale                     boolean NOT NULL DEFAULT true,
  queued_at                 timestamptz NOT NULL DEFAULT now(),
  cancel                    text CONSTRAINT work_cancel_check CHECK (cancel IN ('user', 'deleted', 'resolved')),
  priority                  integer NOT NULL DEFAULT 0,
  suspend                   boolean NOT NULL DEFAULT false,
  unreadable_by             text[] NOT NULL DEFAULT '{}',
  unreadable                text
) WITH (fillfactor = 70);
CREATE INDEX work_claimable ON work (priority DESC, queued_at) WHERE state <> 'ended';
CREATE INDEX work_stale ON work (queued_at) WHERE stale;

CREATE TABLE runs (
  investigation  uuid NOT NULL REFERENCES investigations ON DELETE CASCADE,
  number         integer NOT NULL,
  kind           text NOT NULL CONSTRAINT runs_kind_check CHECK (kind IN ('investigation')),
  started_at     timestamptz,
  suspended_at   timestamptz,
  suspended_for  interval NOT NULL DEFAULT '0',
  ended_at       timestamptz,
  ending         text,
  reason         text,
  message        text,
  final_analysis text,
  PRIMARY KEY (investigation, number)
);

CREATE TABLE stages (
  investigation uuid NOT NULL,
  run           integer NOT NULL,
  name          text NOT NULL,
  started_at    timestamptz,
  ended_at      timestamptz,
  outcome       text,
  message       text NOT NULL DEFAULT '',
  lacks         json NOT NULL DEFAULT '[]',
  PRIMARY KEY (investigation, run, name)
);

CREATE TABLE executions (
  investigation   uuid NOT NULL,
  id              text NOT NULL,
  run             integer NOT NULL,
  stage           text NOT NULL,
  kind            text NOT NULL,
  index           integer NOT NULL,
  parent          text NOT NULL,
  name            text NOT NULL,
  provider        text NOT NULL,
  started_at      timestamptz NOT NULL DEFAULT now(),
  ended_at        timestamptz,
  outcome         text,
  error           text NOT NULL DEFAULT '',
  iterations      bigint NOT NULL DEFAULT 0,
  tool_calls      bigint NOT NULL DEFAULT 0,
  input_tokens    bigint NOT NULL DEFAULT 0,
  output_tokens   bigint NOT NULL DEFAULT 0,
  thinking_tokens bigint NOT NULL DEFAULT 0,
  total_tokens    bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (investigation, id)
) WITH (fillfactor = 70);

CREATE TABLE entries (
  investigation uuid NOT NULL,
  seq           bigint NOT NULL,
  at            timestamptz NOT NULL DEFAULT now(),
  claim         integer NOT NULL,
  kind          text NOT NULL,
  version       integer NOT NULL,
  run           integer NOT NULL,
  stage         text NOT NULL,
  execution     text NOT NULL,
  body          json NOT NULL,
  opaque        json,
  PRIMARY KEY (investigation, seq)
);

CREATE TABLE identities (
  namespace     text NOT NULL,
  fingerprint   text NOT NULL,
  starts_ms     bigint NOT NULL,
  investigation uuid NOT NULL REFERENCES investigations ON DELETE CASCADE,
  first_seen    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (namespace, fingerprint, starts_ms)
);

CREATE TABLE large_alerts (
  namespace   text NOT NULL,
  object_name text NOT NULL,
  name        text NOT NULL,
  data        text NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (namespace, object_name, name)
);

CREATE TABLE leaders (
  role  text PRIMARY KEY,
  owner uuid NOT NULL,
  until timestamptz NOT NULL
);

CREATE TABLE clusters (
  uid        text PRIMARY KEY,
  first_seen timestamptz NOT NULL DEFAULT now()
);
"""

# Each takes a body apart once. A version that a view does not know is not in it, and neither is a body without the
# list that it should have. What is of another type within a list still breaks a read that comes across it: reads of
# other investigations do not.
VIEWS = """
CREATE VIEW messages AS
SELECT investigation, run, stage, execution, seq,
  row_number() OVER (PARTITION BY investigation, execution ORDER BY seq, place) - 1 AS position,
  said.role, said.text, said.thinking, said.calls AS tool_calls, said.call_id AS tool_call_id, said.tool_name,
  said.failed, said.in_doubt, at AS created_at
FROM entries
CROSS JOIN LATERAL json_to_record(body) AS held (messages json, runs json)
CROSS JOIN LATERAL (
  SELECT message, place
  FROM json_array_elements(CASE json_typeof(held.messages) WHEN 'array' THEN held.messages END)
    WITH ORDINALITY AS listed (message, place)
  UNION ALL
  SELECT made -> 'result', place
  FROM json_array_elements(CASE json_typeof(held.runs) WHEN 'array' THEN held.runs END)
    WITH ORDINALITY AS listed (made, place)
) AS listed
CROSS JOIN LATERAL json_to_record(message) AS said
  (role text, text text, thinking text, calls json, call_id text, tool_name text, failed boolean, in_doubt boolean)
WHERE kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'ToolsAnswered') AND version = 1
  AND json_typeof(body) = 'object';

CREATE VIEW llm_interactions AS
SELECT investigation, run, stage, execution, seq, turn, provider, model, context_messages, seconds,
  input_tokens, output_tokens, thinking_tokens, total_tokens, attempts, failure, failure_text, created_at
FROM (
  SELECT investigation, run, stage, execution, seq, entries.kind, held.turn, call.provider, call.model, call.seconds,
    usage.input_tokens, usage.output_tokens, usage.thinking_tokens, usage.total_tokens, call.attempts,
    failure.kind AS failure, failure.text AS failure_text, at AS created_at,
    sum(
      CASE WHEN json_typeof(held.messages) = 'array' THEN json_array_length(held.messages) ELSE 0 END
      + CASE WHEN json_typeof(held.runs) = 'array' THEN json_array_length(held.runs) ELSE 0 END
    ) OVER (PARTITION BY investigation, execution ORDER BY seq)
      - CASE entries.kind WHEN 'Answered' THEN 1 ELSE 0 END AS context_messages
  FROM entries
  CROSS JOIN LATERAL json_to_record(body) AS held (turn integer, messages json, runs json, call json, failure json)
  LEFT JOIN LATERAL json_to_record(CASE json_typeof(held.call) WHEN 'object' THEN held.call END) AS call
    (provider text, model text, seconds double precision, usage json, attempts json) ON true
  LEFT JOIN LATERAL json_to_record(CASE json_typeof(call.usage) WHEN 'object' THEN call.usage END) AS usage
    (input_tokens bigint, output_tokens bigint, thinking_tokens bigint, total_tokens bigint) ON true
  LEFT JOIN LATERAL json_to_record(CASE json_typeof(held.failure) WHEN 'object' THEN held.failure END) AS failure
    (kind text, text text) ON true
  WHERE entries.kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'ToolsAnswered') AND version = 1
    AND json_typeof(body) = 'object'
) AS said
WHERE kind IN ('Answered', 'Unanswered');

CREATE VIEW mcp_interactions AS
SELECT investigation, run, stage, execution, seq, call.id AS call_id,
  CASE WHEN strpos(call.name, '.') > 0 THEN split_part(call.name, '.', 1) ELSE '' END AS server_name,
  substr(call.name, strpos(call.name, '.') + 1) AS tool_name,
  call.arguments, result.text AS result, result.failed, result.in_doubt, made.seconds, at AS created_at
FROM entries
CROSS JOIN LATERAL json_to_record(body) AS held (runs json)
CROSS JOIN LATERAL json_array_elements(CASE json_typeof(held.runs) WHEN 'array' THEN held.runs END) AS run_of (value)
CROSS JOIN LATERAL json_to_record(run_of.value) AS made (call json, result json, seconds double precision)
CROSS JOIN LATERAL json_to_record(made.call) AS call (id text, name text, arguments text)
CROSS JOIN LATERAL json_to_record(made.result) AS result (text text, failed boolean, in_doubt boolean)
WHERE kind = 'ToolsAnswered' AND version = 1 AND json_typeof(body) = 'object';
"""


def upgrade() -> None:
    for statement in (TABLES + VIEWS).split(";"):
        if statement.strip():
            op.execute(statement)

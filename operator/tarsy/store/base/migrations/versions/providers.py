"""Providers: throttles, what executions cost, and views of what is written since calls fall back and have a cost."""

from __future__ import annotations

from alembic import op

revision = "providers"
down_revision = "agents"

TABLES = """
CREATE TABLE throttles (
  provider text PRIMARY KEY,
  seconds  bigint[] NOT NULL DEFAULT '{}',
  requests integer[] NOT NULL DEFAULT '{}',
  tokens   bigint[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 20);
ALTER TABLE executions ADD COLUMN cost double precision;
"""

READ = """entries.kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'FellBack', 'ContextCompacted',
    'ToolsAnswered')
  AND version BETWEEN 1 AND CASE entries.kind WHEN 'ExecutionStarted' THEN 3 WHEN 'FellBack' THEN 1
    WHEN 'ContextCompacted' THEN 1 ELSE 2 END
  AND json_typeof(body) = 'object'"""

# New columns come last: a view can be replaced by no other.
VIEWS = f"""
CREATE OR REPLACE VIEW messages AS
SELECT investigation, run, stage, execution, seq,
  row_number() OVER (PARTITION BY investigation, execution ORDER BY seq, place) - 1 AS position,
  said.role, said.text, said.thinking, said.calls AS tool_calls, said.call_id AS tool_call_id, said.tool_name,
  said.failed, said.in_doubt, at AS created_at, coalesce(said.native, '[]') AS native
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
  (role text, text text, thinking text, calls json, native json, call_id text, tool_name text, failed boolean,
    in_doubt boolean)
WHERE {READ};

CREATE OR REPLACE VIEW llm_interactions AS
SELECT investigation, run, stage, execution, seq, turn, provider, model, context_messages, seconds,
  input_tokens, output_tokens, thinking_tokens, total_tokens, attempts, failure, failure_text, created_at,
  failure_code, cost
FROM (
  SELECT investigation, run, stage, execution, seq, entries.kind, held.turn, call.provider, call.model, call.seconds,
    usage.input_tokens, usage.output_tokens, usage.thinking_tokens, usage.total_tokens, call.attempts, call.cost,
    failure.kind AS failure, failure.text AS failure_text, at AS created_at,
    CASE WHEN failure.kind IS NOT NULL THEN coalesce(failure.code, '') END AS failure_code,
    sum(
      CASE WHEN json_typeof(held.messages) = 'array' THEN json_array_length(held.messages) ELSE 0 END
      + CASE WHEN json_typeof(held.runs) = 'array' THEN json_array_length(held.runs) ELSE 0 END
    ) OVER (PARTITION BY investigation, execution ORDER BY seq)
      - CASE entries.kind WHEN 'Answered' THEN 1 ELSE 0 END AS context_messages
  FROM entries
  CROSS JOIN LATERAL json_to_record(body) AS held (turn integer, messages json, runs json, call json, failure json)
  LEFT JOIN LATERAL json_to_record(CASE json_typeof(held.call) WHEN 'object' THEN held.call END) AS call
    (provider text, model text, seconds double precision, usage json, attempts json, cost double precision) ON true
  LEFT JOIN LATERAL json_to_record(CASE json_typeof(call.usage) WHEN 'object' THEN call.usage END) AS usage
    (input_tokens bigint, output_tokens bigint, thinking_tokens bigint, total_tokens bigint) ON true
  LEFT JOIN LATERAL json_to_record(CASE json_typeof(held.failure) WHEN 'object' THEN held.failure END) AS failure
    (kind text, text text, code text) ON true
  WHERE {READ}
) AS said
WHERE kind IN ('Answered', 'Unanswered', 'FellBack') OR kind = 'ContextCompacted' AND model IS NOT NULL;

CREATE OR REPLACE VIEW mcp_interactions AS
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
WHERE kind = 'ToolsAnswered' AND version BETWEEN 1 AND 2 AND json_typeof(body) = 'object';
"""  # noqa: S608 - our own text


def upgrade() -> None:
    for statement in (TABLES + VIEWS).split(";"):
        if statement.strip():
            op.execute(statement)

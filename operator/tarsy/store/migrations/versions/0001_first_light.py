"""The queue and the transcript."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = """
CREATE TABLE investigations (
  id               uuid PRIMARY KEY,
  namespace        text NOT NULL,
  name             text NOT NULL,
  generation       bigint NOT NULL,
  alert_type       text NOT NULL,
  alert_data       text NOT NULL,
  chain_name       text,
  chain_namespace  text,
  chain_generation bigint,
  chain            json,
  admitted_at      timestamptz NOT NULL DEFAULT now(),
  started_at       timestamptz,
  ended_at         timestamptz,
  ending           text,
  reason           text,
  message          text,
  final_analysis   text
);
CREATE TABLE work (
  investigation uuid PRIMARY KEY REFERENCES investigations (id) ON DELETE CASCADE,
  state         text NOT NULL CHECK (state IN ('queued', 'running', 'ended')),
  owner         uuid,
  token         uuid,
  lease_until   timestamptz,
  attempts      integer NOT NULL DEFAULT 0,
  commits       bigint NOT NULL DEFAULT 0,
  seq           bigint NOT NULL DEFAULT 1,
  projected_seq bigint NOT NULL DEFAULT 0,
  queued_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX work_claimable ON work (queued_at) WHERE state <> 'ended';
CREATE INDEX work_unprojected ON work (investigation) WHERE projected_seq < seq;
CREATE TABLE stages (
  investigation uuid NOT NULL REFERENCES investigations (id) ON DELETE CASCADE,
  name          text NOT NULL,
  position      integer NOT NULL,
  started_at    timestamptz NOT NULL DEFAULT now(),
  ended_at      timestamptz,
  outcome       text,
  message       text,
  PRIMARY KEY (investigation, name)
);
CREATE TABLE executions (
  investigation uuid NOT NULL,
  stage         text NOT NULL,
  id            text NOT NULL,
  agent         json NOT NULL,
  tools         json NOT NULL,
  opening       integer NOT NULL,
  started_at    timestamptz NOT NULL DEFAULT now(),
  ended_at      timestamptz,
  outcome       text,
  error         text,
  PRIMARY KEY (investigation, id),
  FOREIGN KEY (investigation, stage) REFERENCES stages (investigation, name) ON DELETE CASCADE
);
CREATE TABLE messages (
  investigation  uuid NOT NULL,
  stage          text NOT NULL,
  execution      text NOT NULL,
  position       integer NOT NULL,
  role           text NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
  text           text NOT NULL,
  thinking       text NOT NULL,
  tool_calls     json NOT NULL,
  tool_call_id   text NOT NULL,
  tool_name      text NOT NULL,
  failed         boolean NOT NULL,
  in_doubt       boolean NOT NULL,
  provider_state json,
  created_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (investigation, execution, position),
  FOREIGN KEY (investigation, execution) REFERENCES executions (investigation, id) ON DELETE CASCADE
);
CREATE TABLE llm_interactions (
  investigation   uuid NOT NULL,
  stage           text NOT NULL,
  execution       text NOT NULL,
  position        integer NOT NULL,
  provider        text NOT NULL,
  model           text NOT NULL,
  asked_with      integer NOT NULL,
  seconds         double precision NOT NULL,
  input_tokens    bigint NOT NULL,
  output_tokens   bigint NOT NULL,
  thinking_tokens bigint NOT NULL,
  total_tokens    bigint NOT NULL,
  attempts        json NOT NULL,
  failure         text CHECK (failure IN ('timeout', 'rejected', 'fatal')),
  failure_text    text,
  created_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (investigation, execution, position),
  FOREIGN KEY (investigation, execution) REFERENCES executions (investigation, id) ON DELETE CASCADE
);
CREATE TABLE tool_interactions (
  investigation uuid NOT NULL,
  stage         text NOT NULL,
  execution     text NOT NULL,
  call_id       text NOT NULL,
  tool_name     text NOT NULL,
  arguments     text NOT NULL,
  seconds       double precision NOT NULL,
  created_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (investigation, execution, call_id),
  FOREIGN KEY (investigation, execution) REFERENCES executions (investigation, id) ON DELETE CASCADE
);
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        if statement.strip():
            op.execute(statement)

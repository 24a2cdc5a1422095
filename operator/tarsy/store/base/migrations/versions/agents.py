"""Agents: strategies of executions; summary, gaps and grounds of runs; runs that are questions; starts in version 2."""

from __future__ import annotations

from alembic import op

revision = "agents"
down_revision = "receipt_digests"

TABLES = """
ALTER TABLE runs ADD COLUMN summary text, ADD COLUMN gaps json NOT NULL DEFAULT '[]', ADD COLUMN grounds text;
ALTER TABLE executions ADD COLUMN strategy text NOT NULL DEFAULT '';
UPDATE executions SET strategy = 'native-thinking' WHERE provider <> '';
ALTER TABLE runs ADD COLUMN attempts integer NOT NULL DEFAULT 0;
UPDATE runs SET attempts = work.attempts FROM work WHERE work.investigation = runs.investigation AND work.run = number;
ALTER TABLE work DROP COLUMN attempts;
ALTER TABLE runs DROP CONSTRAINT runs_kind_check;
ALTER TABLE runs ADD CONSTRAINT runs_kind_check CHECK (kind IN ('investigation', 'chat'));
"""

VIEWS = """
CREATE OR REPLACE VIEW messages AS
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
WHERE kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'ToolsAnswered')
  AND (version = 1 OR entries.kind = 'ExecutionStarted' AND version = 2)
  AND json_typeof(body) = 'object';

CREATE OR REPLACE VIEW llm_interactions AS
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
  WHERE entries.kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'ToolsAnswered')
    AND (version = 1 OR entries.kind = 'ExecutionStarted' AND version = 2)
    AND json_typeof(body) = 'object'
) AS said
WHERE kind IN ('Answered', 'Unanswered');
"""


def upgrade() -> None:
    for statement in (TABLES + VIEWS).split(";"):
        if statement.strip():
            op.execute(statement)

"""The API: whose an investigation is, how it is found and listed, what was done by whom, and what processes say."""

from __future__ import annotations

from alembic import op

revision = "api"
down_revision = "providers"

WORDS = """
CREATE FUNCTION tarsy_words(given text) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT to_tsvector('simple', left(given, 65536)) $$
"""

TABLES = """
ALTER TABLE investigations
  ADD COLUMN namespace_uid text,
  ADD COLUMN author text NOT NULL DEFAULT '',
  ADD COLUMN ending text,
  ADD COLUMN purged_at timestamptz,
  ADD COLUMN words tsvector;
UPDATE investigations
SET ending = runs.ending,
  words = tarsy_words(alert_data) || tarsy_words(coalesce(final_analysis, '')) || tarsy_words(coalesce(summary, ''))
FROM runs WHERE runs.investigation = id AND number = 0;

ALTER TABLE receipts ADD COLUMN address text NOT NULL DEFAULT '';

CREATE TABLE audit (
  id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  at            timestamptz NOT NULL DEFAULT now(),
  who           text NOT NULL,
  address       text NOT NULL,
  action        text NOT NULL,
  investigation uuid NOT NULL,
  namespace     text NOT NULL,
  name          text NOT NULL
);
CREATE INDEX audit_investigation ON audit (investigation);

CREATE TABLE catalogue (
  process uuid NOT NULL,
  kind    text NOT NULL,
  name    text NOT NULL,
  state   text NOT NULL,
  since   timestamptz NOT NULL DEFAULT now(),
  seen_at timestamptz NOT NULL DEFAULT now(),
  detail  json NOT NULL DEFAULT '{}',
  PRIMARY KEY (process, kind, name)
);
"""

# A body that somebody wrote by hand may be of any shape, and hold what Postgres cannot unescape: it counts for nothing.
COUNTED = """
CREATE FUNCTION pg_temp.listed(body json, name text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE json_typeof(body -> name) WHEN 'array' THEN json_array_length(body -> name) ELSE 0 END;
EXCEPTION WHEN others THEN
  RETURN 0;
END $$
"""
CALLED = """
CREATE FUNCTION pg_temp.is_there(body json, name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce(json_typeof(body -> name) = 'object', false);
EXCEPTION WHEN others THEN
  RETURN false;
END $$
"""
COUNTS = """
ALTER TABLE entries
  ADD COLUMN messages integer NOT NULL DEFAULT 0,
  ADD COLUMN model_calls integer NOT NULL DEFAULT 0,
  ADD COLUMN tool_calls integer NOT NULL DEFAULT 0;
UPDATE entries
SET messages = pg_temp.listed(body, 'messages') + pg_temp.listed(body, 'runs'),
  tool_calls = pg_temp.listed(body, 'runs'),
  model_calls = CAST(pg_temp.is_there(body, 'call') AS integer)
WHERE kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'FellBack', 'ContextCompacted', 'ToolsAnswered');
"""


def upgrade() -> None:
    for function in (COUNTED, CALLED):
        op.execute(function)
    for statement in COUNTS.split(";"):
        if statement.strip():
            op.execute(statement)
    op.execute(WORDS)
    for statement in TABLES.split(";"):
        if statement.strip():
            op.execute(statement)

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


def upgrade() -> None:
    op.execute(WORDS)
    for statement in TABLES.split(";"):
        if statement.strip():
            op.execute(statement)

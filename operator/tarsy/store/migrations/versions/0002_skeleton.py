"""Identities, repeats, cancel, large alerts, duties."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = """
ALTER TABLE work ADD COLUMN fruitless integer NOT NULL DEFAULT 0;
ALTER TABLE work ADD COLUMN cancel text CHECK (cancel IN ('user', 'deleted'));
ALTER TABLE investigations ADD COLUMN fingerprint text;
ALTER TABLE investigations ADD COLUMN severity text;
ALTER TABLE investigations ADD COLUMN runbook_url text;
ALTER TABLE investigations ADD COLUMN chain_hash text;
ALTER TABLE investigations ADD COLUMN alert_status text CHECK (alert_status IN ('firing', 'resolved'));
ALTER TABLE investigations ADD COLUMN duplicates bigint NOT NULL DEFAULT 0;
CREATE INDEX investigations_fingerprint ON investigations (namespace, fingerprint, admitted_at)
  WHERE fingerprint IS NOT NULL;
CREATE TABLE identities (
  namespace     text NOT NULL,
  fingerprint   text NOT NULL,
  starts_ms     bigint NOT NULL,
  investigation uuid NOT NULL REFERENCES investigations (id) ON DELETE CASCADE,
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
CREATE TABLE duties (
  name  text PRIMARY KEY,
  owner uuid NOT NULL,
  until timestamptz NOT NULL
);
CREATE TABLE clusters (
  uid        text PRIMARY KEY,
  first_seen timestamptz NOT NULL DEFAULT now()
);
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        if statement.strip():
            op.execute(statement)

"""Receipts: the objects that intake is about to make, so that no other object passes for them."""

from __future__ import annotations

from alembic import op

revision = "receipts"
down_revision = "one_log"

RECEIPTS = """
CREATE TABLE receipts (
  namespace     text NOT NULL,
  fingerprint   text NOT NULL,
  starts_ms     bigint NOT NULL,
  name          text NOT NULL,
  word          text NOT NULL,
  investigation uuid REFERENCES investigations ON DELETE CASCADE,
  created_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (namespace, fingerprint, starts_ms)
);
CREATE INDEX receipts_name ON receipts (namespace, name);
CREATE INDEX receipts_created_at ON receipts (created_at);
"""


def upgrade() -> None:
    for statement in RECEIPTS.split(";"):
        if statement.strip():
            op.execute(statement)

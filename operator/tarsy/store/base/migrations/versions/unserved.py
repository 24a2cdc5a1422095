"""Alerts that no chain has taken, by type and hour; and when something was last told to people."""

from __future__ import annotations

from alembic import op

revision = "unserved"
down_revision = "passes"
ADDITIVE = True

TABLES = """
CREATE TABLE IF NOT EXISTS unserved (
  alert_type text NOT NULL,
  hour       timestamptz NOT NULL,
  alerts     bigint NOT NULL,
  last_at    timestamptz NOT NULL,
  PRIMARY KEY (alert_type, hour)
);
CREATE TABLE IF NOT EXISTS notices (
  name    text PRIMARY KEY,
  told_at timestamptz NOT NULL
);
"""


def upgrade() -> None:
    for statement in TABLES.split(";"):
        if statement.strip():
            op.execute(statement)

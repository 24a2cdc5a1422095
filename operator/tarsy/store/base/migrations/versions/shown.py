"""The columns that kubectl shows: the target of an alert, and the request to a provider that is being retried."""

from __future__ import annotations

from alembic import op

revision = "shown"
down_revision = "previous"
ADDITIVE = True

COLUMNS = """
ALTER TABLE investigations ADD COLUMN IF NOT EXISTS target text NOT NULL DEFAULT '';
ALTER TABLE executions
  ADD COLUMN IF NOT EXISTS retrying text,
  ADD COLUMN IF NOT EXISTS retry_at timestamptz,
  ADD COLUMN IF NOT EXISTS retry_claim integer;
"""


def upgrade() -> None:
    for statement in COLUMNS.split(";"):
        if statement.strip():
            op.execute(statement)

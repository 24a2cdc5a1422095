"""Parked runs: they wait for something outside, without a claim, until a time.

It serves every build that `deletions` serves: a build that does not know the state claims no parked run, shows it as
queued, and leaves its cancel to a newer one.
"""

from __future__ import annotations

from alembic import op

revision = "parking"
down_revision = "deletions"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE work
          ADD COLUMN IF NOT EXISTS wake_at timestamptz,
          ADD COLUMN IF NOT EXISTS wait_reason text,
          ADD COLUMN IF NOT EXISTS wait_message text
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS work_parked ON work (wake_at) WHERE state = 'parked'")
    op.execute("ALTER TABLE work DROP CONSTRAINT work_state_check")
    op.execute(
        "ALTER TABLE work ADD CONSTRAINT work_state_check CHECK (state IN ('queued', 'running', 'parked', 'ended'))"
    )

"""Priority, suspension, time to live, cancel on resolve."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = """
ALTER TABLE work DROP CONSTRAINT work_cancel_check;
ALTER TABLE work ADD CONSTRAINT work_cancel_check CHECK (cancel IN ('user', 'deleted', 'resolved'));
ALTER TABLE work ADD COLUMN priority integer NOT NULL DEFAULT 0;
ALTER TABLE work ADD COLUMN suspend boolean NOT NULL DEFAULT false;
ALTER TABLE work ADD COLUMN suspended_at timestamptz;
ALTER TABLE work ADD COLUMN suspended_for interval NOT NULL DEFAULT '0';
ALTER TABLE investigations ADD COLUMN ttl_seconds bigint;
ALTER TABLE investigations ADD COLUMN gone_at timestamptz;
DROP INDEX work_claimable;
CREATE INDEX work_claimable ON work (priority DESC, queued_at) WHERE state <> 'ended';
CREATE INDEX investigations_present ON investigations (ended_at) WHERE ended_at IS NOT NULL AND gone_at IS NULL;
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        if statement.strip():
            op.execute(statement)

"""The index of open runs, in place of one that served claims too, badly, while the statistics were old.

It serves every build that `budget_messages` serves. The statements of such a build that look for open runs read all of
`work` instead; its claims, heartbeats and commits have indexes of their own.
"""

from __future__ import annotations

from alembic import op

revision = "open_runs"
down_revision = "budget_messages"
ADDITIVE = True


def upgrade() -> None:
    op.execute("CREATE INDEX IF NOT EXISTS work_open ON work (queue) WHERE state <> 'ended' AND run >= 0")
    op.execute("DROP INDEX IF EXISTS work_claimable")

"""The state of an investigation that each receiver was told of, so that it hears of stages and alerts once.

It serves every build that `splits` serves: such a build sends no updates, and reads none of these columns.
"""

from __future__ import annotations

from alembic import op

revision = "delivery_updates"
down_revision = "splits"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE deliveries
          ADD COLUMN IF NOT EXISTS told_of text NOT NULL DEFAULT '',
          ADD COLUMN IF NOT EXISTS sent_event text NOT NULL DEFAULT '',
          ADD COLUMN IF NOT EXISTS sent_told_of text NOT NULL DEFAULT ''
        """
    )
    op.execute("UPDATE deliveries SET sent_event = event WHERE sent_at IS NOT NULL AND next_at IS NULL")

"""The messages to receivers about thresholds of budgets.

It serves every build that `budget_ends` serves: such a build sends none.
"""

from __future__ import annotations

from alembic import op

revision = "budget_messages"
down_revision = "budget_ends"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS budget_messages (
          budget     text NOT NULL,
          unit       text NOT NULL,
          subject    text NOT NULL,
          period     text NOT NULL,
          receiver   text NOT NULL,
          threshold  integer NOT NULL,
          since      timestamptz NOT NULL DEFAULT now(),
          next_at    timestamptz,
          attempts   integer NOT NULL DEFAULT 0,
          failures   integer NOT NULL DEFAULT 0,
          problem    text NOT NULL DEFAULT '',
          PRIMARY KEY (budget, unit, subject, period, receiver)
        )
        """
    )
    op.execute(
        """
        CREATE INDEX IF NOT EXISTS budget_messages_due ON budget_messages (receiver, next_at)
          WHERE next_at IS NOT NULL
        """
    )

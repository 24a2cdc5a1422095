"""The alerts of an investigation, also those that joined it: their types, severities, labels and statuses.

It serves every build that `budgets` serves: such a build investigates each alert alone, and cancels an investigation
when one of its alerts resolves. Rows of earlier builds have no type and no labels, and count as firing until they
resolve.
"""

from __future__ import annotations

from alembic import op

revision = "alert_groups"
down_revision = "budgets"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE identities
          ADD COLUMN IF NOT EXISTS alert_type text NOT NULL DEFAULT '',
          ADD COLUMN IF NOT EXISTS severity text NOT NULL DEFAULT '',
          ADD COLUMN IF NOT EXISTS labels json,
          ADD COLUMN IF NOT EXISTS status text NOT NULL DEFAULT 'firing',
          ADD COLUMN IF NOT EXISTS joined_at timestamptz
        """
    )

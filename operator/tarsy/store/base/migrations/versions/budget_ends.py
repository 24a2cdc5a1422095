"""Which reserved requests have failed, and the ledgers of an investigation by its id.

It serves every build that `delivery_failures` serves: such a build takes failed requests for ones under way.
"""

from __future__ import annotations

from alembic import op

revision = "budget_ends"
down_revision = "delivery_failures"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE budget_reservations ADD COLUMN IF NOT EXISTS ended boolean NOT NULL DEFAULT false")
    op.execute(
        """
        CREATE INDEX IF NOT EXISTS budget_ledgers_by_investigation
          ON budget_ledgers (split_part(subject, ' ', 1)) WHERE period = ''
        """
    )

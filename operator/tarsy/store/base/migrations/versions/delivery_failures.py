"""The failed attempts of the present message to a receiver, apart from the number of its attempts, which only rises.

It serves every build that `rechecks` serves: such a build counts attempts, and reads none of these.
"""

from __future__ import annotations

from alembic import op

revision = "delivery_failures"
down_revision = "rechecks"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE deliveries ADD COLUMN IF NOT EXISTS failures integer NOT NULL DEFAULT 0")

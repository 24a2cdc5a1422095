"""Whether a stage was cut off by its run's end, beside the two messages that said so before.

It serves every build that `shown` serves: the column may be null, and builds that do not know it leave it so.
"""

from __future__ import annotations

from alembic import op

revision = "cut_off"
down_revision = "shown"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE stages ADD COLUMN IF NOT EXISTS cut_off boolean")

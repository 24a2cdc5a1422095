"""The number of investigations in a row that led to one: the agents of each started the next one.

It serves every build that `parking` serves: a build that does not know the column leaves it 0. No statement of those
builds has a column of its name.
"""

from __future__ import annotations

from alembic import op

revision = "depths"
down_revision = "parking"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE investigations ADD COLUMN IF NOT EXISTS starters smallint NOT NULL DEFAULT 0")

"""The facts of an entry's calls, without their texts: the index of a trace reads them in place of bodies.

It serves every build that `alert_labels` serves: the column is null in the entries that a build without it writes,
and in those that are there already. Their facts are read from their bodies.
"""

from __future__ import annotations

from alembic import op

revision = "call_facts"
down_revision = "alert_labels"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE entries ADD COLUMN IF NOT EXISTS call_facts json")

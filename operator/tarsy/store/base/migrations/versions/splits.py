"""Alerts that are taken out of a group: the investigation that each was in, and the text of each alert that joins one.

It serves every build that `responses` serves: such a build shows no such link, and stores no text of an alert that
joins.
"""

from __future__ import annotations

from alembic import op

revision = "splits"
down_revision = "responses"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE investigations ADD COLUMN IF NOT EXISTS split_from uuid")
    op.execute(
        "CREATE INDEX IF NOT EXISTS investigations_split_from ON investigations (split_from)"
        " WHERE split_from IS NOT NULL"
    )
    op.execute("ALTER TABLE receipts ADD COLUMN IF NOT EXISTS split_from uuid")
    op.execute("ALTER TABLE identities ADD COLUMN IF NOT EXISTS alert_json text")

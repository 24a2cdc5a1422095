"""Links from an investigation to the former one of its alert, and the number of objects that an episode has had."""

from __future__ import annotations

from alembic import op

revision = "previous"
down_revision = "unserved"
ADDITIVE = True

COLUMNS = """
ALTER TABLE investigations ADD COLUMN previous uuid;
ALTER TABLE receipts ADD COLUMN previous uuid;
ALTER TABLE receipts ADD COLUMN attempt integer NOT NULL DEFAULT 1;
"""


def upgrade() -> None:
    for statement in COLUMNS.split(";"):
        if statement.strip():
            op.execute(statement)

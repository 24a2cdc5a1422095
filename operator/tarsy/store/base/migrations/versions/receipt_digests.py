"""Receipts: digests of what intake was about to make, so that an object that took its place does not pass for it."""

from __future__ import annotations

from alembic import op

revision = "receipt_digests"
down_revision = "receipts"


def upgrade() -> None:
    op.execute("ALTER TABLE receipts ADD COLUMN digests text[] NOT NULL DEFAULT '{}'")

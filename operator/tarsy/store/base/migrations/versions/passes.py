"""Passes: since when all workers pass an investigation over, because a provider that it needs is unusable for them."""

from __future__ import annotations

from alembic import op

revision = "passes"
down_revision = "results"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE work ADD COLUMN IF NOT EXISTS passed_over_since timestamptz")

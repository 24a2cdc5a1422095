"""Investigations that run an ended one again, with copies of the log of its earlier stages.

It serves every build that `call_facts` serves: a build that does not know the columns runs such an investigation as
any other.
"""

from __future__ import annotations

from alembic import op

revision = "retries"
down_revision = "call_facts"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE investigations
          ADD COLUMN IF NOT EXISTS retry_of uuid,
          ADD COLUMN IF NOT EXISTS retry_stage text,
          ADD COLUMN IF NOT EXISTS copied_entries bigint NOT NULL DEFAULT 0
        """
    )
    op.execute(
        "CREATE INDEX IF NOT EXISTS investigations_retry_of ON investigations (retry_of) WHERE retry_of IS NOT NULL"
    )

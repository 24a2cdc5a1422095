"""Indexes of the objects whose time to live is over, by namespace, and of those of deleted investigations.

It serves every build that `delivery_updates` serves: such a build reads all investigations whose objects exist.
"""

from __future__ import annotations

from alembic import op

revision = "expiring"
down_revision = "delivery_updates"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        CREATE INDEX investigations_expiring ON investigations (
          namespace,
          (extract(epoch FROM timezone('UTC', ended_at)) + coalesce(ttl_seconds, chain_ttl_seconds, 604800))
        ) WHERE ended_at IS NOT NULL AND gone_at IS NULL AND deleted_at IS NULL
        """
    )
    op.execute(
        """
        CREATE INDEX investigations_deleted_objects ON investigations (namespace, deleted_at)
          WHERE deleted_at IS NOT NULL AND gone_at IS NULL
        """
    )

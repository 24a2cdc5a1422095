"""The digest of the group key of each alert, by which the incident that Alertmanager opened for it is found.

It serves every build that `expiring` serves: such a build keeps none, and its alerts have no incident.
"""

from __future__ import annotations

from alembic import op

revision = "group_digests"
down_revision = "expiring"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE identities ADD COLUMN IF NOT EXISTS group_digest text")

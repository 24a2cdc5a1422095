"""One-time codes and sessions of browsers, as digests.

It serves every build that `cut_off` serves: a build that does not know the table leaves it alone.
"""

from __future__ import annotations

from alembic import op

revision = "browser_sessions"
down_revision = "cut_off"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE IF NOT EXISTS browser_sessions (
          digest     bytea PRIMARY KEY,
          is_code    boolean NOT NULL,
          identity   json NOT NULL,
          until      timestamptz NOT NULL,
          session_until timestamptz NOT NULL
        )
        """
    )
    op.execute("CREATE INDEX IF NOT EXISTS browser_sessions_until ON browser_sessions (until)")

"""The alert of an investigation in a few words, its links, and the names of its chain's agents, as lists show them.

It serves every build that `browser_sessions` serves: a build that does not know the columns leaves their defaults.
Investigations that were admitted earlier have nothing there.
"""

from __future__ import annotations

from alembic import op

revision = "alert_labels"
down_revision = "browser_sessions"
ADDITIVE = True


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE investigations
          ADD COLUMN IF NOT EXISTS labels json,
          ADD COLUMN IF NOT EXISTS alert_summary text NOT NULL DEFAULT '',
          ADD COLUMN IF NOT EXISTS generator_url text,
          ADD COLUMN IF NOT EXISTS external_url text,
          ADD COLUMN IF NOT EXISTS agent_names json
        """
    )
    op.execute("ALTER TABLE large_alerts ADD COLUMN IF NOT EXISTS summary text NOT NULL DEFAULT ''")

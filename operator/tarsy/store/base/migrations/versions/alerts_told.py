"""The numbers of the alerts that join an investigation, and views of the messages that tell agents of them.

It serves every build that `alert_groups` serves: such a build tells no agent, and leaves an investigation whose agents
were told to newer builds.
"""

from __future__ import annotations

from alembic import op
from tarsy.store.base.migrations.versions import excerpts, results, retention

revision = "alerts_told"
down_revision = "alert_groups"
ADDITIVE = True


def views() -> str:
    """Return the statements that make the views."""
    views = results.VIEWS.replace("FROM entries\n", retention.READABLE)
    for former, present in excerpts.VERSIONS.items():
        views = views.replace(former, present)
    return views.replace("'ToolsAnswered', 'ToolSummarised')", "'ToolsAnswered', 'ToolSummarised', 'AlertJoined')")


def upgrade() -> None:
    op.execute("ALTER TABLE work ADD COLUMN IF NOT EXISTS joined bigint NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE identities ADD COLUMN IF NOT EXISTS joined_number bigint")
    for statement in views().split(";"):
        if statement.strip():
            op.execute(statement)

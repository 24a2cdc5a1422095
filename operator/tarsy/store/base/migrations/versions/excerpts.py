"""The rest of a result whose excerpt the log has, in place of the whole; and views that show entries with excerpts.

It serves every build that `feedback` serves: such a build shows the whole of an excerpt as empty, and leaves an
investigation that has one to newer builds.
"""

from __future__ import annotations

from alembic import op
from tarsy.store.base.migrations.versions import results, retention

revision = "excerpts"
down_revision = "feedback"
ADDITIVE = True

COLUMNS = "ALTER TABLE tool_results ADD COLUMN IF NOT EXISTS rest text;"
VERSIONS = {
    "WHEN 'ExecutionStarted' THEN 4 WHEN 'ToolsAnswered' THEN 3": (
        "WHEN 'ExecutionStarted' THEN 5 WHEN 'ToolsAnswered' THEN 4"
    ),
    "kind = 'ToolsAnswered' AND version BETWEEN 1 AND 3": "kind = 'ToolsAnswered' AND version BETWEEN 1 AND 4",
}


def upgrade() -> None:
    views = results.VIEWS.replace("FROM entries\n", retention.READABLE)
    for former, present in VERSIONS.items():
        views = views.replace(former, present)
    for statement in (COLUMNS + views).split(";"):
        if statement.strip():
            op.execute(statement)

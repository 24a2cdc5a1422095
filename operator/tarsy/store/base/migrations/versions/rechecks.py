"""Views that show the calls of rechecks, and executions that this version started.

It serves every build that `group_digests` serves.

Such a build leaves an investigation with a recheck, and one whose agents this version started, to newer builds.
"""

from __future__ import annotations

from alembic import op
from tarsy.store.base.migrations.versions import responses

revision = "rechecks"
down_revision = "group_digests"
ADDITIVE = True


def views() -> str:
    """Return the statements that make the views."""
    return responses.views().replace("WHEN 'ExecutionStarted' THEN 5", "WHEN 'ExecutionStarted' THEN 6")


def upgrade() -> None:
    for statement in views().split(";"):
        if statement.strip():
            op.execute(statement)

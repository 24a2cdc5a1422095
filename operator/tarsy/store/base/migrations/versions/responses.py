"""Views that show the model and the id of the response of each model call, by the provider's names.

It serves every build that `deliveries` serves: such a build leaves an investigation whose log has these names to newer
builds.
"""

from __future__ import annotations

from alembic import op
from tarsy.store.base.migrations.versions import alerts_told

revision = "responses"
down_revision = "deliveries"
ADDITIVE = True

# New columns come last: a view can be replaced by no other.
CHANGES = {
    "WHEN 'FellBack' THEN 1 WHEN 'ContextCompacted' THEN 1 WHEN 'ToolSummarised' THEN 1 ELSE 2 END": (
        "WHEN 'FellBack' THEN 2 WHEN 'ContextCompacted' THEN 2 WHEN 'ToolSummarised' THEN 2 WHEN 'AlertJoined' THEN 1"
        " ELSE 3 END"
    ),
    "failure_code, cost, tool_call_id\nFROM (": (
        "failure_code, cost, tool_call_id, response_model, response_id\nFROM ("
    ),
    "coalesce(held.call_id, '') AS tool_call_id,": (
        "coalesce(held.call_id, '') AS tool_call_id,"
        " coalesce(call.response_model, '') AS response_model, coalesce(call.response_id, '') AS response_id,"
    ),
    "attempts json, cost double precision)": (
        "attempts json, cost double precision, response_model text, response_id text)"
    ),
}


def views() -> str:
    """Return the statements that make the views."""
    statements = alerts_told.views()
    for former, present in CHANGES.items():
        statements = statements.replace(former, present)
    return statements


def upgrade() -> None:
    for statement in views().split(";"):
        if statement.strip():
            op.execute(statement)

"""Alerts that no chain takes, by namespace; indexes of deleted investigations with held ones, and of unused alert data.

It serves every build that `chain_turns` serves: such a build counts those alerts in the table `unserved`, as before.
"""

from __future__ import annotations

from alembic import op

revision = "deletions"
down_revision = "chain_turns"
ADDITIVE = True

STATEMENTS = """
DROP INDEX investigations_deleted;
CREATE INDEX investigations_deleted ON investigations (deleted_at)
  WHERE deleted_at IS NOT NULL AND purged_at IS NULL;
CREATE INDEX large_alerts_created ON large_alerts (created_at);
CREATE TABLE unserved_alerts (
  namespace  text NOT NULL,
  alert_type text NOT NULL,
  hour       timestamptz NOT NULL,
  alerts     bigint NOT NULL,
  last_at    timestamptz NOT NULL,
  PRIMARY KEY (namespace, alert_type, hour)
)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)

"""The uid of the namespace of each row of the audit, and an index for each filter of its pages.

It serves every build that `traceparents` serves: a build that does not know the column leaves it empty.
"""

from __future__ import annotations

from alembic import op

revision = "audit_pages"
down_revision = "traceparents"
ADDITIVE = True

CHANGES = """
ALTER TABLE audit ADD COLUMN IF NOT EXISTS namespace_uid text;
UPDATE audit SET namespace_uid = investigations.namespace_uid FROM investigations
WHERE investigations.id = audit.investigation AND audit.namespace_uid IS NULL;
DROP INDEX audit_investigation;
DROP INDEX audit_at;
CREATE INDEX audit_investigation ON audit (investigation, at, id);
CREATE INDEX audit_at ON audit (at, id);
CREATE INDEX audit_namespace ON audit (namespace, at, id);
CREATE INDEX audit_who ON audit (who, at, id);
CREATE INDEX audit_action ON audit (action, at, id);
CREATE INDEX audit_name ON audit (name, at, id);
"""


def upgrade() -> None:
    for statement in CHANGES.split(";"):
        if statement.strip():
            op.execute(statement)

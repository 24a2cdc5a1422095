"""The span that an alert carries, to which the trace of its investigation is linked.

It serves every build that `retention` serves: a build that does not know the column leaves it empty.
"""

from __future__ import annotations

from alembic import op

revision = "traceparents"
down_revision = "retention"
ADDITIVE = True


def upgrade() -> None:
    op.execute("ALTER TABLE investigations ADD COLUMN IF NOT EXISTS traceparent text")

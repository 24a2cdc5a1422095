"""The messages to receivers about investigations, and how far the changes of investigations were read for them.

It serves every build that `alerts_told` serves: such a build sends none.
"""

from __future__ import annotations

from alembic import op

revision = "deliveries"
down_revision = "alerts_told"
ADDITIVE = True

DELIVERIES = """
CREATE TABLE deliveries (
  investigation uuid NOT NULL REFERENCES investigations ON DELETE CASCADE,
  receiver      text NOT NULL,
  event         text NOT NULL CHECK (event IN ('started', 'ended', 'resolved')),
  revision      bigint NOT NULL,
  since         timestamptz NOT NULL DEFAULT now(),
  next_at       timestamptz,
  attempts      integer NOT NULL DEFAULT 0,
  problem       text NOT NULL DEFAULT '',
  sent_revision bigint NOT NULL DEFAULT 0,
  sent_at       timestamptz,
  gave_up_at    timestamptz,
  sent_as       json NOT NULL DEFAULT '{}',
  PRIMARY KEY (investigation, receiver)
);
CREATE INDEX deliveries_due ON deliveries (receiver, next_at) WHERE next_at IS NOT NULL;
CREATE TABLE delivery_positions (
  name    text NOT NULL PRIMARY KEY,
  changed bigint NOT NULL
);
"""


def upgrade() -> None:
    for statement in DELIVERIES.split(";"):
        if statement.strip():
            op.execute(statement)

"""The pins of tools, and audit rows without an investigation."""

from __future__ import annotations

from alembic import op

revision = "tool_pins"
down_revision = "live"

PINS = """
CREATE TABLE tool_pins (
  server       text NOT NULL,
  tool         text NOT NULL,
  hash         text NOT NULL,
  pinned_at    timestamptz NOT NULL DEFAULT now(),
  confirmed_by text NOT NULL DEFAULT '',
  PRIMARY KEY (server, tool)
);
ALTER TABLE audit ALTER COLUMN investigation DROP NOT NULL;
ALTER TABLE audit ADD COLUMN detail json NOT NULL DEFAULT '{}';
"""


def upgrade() -> None:
    for statement in PINS.split(";"):
        if statement.strip():
            op.execute(statement)

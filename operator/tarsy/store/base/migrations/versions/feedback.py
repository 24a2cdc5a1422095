"""The feedback of people: whether an investigation was right.

It serves every build that `audit_pages` serves. Such a build purges a transcript without its feedback, which then goes
with the investigation's row.
"""

from __future__ import annotations

from alembic import op

revision = "feedback"
down_revision = "audit_pages"
ADDITIVE = True

FEEDBACK = """
CREATE TABLE feedback (
  investigation uuid NOT NULL REFERENCES investigations ON DELETE CASCADE,
  author        text NOT NULL,
  verdict       text NOT NULL CHECK (verdict IN ('correct', 'partly', 'wrong')),
  cause         text NOT NULL DEFAULT '',
  note          text NOT NULL DEFAULT '',
  given_at      timestamptz NOT NULL DEFAULT now(),
  changed_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (investigation, author)
);
CREATE INDEX feedback_verdict ON feedback (verdict, changed_at);
"""


def upgrade() -> None:
    for statement in FEEDBACK.split(";"):
        if statement.strip():
            op.execute(statement)

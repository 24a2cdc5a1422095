"""The queue of each chain, its turns, and the limit of its running investigations.

It serves every build that `excerpts` serves. What such a build admits waits in the queue of questions, without its
chain's limit.
"""

from __future__ import annotations

from alembic import op

revision = "chain_turns"
down_revision = "excerpts"
ADDITIVE = True

STATEMENTS = (
    "ALTER TABLE work ADD COLUMN IF NOT EXISTS queue text NOT NULL DEFAULT ''",
    """
    UPDATE work SET queue = chain_namespace || '/' || chain_name
    FROM investigations WHERE id = investigation AND state <> 'ended' AND run = 0 AND chain_name IS NOT NULL
    """,
    """
    CREATE INDEX IF NOT EXISTS work_queued ON work (queue, priority DESC, queued_at)
      WHERE state = 'queued' AND NOT suspend
    """,
    "CREATE INDEX IF NOT EXISTS work_running ON work (queue) WHERE state = 'running'",
    """
    CREATE TABLE IF NOT EXISTS queues (
      queue       text PRIMARY KEY,
      taken       bigint NOT NULL DEFAULT 0,
      taken_at    timestamptz,
      max_running integer
    ) WITH (fillfactor = 20)
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)

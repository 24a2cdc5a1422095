"""Deletion in two steps, and holds: transcripts are hidden first, purged later, in batches; empty rows go last.

It serves every build that `retries` serves. Such a build still shows the transcripts that were deleted and not purged,
and its lists and counts are slower, because their indexes leave out what is deleted.
"""

from __future__ import annotations

from alembic import op
from tarsy.store.base.migrations.versions import results

revision = "retention"
down_revision = "retries"
ADDITIVE = True

COLUMNS = """
ALTER TABLE investigations
  ADD COLUMN IF NOT EXISTS deleted_at timestamptz,
  ADD COLUMN IF NOT EXISTS restored_at timestamptz,
  ADD COLUMN IF NOT EXISTS emptied_at timestamptz,
  ADD COLUMN IF NOT EXISTS results_deleted_at timestamptz,
  ADD COLUMN IF NOT EXISTS hold text,
  ADD COLUMN IF NOT EXISTS transcript_retention_days integer;
ALTER TABLE tool_pins ADD COLUMN IF NOT EXISTS seen_at timestamptz NOT NULL DEFAULT now();
UPDATE investigations SET deleted_at = purged_at, emptied_at = purged_at
  WHERE purged_at IS NOT NULL AND emptied_at IS NULL;
DROP INDEX investigations_listed;
DROP INDEX investigations_counted;
CREATE INDEX investigations_listed ON investigations (namespace, admitted_at, id)
  WHERE purged_at IS NULL AND deleted_at IS NULL;
CREATE INDEX investigations_counted ON investigations (namespace, ending, namespace_uid)
  WHERE purged_at IS NULL AND deleted_at IS NULL;
CREATE INDEX investigations_kept ON investigations (transcript_retention_days, ended_at)
  WHERE ended_at IS NOT NULL AND purged_at IS NULL AND deleted_at IS NULL AND hold IS NULL;
CREATE INDEX investigations_deleted ON investigations (deleted_at)
  WHERE deleted_at IS NOT NULL AND purged_at IS NULL AND hold IS NULL;
CREATE INDEX investigations_purged ON investigations (purged_at)
  WHERE purged_at IS NOT NULL AND emptied_at IS NULL;
CREATE INDEX investigations_emptied ON investigations (ended_at)
  WHERE emptied_at IS NOT NULL AND gone_at IS NOT NULL;
CREATE INDEX investigations_with_results ON investigations (ended_at)
  WHERE ended_at IS NOT NULL AND purged_at IS NULL AND results_deleted_at IS NULL AND hold IS NULL;
CREATE INDEX identities_investigation ON identities (investigation);
CREATE INDEX receipts_investigation ON receipts (investigation);
CREATE INDEX audit_at ON audit (at);
"""

READABLE = """FROM (
  SELECT * FROM entries
  WHERE EXISTS (
    SELECT FROM investigations AS its
    WHERE its.id = entries.investigation AND its.purged_at IS NULL AND its.deleted_at IS NULL
  )
) AS entries
"""


def upgrade() -> None:
    views = results.VIEWS.replace("FROM entries\n", READABLE)
    for statement in (COLUMNS + views).split(";"):
        if statement.strip():
            op.execute(statement)

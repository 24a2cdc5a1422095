"""The condition of all reads of transcripts: a deleted transcript is not visible.

Each statement of `reads` and `queue.questions` that reads a transcript has the condition (a test checks them all), and
so have the SQL views. `gone_at`, the time at which the object left the cluster, does not hide the transcript.
"""

from __future__ import annotations

VISIBLE = "purged_at IS NULL AND deleted_at IS NULL"
"""The condition on a row of `investigations`, for a statement that reads this table once."""

VISIBLE_BY_ID = f"EXISTS (SELECT 1 FROM investigations AS its WHERE its.id = :id AND {VISIBLE})"  # noqa: S608 - our own text
"""The condition on the investigation `:id`, for a statement without `investigations`."""

DELETED = "purged_at IS NULL AND deleted_at IS NOT NULL"
"""The condition of a list of deleted investigations, which can be restored; for callers that may restore them."""

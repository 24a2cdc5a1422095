"""The one condition of all reads: which transcripts can be read.

Reads of `reads` and `queue.questions` have it, each in its own statement (a test walks them). Only purge, the time to
live of objects and the cool-down of alerts look at `purged_at` itself. `gone_at`, which says that the object has left
the cluster, hides nothing.
"""

from __future__ import annotations

VISIBLE = "purged_at IS NULL"
"""Whether a row of `investigations`, which is in the statement once, has a transcript that can be read."""

VISIBLE_BY_ID = f"EXISTS (SELECT 1 FROM investigations AS its WHERE its.id = :id AND {VISIBLE})"  # noqa: S608 - our own text
"""The same of the investigation `:id`, for a statement without `investigations`."""

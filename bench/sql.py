"""Every SQL text of the bench about TARSy's own tables: what has to follow when the schema changes."""

from __future__ import annotations

UNFINISHED = "SELECT 1 FROM work WHERE state <> 'ended' OR stale LIMIT 1"
"""A row while an investigation is open or a status is out of date."""

NAMES = "SELECT name FROM investigations"

"""Processes that ended without a word, as by a kill, and the runs that they had ended shortly before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases
from tarsy.store.fleet import catalogue

READ_SECONDS = 10.0
"""The limit of the search for a dead process's runs: it reads the narrow rows of all investigations."""
BEFORE = timedelta(minutes=1)
"""The time before the last sign of life whose ends are found: spans wait no longer to be sent."""

_CLAIM = text("""
  DELETE FROM catalogue
  WHERE kind = 'process' AND seen_at < clock_timestamp() - CAST(:silent AS interval)
  RETURNING process, seen_at
""")
_ENDED = text("""
  SELECT work.investigation
  FROM json_to_recordset(CAST(:dead AS json)) AS dead (process uuid, seen_at timestamptz)
  JOIN work ON owner = process AND state = 'ended'
  JOIN runs ON runs.investigation = work.investigation AND number = run
  WHERE ended_at > seen_at - CAST(:before AS interval)
""")


async def claim_last_ends(database: databases.Database, *, silent: timedelta = catalogue.FRESH) -> Sequence[UUID]:
    """Return the investigations whose latest run was ended by a process that is `silent` since, each to one caller.

    A run after which a question was asked is left out. Raises StoreDownError, and TooLongError after READ_SECONDS.
    """
    claimed = await database.run(_CLAIM, silent=silent)
    if not claimed:
        return ()
    dead = json.dumps([{"process": str(row.process), "seen_at": row.seen_at.isoformat()} for row in claimed])
    rows = await database.run_within(READ_SECONDS, _ENDED, dead=dead, before=BEFORE)
    return [row.investigation for row in rows]

"""The log of an investigation, decoded: all of it, or page by page with what its timeline events need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import TextClause, text

from tarsy.store.base import databases, visibility
from tarsy.transcript import entries, entry_versions, timeline_events

PAGE_BYTES = 4 * 1024 * 1024
"""Bytes of entries that are read at once for one page, beyond its first entry."""


RESULTS_DELETED_AT = """(
    SELECT max(its.results_deleted_at) FROM investigations AS own
    JOIN investigations AS its ON its.id = ANY(ARRAY[own.id, own.retry_of])
    WHERE own.id = entries.investigation AND its.results_deleted_at >= entries.at
      AND (its.id = own.id OR (entries.seq <= own.copied_entries AND its.results_deleted_at < own.admitted_at))
  )"""
"""The time when the full texts of the results in a row of `entries` were deleted; NULL if they are stored.

The deletion takes the texts that are there at its time. Those of a later question stay, and so do those that a retry
copied before.
"""
COLUMNS = f"""seq, at, claim, kind, version, run, stage, execution, CAST(body AS text), CAST(opaque AS text),
    CASE WHEN kind = 'ToolsAnswered' THEN {RESULTS_DELETED_AT} END"""
"""The columns of an entry for `from_row`; the final analysis or NULL follows."""
_LOG = text(f"""
  SELECT {COLUMNS},
    (SELECT final_analysis FROM runs
     WHERE entries.kind = 'RunEnded' AND runs.investigation = entries.investigation AND number = entries.run)
  FROM entries WHERE investigation = :id AND {visibility.VISIBLE_BY_ID} ORDER BY seq
""")  # noqa: S608 - our own text


async def load(database: databases.Database, investigation: UUID) -> list[entries.Logged]:
    """Return the whole log, decoded, in order."""
    return [from_row(row) for row in await database.run(_LOG, id=investigation)]


def from_row(row: Any) -> entries.Logged:
    """Decode the row of an entry."""
    seq, at, claim, kind, version, run, stage, execution, body, opaque, results_deleted_at, final_analysis = row
    stored = entry_versions.Stored(
        kind=kind, version=version, body=body, opaque=opaque, final_analysis=final_analysis or ""
    )
    return entries.Logged(
        seq=seq,
        at=at,
        claim=claim,
        run=run,
        stage=stage,
        execution=execution,
        entry=entry_versions.decode(stored, run=run, stage=stage, execution=execution),
        results_deleted_at=results_deleted_at,
    )


@dataclass(frozen=True, kw_only=True)
class LogPage:
    """Consecutive entries, and the other entries that their timeline events need."""

    log: Sequence[entries.Logged]
    """In order. Beside the page's own entries these are earlier and later ones of the same executions: the answer that
    an entry's calls belong to, and the entries about the calls of the page's last answers."""
    last: int
    """The number of the page's last entry; `after`, if the page is empty."""
    claims: Mapping[int, int]
    """The claim that wrote the entry before the page, by that entry's number; empty if there is none."""
    executions: Mapping[str, timeline_events.ExecutionTraits]
    """Kind and strategy of the executions that the entries belong to."""
    more: bool
    """Whether entries follow."""


def paged(condition: str, *, columns: str = "") -> TextClause:
    """Return the statement for the first `:rows` entries of `condition`, but at most `:bytes` after the first one.

    It selects COLUMNS, NULL and then `columns`.
    """
    return text(f"""
  SELECT {COLUMNS}, NULL{columns}
  FROM (
    SELECT *, row_number() OVER in_order AS place,
      sum(octet_length(CAST(body AS text)) + coalesce(octet_length(CAST(opaque AS text)), 0)) OVER in_order AS bytes
    FROM (SELECT * FROM entries WHERE {condition} AND {visibility.VISIBLE_BY_ID} ORDER BY seq LIMIT :rows) AS following
    WINDOW in_order AS (ORDER BY seq)
  ) AS entries
  WHERE place = 1 OR bytes <= :bytes
  ORDER BY seq
""")  # noqa: S608 - our own text


_PAGE = paged("investigation = :id AND seq > :after AND seq <= :upto")

_AROUND = text(f"""
  WITH page_executions AS MATERIALIZED (
    SELECT name,
      (SELECT max(seq) FROM entries
       WHERE investigation = :id AND execution = name AND kind = 'Answered' AND seq <= :after) AS back_to,
      (SELECT min(seq) FROM entries
       WHERE investigation = :id AND execution = name AND kind IN ('Answered', 'Unanswered') AND seq > :last) AS up_to
    FROM unnest(CAST(:executions AS text[])) AS name
  )
  SELECT {COLUMNS}, NULL
  FROM entries JOIN page_executions ON execution = name
  WHERE investigation = :id AND seq <= :upto AND {visibility.VISIBLE_BY_ID}
    AND (seq BETWEEN back_to AND :after OR (seq > :last AND (up_to IS NULL OR seq < up_to)))
  ORDER BY seq
""")  # noqa: S608 - our own text

_KINDS = text(f"""
  SELECT id, kind, strategy FROM executions
  WHERE investigation = :id AND id = ANY(CAST(:executions AS text[])) AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text

_LAST_ENTRY = text(f"""
  SELECT log_seq FROM work JOIN investigations ON id = investigation WHERE investigation = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text

_CLAIM_BEFORE = text(f"""
  SELECT seq, claim FROM entries WHERE investigation = :id AND seq = :after AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text


_SEQ_MAX = 2**63 - 1
"""The highest possible number of an entry."""


async def log_page(
    database: databases.Database,
    investigation: UUID,
    *,
    after: int,
    limit: int,
    upto: int | None = None,
    size: int | None = None,
) -> LogPage | None:
    """Return up to `limit` entries after number `after`, up to number `upto`; None if there is no such log.

    `size` limits the bytes of the page after its first entry. The entries are decoded in a thread.
    """
    async with database.snapshot() as connection:
        last_entry = await connection.scalar(_LAST_ENTRY, {"id": investigation})
        if last_entry is None:
            return None
        values = {"id": investigation, "after": after, "upto": _SEQ_MAX if upto is None else upto}
        own = (await connection.execute(_PAGE, {**values, "rows": limit, "bytes": size or PAGE_BYTES})).all()
        last = own[-1].seq if own else after
        page_executions = sorted({row.execution for row in own if row.execution})
        at = {**values, "last": last, "executions": page_executions}
        around = (await connection.execute(_AROUND, at)).all() if page_executions else []
        claims = {row.seq: row.claim for row in await connection.execute(_CLAIM_BEFORE, values)}
        kinds = (await connection.execute(_KINDS, at)).all()
    log = await asyncio.to_thread(lambda: [from_row(row) for row in (*own, *around)])
    return LogPage(
        log=sorted(log, key=lambda row: row.seq),
        last=last,
        claims=claims,
        executions={row.id: timeline_events.ExecutionTraits(kind=row.kind, strategy=row.strategy) for row in kinds},
        more=last < (last_entry if upto is None else upto),
    )

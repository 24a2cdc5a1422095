"""The log of an investigation, decoded: all of it, or page by page with what its timeline events need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import TextClause, text

from tarsy.store.base import databases, visibility
from tarsy.transcript import entries, timeline_events

PAGE_BYTES = 4 * 1024 * 1024
"""Bytes of entries that are read at once for one page, beyond its first entry."""


COLUMNS = "seq, at, claim, kind, version, run, stage, execution, CAST(body AS text), CAST(opaque AS text)"
"""The columns of an entry, as `from_row` reads them; the final analysis follows, if it has one."""
_LOG = text(f"""
  SELECT {COLUMNS},
    (SELECT final_analysis FROM runs
     WHERE entries.kind = 'RunEnded' AND runs.investigation = entries.investigation AND number = entries.run)
  FROM entries WHERE investigation = :id AND {visibility.VISIBLE_BY_ID} ORDER BY seq
""")  # noqa: S608 - our own text


async def load(database: databases.Database, investigation: UUID) -> list[entries.Logged]:
    """The whole log, decoded, in order."""
    return [from_row(row) for row in await database.run(_LOG, id=investigation)]


def from_row(row: Any) -> entries.Logged:
    """An entry from its row."""
    seq, at, claim, kind, version, run, stage, execution, body, opaque, final_analysis = row
    stored = entries.Stored(kind=kind, version=version, body=body, opaque=opaque, final_analysis=final_analysis or "")
    return entries.Logged(
        seq=seq,
        at=at,
        claim=claim,
        run=run,
        stage=stage,
        execution=execution,
        entry=entries.decode(stored, run=run, stage=stage, execution=execution),
    )


@dataclass(frozen=True, kw_only=True)
class LogPage:
    """Some entries that follow each other, and what their events cannot be told without."""

    log: Sequence[entries.Logged]
    """In order. Beside the page's own entries there are earlier and later ones of the same executions: the answer whose
    calls an entry is about, and those that are about the calls of the page's last answers."""
    last: int
    """The number of the page's last entry; where it is empty, `after`."""
    claims: Mapping[int, int]
    """Which claim wrote the entry before the page, by its number, if there is one."""
    executions: Mapping[str, timeline_events.ExecutionTraits]
    """The kinds of the executions that its entries belong to."""
    more: bool
    """Whether entries follow."""


def paged(wanted: str, *, columns: str = "") -> TextClause:
    """The first `:rows` entries that are `wanted`, fewer where they are large: `:bytes` beyond the first.

    Their COLUMNS, and then `columns`.
    """
    return text(f"""
  SELECT {COLUMNS}, NULL{columns}
  FROM (
    SELECT *, row_number() OVER in_order AS place,
      sum(octet_length(CAST(body AS text)) + coalesce(octet_length(CAST(opaque AS text)), 0)) OVER in_order AS bytes
    FROM (SELECT * FROM entries WHERE {wanted} AND {visibility.VISIBLE_BY_ID} ORDER BY seq LIMIT :rows) AS following
    WINDOW in_order AS (ORDER BY seq)
  ) AS sized
  WHERE place = 1 OR bytes <= :bytes
  ORDER BY seq
""")  # noqa: S608 - our own text


_PAGE = paged("investigation = :id AND seq > :after AND seq <= :upto")

_AROUND = text(f"""
  WITH concerned AS MATERIALIZED (
    SELECT name,
      (SELECT max(seq) FROM entries
       WHERE investigation = :id AND execution = name AND kind = 'Answered' AND seq <= :after) AS back_to,
      (SELECT min(seq) FROM entries
       WHERE investigation = :id AND execution = name AND kind IN ('Answered', 'Unanswered') AND seq > :last) AS up_to
    FROM unnest(CAST(:executions AS text[])) AS name
  )
  SELECT {COLUMNS}, NULL
  FROM entries JOIN concerned ON execution = name
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


_LAST = 2**63 - 1
"""The greatest number that an entry could have."""


async def log_page(
    database: databases.Database,
    investigation: UUID,
    *,
    after: int,
    limit: int,
    upto: int | None = None,
    size: int | None = None,
) -> LogPage | None:
    """Up to `limit` entries behind number `after`, fewer where they are large; None where there is no such log.

    `upto`: the log as it stood when that was its last entry; `size`: the bytes of a page beyond its first entry. What
    is decoded, in a thread, is bounded by the page, not by the log.
    """
    async with database.snapshot() as connection:
        last_entry = await connection.scalar(_LAST_ENTRY, {"id": investigation})
        if last_entry is None:
            return None
        values = {"id": investigation, "after": after, "upto": _LAST if upto is None else upto}
        own = (await connection.execute(_PAGE, {**values, "rows": limit, "bytes": size or PAGE_BYTES})).all()
        last = own[-1].seq if own else after
        concerned = sorted({row.execution for row in own if row.execution})
        at = {**values, "last": last, "executions": concerned}
        around = (await connection.execute(_AROUND, at)).all() if concerned else []
        claims = {row.seq: row.claim for row in await connection.execute(_CLAIM_BEFORE, values)}
        kinds = (await connection.execute(_KINDS, at)).all()
    log = await asyncio.to_thread(_decoded, [*own, *around])
    return LogPage(
        log=sorted(log, key=lambda row: row.seq),
        last=last,
        claims=claims,
        executions={row.id: timeline_events.ExecutionTraits(kind=row.kind, strategy=row.strategy) for row in kinds},
        more=last < (last_entry if upto is None else upto),
    )


def _decoded(rows: Iterable[Any]) -> list[entries.Logged]:
    return [from_row(row) for row in rows]

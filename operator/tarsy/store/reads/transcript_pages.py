"""Reads of messages and calls from the log: page by page, or one call by its number.

The log is append-only, so consecutive pages, each by a statement of its own, belong to one log wherever they end:
nothing is held open for a slow reader. Messages count from 0 in their conversation, calls from 1 in the investigation;
columns count what stands before a page, without reading its bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility
from tarsy.store.reads import log_entries
from tarsy.transcript import entries

EXECUTION_BOUNDS = ("ExecutionStarted", "FellBack", "ExecutionEnded")
"""The kinds that say what an execution is, and how it ended."""

BATCH_ENTRIES = 500
"""Entries that are read at once for what tells the whole log."""
BATCH_BYTES = 1024 * 1024
"""The bytes of a page: there may be many clients, and slow ones."""

CallType = Literal["llm", "tool"]


@dataclass(frozen=True, kw_only=True)
class NumberedEntry:
    """An entry, and what there was before it."""

    logged: entries.Logged
    messages: int
    """The number of earlier messages in its execution's conversation."""
    model_calls: int
    tool_calls: int
    """Both of the whole investigation."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some entries that follow each other, of those that were asked for."""

    placed: Sequence[NumberedEntry]
    last: int
    """The number of the last one; where there is none, `after`."""
    more: bool
    """Whether some follow."""


@dataclass(frozen=True, kw_only=True)
class ExecutionOutline:
    """One execution in numbers: what it is, how far it is, and where in the log it stands."""

    id: str
    run: int
    stage: str
    kind: str
    index: int
    name: str
    provider: str
    """The one that it asks now, or asked last."""
    strategy: str
    seq: int
    """The entry that started it."""
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str
    ungrounded: bool
    """It concluded without having looked at anything, although it had tools."""
    iterations: int
    """Its model calls."""
    tool_calls: int
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    cost: float | None
    """None where no model call had a price."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The entry that tells of a call, and what its execution's log holds before it."""

    placed: NumberedEntry
    before: Sequence[entries.Logged]
    """The earlier entries of its execution, in order; of a tool call only the answer that asks for it, if any."""
    name: str
    """Its execution's."""
    asked_by: int
    """The number of the model call whose answer asks for this tool call; else 0."""


_END = text(f"SELECT log_seq FROM work WHERE investigation = :id AND {visibility.VISIBLE_BY_ID}")  # noqa: S608 - our own text

_WANTED = """investigation = :id AND seq > :after AND seq <= :upto
      AND (CAST(:kinds AS text[]) IS NULL OR kind = ANY(CAST(:kinds AS text[])))
      AND (CAST(:execution AS text) IS NULL OR execution = :execution)"""
_PAGE = log_entries.paged(_WANTED, columns=", messages, model_calls, tool_calls")
_FOLLOWS = text(f"SELECT EXISTS (SELECT FROM entries WHERE {_WANTED} AND {visibility.VISIBLE_BY_ID}) AS more")  # noqa: S608 - the same
_BETWEEN = text(f"""
  SELECT execution, CAST(sum(messages) AS bigint) AS messages, CAST(sum(model_calls) AS bigint) AS model_calls,
    CAST(sum(tool_calls) AS bigint) AS tool_calls
  FROM entries WHERE investigation = :id AND seq <= :after AND {visibility.VISIBLE_BY_ID} GROUP BY execution
""")  # noqa: S608 - our own text
_AMONG = text(f"""
  SELECT seq, execution, messages, model_calls, tool_calls FROM entries
  WHERE investigation = :id AND seq > :after AND seq <= :upto AND messages + model_calls + tool_calls > 0
    AND {visibility.VISIBLE_BY_ID}
  ORDER BY seq
""")  # noqa: S608 - our own text


async def last_entry(database: databases.Database, investigation: UUID) -> int | None:
    """The number of the log's last entry; None where there is no such log."""
    rows = await database.run(_END, id=investigation)
    return rows[0].log_seq if rows else None


async def page(
    database: databases.Database,
    investigation: UUID,
    *,
    kinds: Collection[str] | None = None,
    after: int,
    upto: int,
    limit: int,
    execution: str | None = None,
    size: int = log_entries.PAGE_BYTES,
) -> Page:
    """Up to `limit` entries of these kinds behind number `after`, and none behind `upto`.

    It has fewer where they are large: `size` bytes beyond its first entry. `kinds` None are all; `execution`: its own
    alone.
    """
    wanted = {"id": investigation, "upto": upto, "kinds": kinds and list(kinds), "execution": execution}
    rows = await database.run(_PAGE, **wanted, after=after, rows=limit, bytes=size)
    if not rows:
        return Page(placed=(), last=after, more=False)
    last = rows[-1].seq
    (follows,) = await database.run(_FOLLOWS, **wanted, after=last)
    before = await database.run(_BETWEEN, id=investigation, after=rows[0].seq - 1)
    among = await database.run(_AMONG, id=investigation, after=rows[0].seq - 1, upto=last)
    placed = await asyncio.to_thread(_placed, rows, before, among)
    return Page(placed=placed, last=last, more=follows.more)


def _placed(rows: Sequence[Any], before: Iterable[Any], among: Iterable[Any]) -> list[NumberedEntry]:
    """The entries of `rows`, numbered by what is `before` them, and `among` them and not asked for."""
    messages_before: dict[str, int] = {row.execution: row.messages for row in before}
    asked, called = sum(row.model_calls for row in before), sum(row.tool_calls for row in before)
    placed = []
    counting = iter(among)
    counted = next(counting, None)
    for row in rows:
        while counted is not None and counted.seq < row.seq:
            messages_before[counted.execution] = messages_before.get(counted.execution, 0) + counted.messages
            asked, called = asked + counted.model_calls, called + counted.tool_calls
            counted = next(counting, None)
        *columns, _, _, _ = row
        own = messages_before.get(row.execution, 0)
        placed.append(
            NumberedEntry(logged=log_entries.from_row(columns), messages=own, model_calls=asked, tool_calls=called)
        )
    return placed


async def walk(
    database: databases.Database,
    investigation: UUID,
    *,
    kinds: Collection[str] | None = None,
    after: int = 0,
    upto: int,
    execution: str | None = None,
) -> AsyncIterator[Sequence[NumberedEntry]]:
    """All entries of these kinds from behind number `after` up to `upto`, in pages; arguments as `page` has them."""
    more = True
    while more:
        entries_page = await page(
            database,
            investigation,
            kinds=kinds,
            after=after,
            upto=upto,
            execution=execution,
            limit=BATCH_ENTRIES,
            size=BATCH_BYTES,
        )
        if entries_page.placed:
            yield entries_page.placed
        after, more = entries_page.last, entries_page.more


_NAMES = text(f"""
  SELECT id, name FROM executions
  WHERE investigation = :id AND id = ANY(CAST(:executions AS text[])) AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text


async def execution_names(
    database: databases.Database, investigation: UUID, executions: Iterable[str]
) -> Mapping[str, str]:
    """Return the names of these executions among their siblings, by id."""
    rows = await database.run(_NAMES, id=investigation, executions=sorted(set(executions)))
    return {row.id: row.name for row in rows}


_NAME = text(f"SELECT namespace || '/' || name AS name FROM investigations WHERE id = :id AND {visibility.VISIBLE}")  # noqa: S608 - our own text


async def investigation_name(database: databases.Database, investigation: UUID) -> str:
    """An investigation's namespace and name, with a slash between them; "" where there is none."""
    rows = await database.run(_NAME, id=investigation)
    return rows[0].name if rows else ""


_OUTLINES = text(f"""
  WITH ended AS (
    SELECT execution, max(at) AS at, bool_or(body->>'ungrounded' = 'true') AS ungrounded FROM entries
    WHERE investigation = :id AND seq <= :upto AND kind = 'ExecutionEnded' GROUP BY execution
  )
  SELECT executions.id, executions.run, executions.stage, executions.kind, executions.index, executions.name, provider,
    strategy, seq, entries.at AS started_at, ended.at AS ended_at,
    CASE WHEN ended.at IS NOT NULL THEN outcome END AS outcome,
    CASE WHEN ended.at IS NULL THEN '' ELSE error END AS error, coalesce(ungrounded, false) AS ungrounded, iterations,
    executions.tool_calls, input_tokens, output_tokens, thinking_tokens, total_tokens, cost
  FROM entries
  JOIN executions ON executions.investigation = entries.investigation AND executions.id = entries.execution
  LEFT JOIN ended ON ended.execution = entries.execution
  WHERE entries.investigation = :id AND seq <= :upto AND entries.kind = 'ExecutionStarted'
    AND {visibility.VISIBLE_BY_ID}
    AND (CAST(:runs AS integer[]) IS NULL OR executions.run = ANY(CAST(:runs AS integer[])))
  ORDER BY executions.run, min(seq) OVER (PARTITION BY executions.run, executions.stage),
    executions.kind <> 'agent', executions.index, seq
  LIMIT :rows
""")  # noqa: S608 - our own text


async def outlines(
    database: databases.Database, investigation: UUID, *, upto: int, limit: int, runs: Sequence[int] | None = None
) -> list[ExecutionOutline]:
    """The executions that had started by entry `upto`, `limit` at most; what they took is as of now.

    By run, stage as it began, and place in it. `runs`: those of these runs alone.
    """
    rows = await database.run(_OUTLINES, id=investigation, upto=upto, rows=limit, runs=runs and list(runs))
    return [ExecutionOutline(**row) for row in rows]


_COUNTED = {"llm": "model_calls", "tool": "tool_calls"}
_FOUND = {
    kind: text(f"""
      SELECT seq, execution FROM (
        SELECT seq, execution, {column} AS told, sum({column}) OVER (ORDER BY seq) AS so_far
        FROM entries WHERE investigation = :id AND {visibility.VISIBLE_BY_ID}
      ) AS counted
      WHERE told > 0 AND so_far >= CAST(:number AS bigint) AND so_far - told < CAST(:number AS bigint)
    """)  # noqa: S608 - our own text
    for kind, column in _COUNTED.items()
}
_OF_EXECUTION = text(f"""
  SELECT {log_entries.COLUMNS}, NULL
  FROM entries
  WHERE investigation = :id AND execution = :execution AND seq BETWEEN :first AND :last AND {visibility.VISIBLE_BY_ID}
  ORDER BY seq
""")  # noqa: S608 - the same
_ASKED = text(f"""
  WITH asked AS (
    SELECT max(seq) AS seq FROM entries
    WHERE investigation = :id AND execution = :execution AND kind = 'Answered' AND seq < :before
      AND {visibility.VISIBLE_BY_ID}
  )
  SELECT seq, (
    SELECT CAST(sum(model_calls) AS bigint) FROM entries WHERE investigation = :id AND entries.seq <= asked.seq
  ) AS number
  FROM asked
""")  # noqa: S608 - our own text


async def call(database: databases.Database, investigation: UUID, *, kind: CallType, number: int) -> Call | None:
    """The call of that number, from 1; None where there is none."""
    matches = await database.run(_FOUND[kind], id=investigation, number=number)
    if not matches:
        return None
    seq, execution = matches[0].seq, matches[0].execution
    own = await page(database, investigation, after=seq - 1, upto=seq, limit=1)
    first, asked_by = 0, 0
    last = seq - 1
    if kind == "tool":
        (asked,) = await database.run(_ASKED, id=investigation, execution=execution, before=seq)
        first, last, asked_by = asked.seq or 0, asked.seq or 0, asked.number or 0
    rows = await database.run(_OF_EXECUTION, id=investigation, execution=execution, first=first, last=last)
    called = await execution_names(database, investigation, [execution])
    return Call(
        placed=own.placed[0],
        before=await asyncio.to_thread(lambda: [log_entries.from_row(row) for row in rows]),
        name=called.get(execution, ""),
        asked_by=asked_by,
    )


_WHOLE = text(f"""
  SELECT whole FROM tool_results
  WHERE investigation = :id AND execution = :execution AND call_id = :call_id AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text


async def full_result(database: databases.Database, investigation: UUID, execution: str, call_id: str) -> str | None:
    """All of the result of a tool call, masked; None where the log has all of it, or there is no such call."""
    rows = await database.run(_WHOLE, id=investigation, execution=execution, call_id=call_id)
    return rows[0].whole if rows else None


_SUMMARY = text(f"""
  SELECT {log_entries.COLUMNS}, NULL
  FROM entries
  WHERE investigation = :id AND execution = :execution AND seq > :after AND kind = 'ToolSummarised'
    AND body ->> 'call_id' = :call_id AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text


async def result_summary(
    database: databases.Database, investigation: UUID, answered: entries.Logged, call_id: str
) -> str | None:
    """Return the summary of one of the results in an entry; None if there is none so far."""
    wanted = {"id": investigation, "execution": answered.execution, "after": answered.seq, "call_id": call_id}
    logged_entries = [log_entries.from_row(row).entry for row in await database.run(_SUMMARY, **wanted)]
    return next(
        (entry.text for entry in logged_entries if isinstance(entry, entries.ToolSummarised) and entry.text), None
    )


_UNKNOWN = text(f"""
  SELECT seq, kind, version FROM entries
  WHERE investigation = :id AND seq <= :upto AND NOT kind || '/' || version = ANY(CAST(:known AS text[]))
    AND {visibility.VISIBLE_BY_ID}
  ORDER BY seq LIMIT :rows
""")  # noqa: S608 - our own text


async def unknown_entries(
    database: databases.Database, investigation: UUID, *, upto: int, limit: int
) -> list[tuple[int, entries.Unreadable]]:
    """The first entries whose kind or version this program does not know, by their numbers."""
    decodable = [f"{kind}/{version}" for kind, version in entries.DECODERS]
    rows = await database.run(_UNKNOWN, id=investigation, upto=upto, known=decodable, rows=limit)
    return [(row.seq, _unknown(row.kind, row.version)) for row in rows]


def _unknown(kind: str, version: int) -> entries.Unreadable:
    read = entries.decode(entries.Stored(kind=kind, version=version, body="{}"), run=0, stage="", execution="")
    assert isinstance(read, entries.Unreadable)  # noqa: S101 - it has no decoder
    return read

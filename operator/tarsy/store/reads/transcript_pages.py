"""Messages and calls of an investigation, from its log: page by page, or one call by its number.

The log is append-only, so consecutive pages fit together although each is read by a statement of its own: nothing stays
open for a slow reader. Messages are numbered from 0 in their execution, calls from 1 in the investigation. The numbers
of earlier messages and calls come from columns, without reading bodies.
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
from tarsy.transcript import entries, entry_versions, line_excerpts

EXECUTION_BOUNDS = ("ExecutionStarted", "FellBack", "ExecutionEnded")
"""The kinds of entries that describe an execution and its end."""

BATCH_ENTRIES = 500
"""Entries of a page in a walk over the whole log."""
BATCH_BYTES = 1024 * 1024
"""Bytes of a page in a walk: there may be many slow clients."""

CallType = Literal["llm", "tool"]


@dataclass(frozen=True, kw_only=True)
class NumberedEntry:
    """An entry, and the numbers of earlier messages and calls."""

    logged: entries.Logged
    messages: int
    """The number of earlier messages of its execution."""
    model_calls: int
    """The number of earlier model calls of the investigation."""
    tool_calls: int
    """The number of earlier tool calls of the investigation."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Consecutive entries of a selection."""

    entries: Sequence[NumberedEntry]
    last: int
    """The number of the last entry; `after`, if there is none."""
    more: bool
    """Whether entries follow."""


@dataclass(frozen=True, kw_only=True)
class ExecutionOutline:
    """One execution: its settings, its state, its counts and its position in the log."""

    id: str
    run: int
    stage: str
    kind: str
    index: int
    name: str
    provider: str
    """The provider of the latest request."""
    strategy: str
    seq: int
    """The number of the entry that started it."""
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str
    ungrounded: bool
    """Whether it concluded without a tool call although it had tools."""
    iterations: int
    """The number of model calls."""
    tool_calls: int
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    cost: float | None
    """None if no model call had a price."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The entry of a call, and the earlier entries of its execution."""

    entry: NumberedEntry
    before: Sequence[entries.Logged]
    """The earlier entries in order; for a tool call only the answer that requests it, if there is one."""
    name: str
    """The name of the execution."""
    requested_by: int
    """The number of the model call that requests this tool call; else 0."""


_END = text(f"SELECT log_seq FROM work WHERE investigation = :id AND {visibility.VISIBLE_BY_ID}")  # noqa: S608 - our own text

_SELECTED = """investigation = :id AND seq > :after AND seq <= :upto
      AND (CAST(:kinds AS text[]) IS NULL OR kind = ANY(CAST(:kinds AS text[])))
      AND (CAST(:execution AS text) IS NULL OR execution = :execution)"""
_PAGE = log_entries.paged(_SELECTED, columns=", messages, model_calls, tool_calls")
_FOLLOWS = text(f"SELECT EXISTS (SELECT FROM entries WHERE {_SELECTED} AND {visibility.VISIBLE_BY_ID}) AS more")  # noqa: S608 - the same
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
    """Return the number of the log's last entry; None if there is no such log."""
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
    """Return up to `limit` entries after number `after`, up to number `upto`, of the given kinds and execution.

    `kinds` and `execution` None select all. `size` limits the bytes of the page after its first entry.
    """
    selection = {"id": investigation, "upto": upto, "kinds": kinds and list(kinds), "execution": execution}
    rows = await database.run(_PAGE, **selection, after=after, rows=limit, bytes=size)
    if not rows:
        return Page(entries=(), last=after, more=False)
    last = rows[-1].seq
    (follows,) = await database.run(_FOLLOWS, **selection, after=last)
    before = await database.run(_BETWEEN, id=investigation, after=rows[0].seq - 1)
    among = await database.run(_AMONG, id=investigation, after=rows[0].seq - 1, upto=last)
    numbered = await asyncio.to_thread(_numbered, rows, before, among)
    return Page(entries=numbered, last=last, more=follows.more)


def _numbered(rows: Sequence[Any], before: Iterable[Any], among: Iterable[Any]) -> list[NumberedEntry]:
    """Return the entries of `rows` with their numbers.

    `before` has the counts of the entries before the page, `among` those of all entries in its range.
    """
    messages_before: dict[str, int] = {row.execution: row.messages for row in before}
    model_calls, tool_calls = sum(row.model_calls for row in before), sum(row.tool_calls for row in before)
    numbered = []
    counting = iter(among)
    counted = next(counting, None)
    for row in rows:
        while counted is not None and counted.seq < row.seq:
            messages_before[counted.execution] = messages_before.get(counted.execution, 0) + counted.messages
            model_calls += counted.model_calls
            tool_calls += counted.tool_calls
            counted = next(counting, None)
        *columns, _, _, _ = row
        numbered.append(
            NumberedEntry(
                logged=log_entries.from_row(columns),
                messages=messages_before.get(row.execution, 0),
                model_calls=model_calls,
                tool_calls=tool_calls,
            )
        )
    return numbered


async def walk(
    database: databases.Database,
    investigation: UUID,
    *,
    kinds: Collection[str] | None = None,
    after: int = 0,
    upto: int,
    execution: str | None = None,
) -> AsyncIterator[Sequence[NumberedEntry]]:
    """Yield all entries of a selection, page by page; the arguments are those of `page`."""
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
        if entries_page.entries:
            yield entries_page.entries
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
    """Return an investigation's namespace/name; "" if there is none."""
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
    """Return up to `limit` executions that had started by entry `upto`, of these `runs`; the counts are as of now.

    They are sorted by run, by the beginning of their stage, and by their position in it.
    """
    rows = await database.run(_OUTLINES, id=investigation, upto=upto, rows=limit, runs=runs and list(runs))
    return [ExecutionOutline(**row) for row in rows]


_CALL_COLUMNS = {"llm": "model_calls", "tool": "tool_calls"}
_ENTRY_OF_CALL = {
    kind: text(f"""
      SELECT seq, execution FROM (
        SELECT seq, execution, {column} AS calls, sum({column}) OVER (ORDER BY seq) AS so_far
        FROM entries WHERE investigation = :id AND {visibility.VISIBLE_BY_ID}
      ) AS counted
      WHERE calls > 0 AND so_far >= CAST(:number AS bigint) AND so_far - calls < CAST(:number AS bigint)
    """)  # noqa: S608 - our own text
    for kind, column in _CALL_COLUMNS.items()
}
_OF_EXECUTION = text(f"""
  SELECT {log_entries.COLUMNS}, NULL
  FROM entries
  WHERE investigation = :id AND execution = :execution AND seq BETWEEN :first AND :last AND {visibility.VISIBLE_BY_ID}
  ORDER BY seq
""")  # noqa: S608 - the same
_REQUEST_OF_CALL = text(f"""
  WITH request AS (
    SELECT max(seq) AS seq FROM entries
    WHERE investigation = :id AND execution = :execution AND kind = 'Answered' AND seq < :before
      AND {visibility.VISIBLE_BY_ID}
  )
  SELECT seq, (
    SELECT CAST(sum(model_calls) AS bigint) FROM entries WHERE investigation = :id AND entries.seq <= request.seq
  ) AS number
  FROM request
""")  # noqa: S608 - our own text


async def call(database: databases.Database, investigation: UUID, *, kind: CallType, number: int) -> Call | None:
    """Return the call of that number, from 1; None if there is none."""
    matches = await database.run(_ENTRY_OF_CALL[kind], id=investigation, number=number)
    if not matches:
        return None
    seq, execution = matches[0].seq, matches[0].execution
    own = await page(database, investigation, after=seq - 1, upto=seq, limit=1)
    first, requested_by = 0, 0
    last = seq - 1
    if kind == "tool":
        (request,) = await database.run(_REQUEST_OF_CALL, id=investigation, execution=execution, before=seq)
        first, last, requested_by = request.seq or 0, request.seq or 0, request.number or 0
    rows = await database.run(_OF_EXECUTION, id=investigation, execution=execution, first=first, last=last)
    called = await execution_names(database, investigation, [execution])
    return Call(
        entry=own.entries[0],
        before=await asyncio.to_thread(lambda: [log_entries.from_row(row) for row in rows]),
        name=called.get(execution, ""),
        requested_by=requested_by,
    )


_WHOLE = text(f"""
  SELECT whole, rest FROM tool_results
  WHERE investigation = :id AND execution = :execution AND call_id = :call_id AND {visibility.VISIBLE_BY_ID}
""")  # noqa: S608 - our own text


async def full_result(
    database: databases.Database,
    investigation: UUID,
    execution: str,
    call_id: str,
    *,
    shown: str = "",
    excerpt: line_excerpts.Excerpt | None = None,
) -> str | None:
    """Return the full result of a tool call, masked; None if the log has all of it, or it is deleted.

    `shown` is the text that the log has, if that is an `excerpt`.
    """
    rows = await database.run(_WHOLE, id=investigation, execution=execution, call_id=call_id)
    if not rows or rows[0].rest is None:
        return rows[0].whole if rows else None
    if excerpt is None:  # of the request for a summary, which was made of the excerpt
        return None
    return await asyncio.to_thread(line_excerpts.whole, shown, excerpt, rows[0].rest)


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
    """Return the first entries whose kind or version this program does not know, with their numbers."""
    decodable = [f"{kind}/{version}" for kind, version in entry_versions.DECODERS]
    rows = await database.run(_UNKNOWN, id=investigation, upto=upto, known=decodable, rows=limit)
    unknown = []
    for row in rows:
        stored = entry_versions.Stored(kind=row.kind, version=row.version, body="{}")
        entry = entry_versions.decode(stored, run=0, stage="", execution="")
        assert isinstance(entry, entries.Unreadable)  # noqa: S101 - it has no decoder
        unknown.append((row.seq, entry))
    return unknown

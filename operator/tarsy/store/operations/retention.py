"""Retention: what is old is hidden, then purged, then forgotten, in small batches.

- A transcript is hidden (`deleted_at`) when its period is over, and purged (`purge`) when `Rule.purge` is over.
- Full texts of tool results go earlier.
- The empty row of a purged investigation goes, with its `work` row and the identity of its alert, once its object has
  left the cluster and its alert is no longer remembered.
- Rows of the audit, and pins of MCP servers that are gone, go by periods of their own.

A hold keeps an investigation, and its audit, from all of that.

Each batch is one statement. It locks what it changes, passes over what others have locked, and finds what is due by an
index that has nothing else, in the index's order. So its cost grows neither with the tables nor with what is due. The
other tables are read row by row, in subqueries that no plan can turn into a join: Postgres takes a join for cheap that
reads a table whole, while its statistics are old or most of a table is due. What is due is a function of the rows
alone: a process may die between any two batches, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import text

from tarsy.config.model import platforms
from tarsy.store.base import batch_limits, cooldowns, databases, visibility
from tarsy.store.operations import purge

Kind = Literal["transcripts", "purges", "transcript_rows", "tool_results", "investigations", "audit", "tool_pins"]
"""The kinds of what is due: transcripts to hide, to mark as purged, and so on."""
READ_SECONDS = 5.0
"""The limit of each count of what is due."""
_SEEN_EVERY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The periods after which something goes; 0 keeps it for ever."""

    transcripts: timedelta
    """From the end of an investigation or of its last question, or its restoration, to its deletion.

    A chain's own period counts instead.
    """
    purge: timedelta
    """From the deletion of an investigation to its purge; 0 is at once."""
    tool_results: timedelta
    """From the same end to the deletion of the full texts of its tool results."""
    audit: timedelta
    """From a change to the deletion of its audit row."""
    tool_pins: timedelta
    """From the last time that the platform file had an MCP server to the deletion of its pins."""
    memory: timedelta
    """From the end of a purged investigation to the deletion of its row: cool-downs and limits need it."""
    window: timedelta
    """The time that an alert episode is remembered."""
    servers: Collection[str] = ()
    """The MCP servers in the platform file."""


def rule(platform: platforms.Platform) -> Rule:
    """Return the rule of a platform file."""
    periods, ingest = platform.retention, platform.ingest
    cooldown = max(ingest.cooldown, cooldowns.MIN) * max(cooldowns.FACTORS)
    return Rule(
        transcripts=periods.transcripts,
        purge=periods.purge,
        tool_results=periods.tool_results,
        audit=periods.audit,
        tool_pins=periods.tool_pins,
        memory=max(ingest.dedup_window, cooldown, cooldowns.DAY),
        window=ingest.dedup_window,
        servers=tuple(platform.mcp_servers),
    )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch of what was due."""

    kind: Kind
    count: int


_KEPT = f"known.ended_at IS NOT NULL AND {visibility.VISIBLE} AND hold IS NULL"
_HAS_OWN_DAYS = f"SELECT min(transcript_retention_days) FROM investigations AS known WHERE {_KEPT}"  # noqa: S608
_PERIODS = text(f"""
  WITH RECURSIVE periods (days) AS (
    ({_HAS_OWN_DAYS} AND transcript_retention_days > 0)
    UNION ALL
    SELECT ({_HAS_OWN_DAYS} AND transcript_retention_days > days) FROM periods WHERE days IS NOT NULL
  )
  SELECT days FROM periods WHERE days IS NOT NULL
""")  # noqa: S608 - our own texts
"""The periods of chains: one step in the index for each."""
_READ, _LOCK, _LOCK_TO_DELETE = "OFFSET 0", "FOR NO KEY UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED"
"""The end of a subquery by which a plan cannot join its table: it only reads its row, or locks it."""


def _with_work(access: str) -> str:
    """Return the investigations `known` with their rows of `work`, which have ended."""
    return f"""investigations AS known CROSS JOIN LATERAL (
      SELECT run FROM work WHERE investigation = known.id AND state = 'ended' {access}
    ) AS work"""  # noqa: S608 - our own texts


_QUESTION = """LEFT JOIN LATERAL (
      SELECT ended_at FROM runs WHERE investigation = known.id AND number = run AND run > 0 OFFSET 0
    ) AS question ON true"""
_AGED = """known.ended_at < now() - CAST(:age AS interval)
      AND greatest(known.ended_at, question.ended_at, restored_at) < now() - CAST(:age AS interval)"""
_DAYS = {False: "transcript_retention_days IS NULL", True: "transcript_retention_days = :days"}
_TRANSCRIPTS = {own: f"{_QUESTION} WHERE {_KEPT} AND {days} AND {_AGED}" for own, days in _DAYS.items()}
_DELETED = """WHERE deleted_at IS NOT NULL AND purged_at IS NULL AND hold IS NULL
      AND deleted_at <= now() - CAST(:age AS interval)"""
_PURGED = f"investigations WHERE {purge.PURGED}"
_WITH_RESULTS = f"""{_with_work(_READ)} {_QUESTION}
    WHERE known.ended_at IS NOT NULL AND purged_at IS NULL AND results_deleted_at IS NULL AND hold IS NULL
      AND {_AGED}"""
_HAS_RESULTS = "EXISTS (SELECT FROM tool_results WHERE investigation = known.id OFFSET 0)"
_FORGOTTEN = """WHERE emptied_at IS NOT NULL AND gone_at IS NOT NULL
      AND known.ended_at < now() - CAST(:memory AS interval)
      AND NOT EXISTS (
        SELECT FROM identities
        WHERE identities.investigation = known.id AND first_seen > now() - CAST(:window AS interval)
        OFFSET 0
      )"""
_AUDITED = """audit AS known
    WHERE at < now() - CAST(:age AS interval)
      AND NOT EXISTS (
        SELECT FROM investigations AS its WHERE its.id = known.investigation AND hold IS NOT NULL OFFSET 0
      )"""
_PINNED = (
    "tool_pins AS known WHERE seen_at < now() - CAST(:age AS interval) AND server <> ALL (CAST(:servers AS text[]))"
)

_HIDE = {
    own: text(f"""
  WITH due AS MATERIALIZED (
    SELECT known.id FROM {_with_work(_LOCK)} {due}
    ORDER BY transcript_retention_days, known.ended_at LIMIT {batch_limits.ROWS} FOR NO KEY UPDATE OF known SKIP LOCKED
  ), queue_rows AS (
    UPDATE work SET stale = false, revision = revision + 1 WHERE investigation = ANY(ARRAY(SELECT id FROM due))
  )
  UPDATE investigations SET deleted_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM due))
  RETURNING 1 AS hidden
""")  # noqa: S608 - our own texts
    for own, due in _TRANSCRIPTS.items()
}
_MARK = text(f"""
  WITH candidates AS MATERIALIZED (
    SELECT known.id, known.deleted_at, CAST(
      pg_column_size(alert_data) + coalesce(pg_column_size(words), 0) + coalesce(pg_column_size(chain), 0) AS bigint
    ) AS size
    FROM {_with_work(_LOCK)} {_DELETED}
    ORDER BY known.deleted_at LIMIT {batch_limits.ROWS} FOR NO KEY UPDATE OF known SKIP LOCKED
  ), due AS ({batch_limits.limited("id", order="deleted_at, id")}
  ), {purge.MARK}
  RETURNING 1 AS marked
""")  # noqa: S608 - our own texts
_DELETE_RESULTS = purge.batch(
    f"""SELECT known.id FROM {_WITH_RESULTS}
    ORDER BY known.ended_at LIMIT {batch_limits.ROWS} FOR NO KEY UPDATE OF known SKIP LOCKED""",  # noqa: S608
    tables=("tool_results",),
    emptied="results_deleted_at",
)
_FORGET = text(f"""
  WITH due AS MATERIALIZED (
    SELECT known.id FROM {_with_work(_LOCK_TO_DELETE)} {_FORGOTTEN}
    ORDER BY known.ended_at LIMIT {batch_limits.ROWS} FOR UPDATE OF known SKIP LOCKED
  )
  DELETE FROM investigations WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING 1 AS deleted
""")  # noqa: S608 - our own texts
_DELETE_AUDIT = text(f"""
  WITH due AS MATERIALIZED (
    SELECT known.id FROM {_AUDITED} ORDER BY at LIMIT {batch_limits.ROWS} FOR UPDATE OF known SKIP LOCKED
  )
  DELETE FROM audit WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING 1 AS deleted
""")  # noqa: S608 - our own texts
_SEE_PINS = text("""
  UPDATE tool_pins SET seen_at = now()
  WHERE server = ANY (CAST(:servers AS text[])) AND seen_at < now() - CAST(:every AS interval)
""")
_DELETE_PINS = text(f"DELETE FROM {_PINNED} RETURNING 1 AS deleted")  # noqa: S608 - our own texts


async def batches(database: databases.Database, rule: Rule) -> AsyncIterator[Batch]:
    """Hide, purge and delete what is due, and yield after each batch."""
    for step in _STEPS:
        while (batch := await step(database, rule)).count:
            yield batch


async def _hide(database: databases.Database, rule: Rule) -> Batch:
    hidden = 0
    if rule.transcripts:
        hidden = len(await database.run(_HIDE[False], age=rule.transcripts))
    for row in () if hidden else await database.run(_PERIODS):
        hidden = len(await database.run(_HIDE[True], days=row.days, age=timedelta(days=row.days)))
        if hidden:
            break
    return Batch(kind="transcripts", count=hidden)


async def _mark(database: databases.Database, rule: Rule) -> Batch:
    return Batch(kind="purges", count=len(await database.run(_MARK, age=rule.purge)))


async def _empty(database: databases.Database, _: Rule) -> Batch:
    return Batch(kind="transcript_rows", count=await purge.delete_batch(database))


async def _delete_results(database: databases.Database, rule: Rule) -> Batch:
    count = 0
    if rule.tool_results:
        (row,) = await database.run(_DELETE_RESULTS, age=rule.tool_results)
        count = row.number
    return Batch(kind="tool_results", count=count)


async def _forget(database: databases.Database, rule: Rule) -> Batch:
    count = len(await database.run(_FORGET, memory=rule.memory, window=rule.window))
    return Batch(kind="investigations", count=count)


async def _delete_audit(database: databases.Database, rule: Rule) -> Batch:
    count = len(await database.run(_DELETE_AUDIT, age=rule.audit)) if rule.audit else 0
    return Batch(kind="audit", count=count)


async def _delete_pins(database: databases.Database, rule: Rule) -> Batch:
    servers = list(rule.servers)
    await database.run(_SEE_PINS, servers=servers, every=_SEEN_EVERY)
    count = len(await database.run(_DELETE_PINS, age=rule.tool_pins, servers=servers)) if rule.tool_pins else 0
    return Batch(kind="tool_pins", count=count)


_STEPS = (_hide, _mark, _empty, _delete_results, _forget, _delete_audit, _delete_pins)


async def due(database: databases.Database, rule: Rule) -> dict[Kind, int]:
    """Return how much is due now: transcripts, investigations with rows or results to delete, rows.

    Raises StoreDownError, or TooLongError if a count takes longer than READ_SECONDS.
    """
    # Deleted investigations have ended: their rows of `work` are not read.
    periods = [timedelta(days=row.days) for row in await database.run_within(READ_SECONDS, _PERIODS)]
    with_work = _with_work(_READ)
    hidden = [
        await _count(database, f"{with_work} {_TRANSCRIPTS[True]}", days=period.days, age=period) for period in periods
    ]
    if rule.transcripts:
        hidden.append(await _count(database, f"{with_work} {_TRANSCRIPTS[False]}", age=rule.transcripts))
    counts: dict[Kind, int] = {
        "transcripts": sum(hidden),
        "purges": await _count(database, f"investigations AS known {_DELETED}", age=rule.purge),
        "transcript_rows": await _count(database, _PURGED),
        "investigations": await _count(
            database, f"investigations AS known {_FORGOTTEN}", memory=rule.memory, window=rule.window
        ),
    }
    if rule.tool_results:
        counts["tool_results"] = await _count(database, f"{_WITH_RESULTS} AND {_HAS_RESULTS}", age=rule.tool_results)
    if rule.audit:
        counts["audit"] = await _count(database, _AUDITED, age=rule.audit)
    if rule.tool_pins:
        counts["tool_pins"] = await _count(database, _PINNED, age=rule.tool_pins, servers=list(rule.servers))
    return counts


async def _count(database: databases.Database, due: str, **values: Any) -> int:
    statement = text(f"SELECT count(*) AS number FROM {due}")  # noqa: S608 - our own texts
    (row,) = await database.run_within(READ_SECONDS, statement, **values)
    number: int = row.number
    return number

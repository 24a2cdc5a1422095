"""A million investigations, of which nine in ten are purged: lists, claims and purges, beside a database without them.

Both databases end with the same investigations. In one of them the others were made too, and then purged by the code
that retention runs. Each operation is measured in both, in turns: right after the purge, and once more after a vacuum.

Times depend on what else the machine does; the pages that an operation's statements read do not. Both are told.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy
from tarsy.store.base import databases, schema
from tarsy.store.operations import retention
from tarsy.store.queue import work
from tarsy.store.reads import listing
from tarsy.transcript import record
from tarsy_dev import errors, postgres

NAMESPACES = 100
KEPT = 0.1
"""The share of the investigations that stay."""
SAMPLES = 30
PURGES = 3
"""The samples of a purge."""
QUEUED = 2000
PURGED = 2000
AT_ONCE = 50_000
"""Investigations that a statement makes."""
DAY = timedelta(days=1)
RULE = retention.Rule(
    transcripts=90 * DAY,
    purge=7 * DAY,
    tool_results=30 * DAY,
    audit=400 * DAY,
    tool_pins=90 * DAY,
    memory=7 * DAY,
    window=7 * DAY,
)
LARGE = ("entries", "executions", "identities", "investigations", "runs", "stages", "work")
"""The tables that a plan must not read from end to end."""

# The old ones ended 100 days ago and were deleted 8 days ago; each has an alert of its own, a stage and four entries.
_INVESTIGATIONS = """
  INSERT INTO investigations (id, namespace, namespace_uid, name, generation, author, alert_type, alert_data, severity,
    fingerprint, alert_status, chain_name, chain_namespace, chain_generation, chain_hash, chain_version, chain,
    stage_names, stage_agents, admitted_at, ended_at, ending, gone_at, deleted_at, words)
  SELECT CAST(md5(kind || made) AS uuid), 'team-' || made % 100, 'uid-' || made % 100, kind || made, 1,
    'person-' || made % 40, 'AlertType' || made % 30, repeat(md5(made || ''), 12), 'critical',
    left(md5(kind || made), 16), 'firing', 'chain-' || made % 12, 'team-' || made % 100, 1, md5(made % 12 || ''), 1,
    '{}', '{look}', '{1}', at, at + interval '5 min', endings[1 + made % 5], now(),
    CASE WHEN kind = 'old' THEN now() - interval '8 days' END,
    to_tsvector('simple', 'pod restarting failed rare' || made % 10000)
  FROM generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS made
  CROSS JOIN (
    VALUES (CAST(:kind AS text), ARRAY['Completed', 'Completed', 'CompletedWithErrors', 'Failed', 'TimedOut'])
  ) AS chosen (kind, endings)
  CROSS JOIN LATERAL (
    SELECT now() - make_interval(days => CASE kind WHEN 'old' THEN 100 ELSE 1 END, secs => made) AS at
  ) AS moment
"""
_MADE = """SELECT CAST(md5(CAST(:kind AS text) || made) AS uuid) AS id
    FROM generate_series(CAST(:first AS integer), CAST(:last AS integer)) AS made"""
_BESIDE = (
    "INSERT INTO work (investigation, state, stale, log_seq) SELECT id, 'ended', false, 4 FROM made",
    """INSERT INTO runs (investigation, number, kind, started_at, ended_at, ending, reason, final_analysis, summary)
    SELECT made.id, 0, 'investigation', admitted_at, ended_at, ending, 'StagesCompleted', repeat('found ', 50), 'short'
    FROM made JOIN investigations ON investigations.id = made.id""",
    """INSERT INTO stages (investigation, run, name, started_at, ended_at, outcome)
    SELECT id, 0, 'look', now(), now(), 'Completed' FROM made""",
    """INSERT INTO executions (investigation, id, run, stage, kind, index, parent, name, provider, total_tokens, cost)
    SELECT id, left(CAST(id AS text), 16), 0, 'look', 'agent', 0, '', 'KubernetesAgent', 'only', 1000, 0.1 FROM made""",
    """INSERT INTO entries (investigation, seq, claim, kind, version, run, stage, execution, body)
    SELECT id, seq, 1, 'Answered', 1, 0, 'look', 'one', json_build_object('text', repeat(md5(CAST(id AS text)), 8))
    FROM made, generate_series(1, 4) AS seq""",
    """INSERT INTO identities (namespace, fingerprint, starts_ms, investigation, first_seen)
    SELECT namespace, fingerprint, 1, made.id, admitted_at
    FROM made JOIN investigations ON investigations.id = made.id""",
)
_QUEUE = """
  WITH given AS (
    SELECT CAST(md5('queued' || number) AS uuid) AS id, number
    FROM generate_series(1, CAST(:count AS integer)) AS number
  ), added AS (
    INSERT INTO investigations (id, namespace, namespace_uid, name, generation, alert_type, alert_data, chain_name,
      chain_namespace, chain, stage_names, stage_agents)
    SELECT id, 'team-' || number % 100, 'uid-' || number % 100, 'queued-' || number, 1, 'T', 'x',
      'chain-' || number % 12, 'team-' || number % 100, '{}', '{look}', '{1}'
    FROM given
  ), runs AS (INSERT INTO runs (investigation, number, kind) SELECT id, 0, 'investigation' FROM given)
  INSERT INTO work (investigation, state, queue)
  SELECT id, 'queued', 'team-' || number % 100 || '/chain-' || number % 12 FROM given
"""
_QUEUES = "INSERT INTO queues (queue) SELECT queue FROM work WHERE queue <> '' GROUP BY queue ON CONFLICT DO NOTHING"
_DUE = """
  WITH due AS (SELECT CAST(md5('kept' || made) AS uuid) AS id FROM generate_series(1, CAST(:count AS integer)) AS made),
  remembered AS (
    UPDATE identities SET first_seen = now() - interval '100 days' FROM due WHERE investigation = due.id
  )
  UPDATE investigations SET deleted_at = now() - interval '8 days', ended_at = now() - interval '100 days'
  FROM due WHERE investigations.id = due.id
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The time of one operation in both databases, whose samples take turns."""

    name: str
    milliseconds: float
    """In the database that never had more than the kept ones."""
    purged: float
    """How many times as long it takes in the other one, right after the purge."""
    vacuumed: float
    """How many times as long after a vacuum, which autovacuum does by itself."""
    pages: int
    """The pages that its statements read in the database that never had more than the kept ones, after a vacuum."""
    pages_purged: int
    """The pages that they read in the other one, right after the purge."""
    pages_vacuumed: int
    """The pages that they read in the other one after a vacuum."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The result."""

    rows: int
    purge_seconds: float
    """The time in which all others were purged, without the pauses of the duty."""
    operations: Sequence[Figure]
    scanned: Sequence[str]
    """The plans that read a large table from end to end: the operation and the line of its plan."""


async def figures(rows: int) -> Figures:
    """Measure with `rows` investigations, on a Postgres of its own."""
    kept = int(rows * KEPT)
    with (
        tempfile.TemporaryDirectory(prefix="tarsy-bench-") as folder,
        postgres.Server(log=Path(folder) / "postgres.log", durable=False) as server,
    ):
        async with (
            _filled(server, "fresh", kept=kept, old=0) as fresh,
            _filled(server, "purged", kept=kept, old=rows - kept) as purged,
        ):
            began = time.perf_counter()
            async for _ in retention.batches(purged, RULE):
                pass
            purge_seconds = time.perf_counter() - began
            left = (await purged.run(sqlalchemy.text("SELECT count(*) AS number FROM investigations")))[0].number
            if left != kept:
                raise errors.Error(f"{left} investigations are left after the purge, not {kept}")
            before, scanned_before = await _measure(fresh, purged)
            for database in (fresh, purged):
                await _outside(database, "VACUUM ANALYZE")
            after, scanned_after = await _measure(fresh, purged)
    return Figures(
        rows=rows,
        purge_seconds=purge_seconds,
        operations=[
            Figure(
                name=name,
                milliseconds=after[name].times[0],
                purged=before[name].times[1] / before[name].times[0],
                vacuumed=after[name].times[1] / after[name].times[0],
                pages=after[name].pages[0],
                pages_purged=before[name].pages[1],
                pages_vacuumed=after[name].pages[1],
            )
            for name in after
        ],
        scanned=[f"right after the purge, {line}" for line in scanned_before] + scanned_after,
    )


@asynccontextmanager
async def _filled(server: postgres.Server, name: str, *, kept: int, old: int) -> AsyncIterator[databases.Database]:
    database = databases.Database(server.create_database(name), statement_seconds=600)
    await schema.migrate(database)
    for kind, count in (("old", old), ("kept", kept)):
        for first in range(1, count + 1, AT_ONCE):
            values = {"kind": kind, "first": first, "last": min(first + AT_ONCE - 1, count)}
            await database.run(sqlalchemy.text(f"{_INVESTIGATIONS} RETURNING 1"), **values)
            for statement in _BESIDE:
                await database.run(sqlalchemy.text(f"WITH made AS ({_MADE}) {statement} RETURNING 1"), **values)
    await _outside(database, "VACUUM ANALYZE")
    yield database
    await database.close()


async def _outside(database: databases.Database, statement: str) -> None:
    """Run a statement that no transaction may have."""
    connection = await databases.connect(database.url, command_timeout=600)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


Operation = Callable[[databases.Database], Awaitable[object]]


def _operations() -> dict[str, Operation]:
    teams = {f"team-{number}": f"uid-{number}" for number in range(NAMESPACES)}
    one, every = listing.Query(namespaces={"team-7": "uid-7"}), listing.Query(namespaces=teams)
    rare = listing.Search(text="rare77")

    def listed(query: listing.Query) -> Operation:
        return lambda database: listing.page(database, query, limit=25)

    return {
        "list of one namespace": listed(one),
        "list of 100 namespaces": listed(every),
        "list of one namespace by name": listed(replace(one, key="name")),
        "search in one namespace": listed(replace(one, search=rare)),
        "search in 100 namespaces": listed(replace(every, search=rare)),
        "list of deleted ones": listed(replace(every, deleted=True)),
        "count of what retention has to do": lambda database: retention.due(database, RULE),
        "claim": lambda database: work.claim(database, owner=uuid.uuid4(), lease=20 * DAY, build=record.build()),
    }


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One operation in both databases: the one without the purged investigations first."""

    times: Sequence[float]
    """The milliseconds of the fastest try."""
    pages: Sequence[int]


async def _measure(fresh: databases.Database, purged: databases.Database) -> tuple[dict[str, _Sample], list[str]]:
    """Measure each operation in both databases; return the plans that read a large table whole, too."""
    samples: dict[str, _Sample] = {}
    scanned: list[str] = []
    both = (fresh, purged)
    for database in both:
        await database.run(sqlalchemy.text(f"{_QUEUE} RETURNING 1"), count=QUEUED)
        await database.run(sqlalchemy.text(f"{_QUEUES} RETURNING 1"))
    for name, operation in _operations().items():
        plans = [await _plans(database, operation) for database in both]
        scanned += [f"{name}: {line}" for line in plans[1].scans]
        times = await _best(operation, both, samples=SAMPLES)
        samples[name] = _Sample(times=times, pages=[plan.pages for plan in plans])
    for database in both:
        await database.run(sqlalchemy.text("DELETE FROM investigations WHERE name LIKE 'queued-%' RETURNING 1"))
    name = f"purge of {PURGED}"
    times = await _best(_purge, both, samples=PURGES, prepare=_make_due, restore=_make_again)
    plans = [await _plans(database, _purge, prepare=_make_due, restore=_make_again) for database in both]
    scanned += [f"{name}: {line}" for line in plans[1].scans]
    samples[name] = _Sample(times=times, pages=[plan.pages for plan in plans])
    return samples, scanned


async def _purge(database: databases.Database) -> None:
    async for _ in retention.batches(database, RULE):
        pass


async def _make_due(database: databases.Database) -> None:
    await database.run(sqlalchemy.text(f"{_DUE} RETURNING 1"), count=PURGED)


async def _make_again(database: databases.Database) -> None:
    for statement in (_INVESTIGATIONS, *(f"WITH made AS ({_MADE}) {beside}" for beside in _BESIDE)):
        await database.run(sqlalchemy.text(f"{statement} RETURNING 1"), kind="kept", first=1, last=PURGED)


async def _nothing(_: databases.Database) -> None:
    """Prepare and restore nothing."""


async def _best(
    operation: Operation,
    both: Sequence[databases.Database],
    *,
    samples: int,
    prepare: Operation = _nothing,
    restore: Operation = _nothing,
) -> list[float]:
    """Return the milliseconds of the fastest sample in each database: others on the machine slow down the rest."""
    best = [float("inf")] * len(both)
    for _ in range(samples):
        for index, database in enumerate(both):
            await prepare(database)
            began = time.perf_counter()
            await operation(database)
            best[index] = min(best[index], (time.perf_counter() - began) * 1000)
            await restore(database)
    return best


@dataclass(frozen=True, kw_only=True)
class _Plans:
    """What the statements of an operation read."""

    pages: int
    scans: Sequence[str]
    """The large tables that are read from end to end."""


async def _plans(
    database: databases.Database, operation: Operation, *, prepare: Operation = _nothing, restore: Operation = _nothing
) -> _Plans:
    """Run the operation once, then explain its statements, in the same state, in a transaction that is rolled back."""
    await prepare(database)
    with _recorded(database) as statements:
        await operation(database)
    await restore(database)
    await prepare(database)
    pages, scans = 0, []
    async with database.begin() as connection:
        for statement, values in statements:
            explained = sqlalchemy.text(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}")
            plan = (await connection.execute(explained, values)).scalar_one()[0]["Plan"]
            pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            scans += [node for node in _scans(plan) if node not in scans]
        await connection.rollback()
    await operation(database)
    await restore(database)
    return _Plans(pages=pages, scans=scans)


Statements = list[tuple[str, dict[str, Any]]]


@contextmanager
def _recorded(database: databases.Database) -> Iterator[Statements]:
    """Collect the statements that run meanwhile, with their values."""
    statements: Statements = []
    run, run_within = database.run, database.run_within

    async def record_run(statement: sqlalchemy.TextClause, **values: Any) -> Sequence[databases.Row]:
        statements.append((statement.text, values))
        return await run(statement, **values)

    async def record_run_within(
        seconds: float, statement: sqlalchemy.TextClause, **values: Any
    ) -> Sequence[databases.Row]:
        statements.append((statement.text, values))
        return await run_within(seconds, statement, **values)

    database.run, database.run_within = record_run, record_run_within  # type: ignore[method-assign]
    try:
        yield statements
    finally:
        database.run, database.run_within = run, run_within  # type: ignore[method-assign]


def _scans(plan: dict[str, Any]) -> Iterator[str]:
    """Yield the large tables that a plan reads from end to end."""
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in LARGE:
        yield f"{plan['Relation Name']} ({plan['Actual Rows']:g} rows)"
    for child in plan.get("Plans", ()):
        yield from _scans(child)

"""Measures of the database on a real Postgres, and the gauges that one replica makes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from support import queue, scrapes
from tarsy.config.model import platforms
from tarsy.controller import database_gauges
from tarsy.store.base import databases
from tarsy.store.operations import measures, storage
from tarsy.store.queue import work
from tarsy.telemetry import metrics
from tarsy.transcript import admission
from tarsy_dev import patience

NOT_FOUND = admission.Refusal(reason="ChainNotFound", message="no chain")


def exported() -> str:
    text, _ = metrics.render("")
    return text.decode()


def made(
    database: databases.Database, leads_until: Callable[[], float] = lambda: time.monotonic() + 3600
) -> database_gauges.DatabaseGauges:
    return database_gauges.DatabaseGauges(database, platform=platforms.Platform, leads_until=leads_until)


async def test_investigations_are_counted_by_phase_namespace_chain_and_reason(database: databases.Database) -> None:
    running, suspended, cancelled, gone = [await queue.admit(database) for _ in range(4)]
    await queue.admit(database, chain=NOT_FOUND)
    await queue.execute(database, "UPDATE work SET priority = 1 WHERE investigation = :id", id=running)
    await queue.claimed(database)
    await queue.execute(database, "UPDATE work SET suspend = true WHERE investigation = :id", id=suspended)
    await work.cancel(database, cancelled, why="user")
    await work.gone(database, gone)
    waiting, elsewhere = [await queue.admit(database) for _ in range(2)]
    await queue.execute(database, "UPDATE investigations SET namespace = 'team-a' WHERE id = :id", id=elsewhere)
    old = "UPDATE work SET queued_at = queued_at - interval '10 min' WHERE investigation = ANY(:ids)"
    await queue.execute(database, old, ids=[waiting, suspended])
    read = await measures.read(database)
    assert read.investigations == {
        ("Running", "tarsy", "pod-crash", ""): 1,
        ("Suspended", "tarsy", "pod-crash", ""): 1,
        ("Queued", "tarsy", "pod-crash", ""): 1,
        ("Queued", "team-a", "pod-crash", ""): 1,
        ("Cancelled", "tarsy", "pod-crash", "CancelledByUser"): 1,
        ("Failed", "tarsy", "", "ChainNotFound"): 1,
    }
    assert read.queue["team-a", "pod-crash"].count == 1
    assert read.queue["tarsy", "pod-crash"].count == 1
    assert 600 <= read.queue["tarsy", "pod-crash"].oldest_seconds < 700
    assert read.table_bytes.keys() >= {"entries", "work", "investigations", "tool_results", "audit"}
    assert all(size > 0 for size in read.table_bytes.values())


async def test_an_end_of_yesterday_is_not_counted(database: databases.Database) -> None:
    ended = await queue.admit(database)
    await work.cancel(database, ended, why="user")
    assert sum((await measures.read(database)).investigations.values()) == 1
    await queue.execute(database, "UPDATE investigations SET ended_at = ended_at - interval '25 h'")
    assert (await measures.read(database)).investigations == {}


async def test_claims_without_commit_are_counted_and_takeovers_counted_separately(database: databases.Database) -> None:
    await queue.admit(database)
    first = await queue.claimed(database)
    await queue.let_leases_pass(database)
    read = await measures.read(database)
    assert (read.queue["tarsy", "pod-crash"].count, read.attempts) == (1, {("tarsy", "pod-crash"): 1}), (
        "without a worker it waits"
    )
    second = await queue.claimed(database)
    await work.release(database, second)
    third = await queue.claimed(database)
    assert [claim.is_takeover for claim in (first, second, third)] == [False, True, False]
    assert first.waited == second.waited == third.waited
    assert 0 <= first.waited < 60
    assert (await measures.read(database)).attempts == {("tarsy", "pod-crash"): 2}


async def test_gauges_are_exported_only_by_the_lease_holder_while_it_holds(database: databases.Database) -> None:
    await queue.admit(database)
    until = 0.0
    gauges = made(database, lambda: until)
    running = asyncio.create_task(gauges.run())
    try:
        await asyncio.sleep(0)
        assert scrapes.total(exported(), "tarsy_queue_length") is None
        until = time.monotonic() + 3600
        async with patience.limit():
            while scrapes.total(exported(), "tarsy_queue_length") is None:  # noqa: ASYNC110 - a scrape is a look
                await asyncio.sleep(0.05)
        assert scrapes.total(exported(), "tarsy_investigations", phase="Queued", chain="pod-crash") == 1
        until = 0.0
        async with patience.limit():
            while scrapes.total(exported(), "tarsy_queue_length") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_gauges_are_not_exported_if_the_database_cannot_be_read(database: databases.Database) -> None:
    gauges = made(database)
    await gauges.read()
    assert scrapes.total(exported(), "tarsy_table_bytes")
    away = databases.Database("postgresql://tarsy@127.0.0.1:1/tarsy")
    try:
        await made(away).read()
    finally:
        await away.close()
    assert scrapes.total(exported(), "tarsy_table_bytes") is None
    assert scrapes.total(exported(), "tarsy_database_errors_total")


async def test_storage_report_finds_the_oldest_rows_over_all_namespaces(database: databases.Database) -> None:
    empty = await storage.read_oldest(database)
    assert (empty.admitted_at, empty.deleted_at, empty.changed_at) == (None, None, None)
    ids = [await queue.admit(database) for _ in range(4)]
    for days, (identity, namespace) in enumerate(zip(ids, "abbc", strict=True)):
        change = """
          UPDATE investigations SET namespace = :namespace,
            admitted_at = CAST('2026-11-20+00' AS timestamptz) - make_interval(days => :days)
          WHERE id = :id
        """
        await queue.execute(database, change, id=identity, namespace=namespace, days=days)
    oldest = await storage.read_oldest(database)
    assert (oldest.admitted_at, oldest.deleted_at) == (datetime(2026, 11, 17, tzinfo=UTC), None)
    delete = "UPDATE investigations SET deleted_at = '2026-11-21+00' WHERE namespace = 'c'"
    await queue.execute(database, delete)
    oldest = await storage.read_oldest(database)
    assert oldest.admitted_at == datetime(2026, 11, 18, tzinfo=UTC)
    assert oldest.deleted_at == datetime(2026, 11, 21, tzinfo=UTC)

"""Purging, and what all others make of what is left; on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import queue, stories
from tarsy.store import log
from tarsy.store.base import databases
from tarsy.store.intake import episodes, queueing
from tarsy.store.operations import expiry, feedback, open_investigations, purge
from tarsy.store.queue import questions, work
from tarsy.store.reads import changes, listing, log_entries, stage_rows, summaries, transcript_pages
from tarsy.transcript import entries

FINGERPRINT = "6eb8c03418906421"
START = datetime(2026, 11, 21, tzinfo=UTC)
SECRET = "opensesame"
"""Stands in all that was said."""
SAID: dict[str, Any] = {
    "alertData": f"web-0 restarts {SECRET}",
    "severity": SECRET,
    "runbookURL": f"https://{SECRET}",
    "labels": {"pod": SECRET},
    "author": queue.CALLER.who,
    "fingerprint": FINGERPRINT,
    "startsAt": START,
}
NEW: dict[str, Any] = {"fingerprint": FINGERPRINT, "namespace": "tarsy", "starts_at": START}


async def ended(database: databases.Database) -> UUID:
    """An investigation of an alert that has ended, of which everything is filled in."""
    chain = queue.chain(stages=[{"name": SECRET, "agent": "KubernetesAgent"}], onResolved="Cancel")
    identity = await queue.admit(database, await queue.received(database, queue.subject(**SAID)), chain=chain)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(
        stories.stage_started(SECRET),
        stories.started(stage=SECRET),
        asked := stories.asks("k8s.pods_log", text=SECRET),
        stories.ran(asked, text=SECRET, full_text=SECRET * 3),
        stories.ended(error=SECRET),
        stories.stage_ended(SECRET, message=SECRET),
        entries.RunEnded(ending="Failed", reason="Any", message=SECRET, final_analysis=SECRET, summary=SECRET),
    )
    by = queue.CALLER
    assert await feedback.give(database, identity, verdict="wrong", cause=SECRET, note=SECRET, by=by) is None
    for name, object_name in (("its", "web-crash"), ("other", "another")):
        where = {"namespace": "tarsy", "object_name": object_name, "name": name}
        await queueing.keep_large(database, **where, data=SECRET)
    await queue.execute(database, "UPDATE large_alerts SET created_at = created_at - interval '1 minute'")
    joined = f"UPDATE identities SET alert_type = '{SECRET}', alert_json = '{SECRET}'"  # noqa: S608 - our own text
    await queue.execute(database, joined)
    return identity


async def everything(database: databases.Database) -> dict[str, str]:
    """The rows of each table, as text."""
    tables = await queue.rows(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows_by_table = {}
    for (table,) in tables:
        rows = await queue.rows(database, f"SELECT CAST(one AS text) FROM {table} AS one")  # noqa: S608 - a table's name
        rows_by_table[table] = "\n".join(row for (row,) in rows)
    return rows_by_table


async def test_purge_deletes_all_text_and_keeps_the_row(database: databases.Database) -> None:
    identity = await ended(database)
    asking = await questions.ask(database, identity, SECRET, max_queued=9, by=queue.CALLER)
    assert asking == 1
    assert await purge.purge(database, identity, by=queue.CALLER) == "asked"
    answering = await queue.opened(database, await queue.claimed(database))
    assert await purge.purge(database, identity, by=queue.CALLER) == "asked"
    await answering.commit(entries.RunEnded(run=1, ending="Completed", reason="Answered", final_analysis=SECRET))
    tables_with_secret = {table for table, rows in (await everything(database)).items() if SECRET in rows}
    transcript = {"runs", "stages", "executions", "entries", "tool_results", "feedback"}
    assert tables_with_secret == {*transcript, "investigations", "identities", "large_alerts"}

    assert await purge.purge(database, identity, by=queue.CALLER) is None
    left = await everything(database)
    assert {table for table, rows in left.items() if SECRET in rows} == {"large_alerts"}, "another object's"
    assert left["large_alerts"].count(SECRET) == 1
    for table in transcript:
        assert left[table] == ""
    sql = "SELECT name, fingerprint, ending, ended_at > admitted_at, purged_at >= ended_at, author FROM investigations"
    assert await queue.rows(database, sql) == [("web-crash", FINGERPRINT, "Failed", True, True, "")]
    audit_sql = "SELECT action, who, address, namespace, name FROM audit WHERE investigation = :id ORDER BY at"
    by = (queue.CALLER.who, queue.CALLER.address, "tarsy", "web-crash")
    assert await queue.rows(database, audit_sql, id=identity) == [
        ("create", *by),
        ("feedback", *by),
        ("chat", *by),
        ("purge", *by),
    ]


async def test_open_investigation_is_not_purged(database: databases.Database) -> None:
    identity = await queue.admit(database)
    for _ in range(2):  # it waits, it runs
        assert await purge.purge(database, identity, by=queue.CALLER) == "running"
        claim = await queue.claim(database)
    assert claim is None
    assert await purge.purge(database, UUID(int=5), by=queue.CALLER) == "unknown"
    assert (await queue.summary(database, identity)).phase == "Running"
    assert await queue.rows(database, "SELECT 1 FROM audit") == []


async def test_purged_investigation_is_hidden_but_still_known(database: databases.Database) -> None:
    """Through every read and write that may meet what is left of it."""
    identity = await ended(database)
    assert await purge.purge(database, identity, by=queue.CALLER) is None
    assert await summaries.location(database, identity) is None
    assert await summaries.load(database, identity) is None
    assert await summaries.details(database, identity) is None
    assert await log_entries.log_page(database, identity, after=0, limit=5) is None
    assert await log_entries.load(database, identity) == []
    assert await questions.subject(database, identity) is None
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=queue.CALLER) == "unknown"
    assert await questions.cancel(database, identity, by=queue.CALLER) == "unknown"
    assert await work.cancel(database, identity, why="user", by=queue.CALLER) is None
    assert await summaries.location(database, identity, deleting=True) is not None
    assert await purge.purge(database, identity, by=queue.CALLER) is None, "its object may be left"
    await work.gone(database, identity)
    assert await summaries.location(database, identity, deleting=True) is None
    assert await purge.purge(database, identity, by=queue.CALLER) == "unknown"
    assert await work.sweep(database) == 0
    assert await queue.claim(database) is None
    assert await expiry.expired(database, namespace="tarsy", limit=9) == []
    assert await open_investigations.list_open(database, namespace="tarsy") == []
    assert await open_investigations.list_with_question(database, namespace="tarsy") == []
    assert await open_investigations.ended_uids(database, {str(identity): 1}) == {str(identity)}

    assert await queueing.is_known(database, identity), "or the watch would admit its object, which a finalizer keeps"
    again = queue.subject(**SAID)
    again = again.model_copy(update={"metadata": again.metadata.model_copy(update={"uid": str(identity)})})
    assert not await queueing.admit(database, queue.admission(again))
    changed = again.model_copy(update={"metadata": again.metadata.model_copy(update={"generation": 2})})
    await work.observe(database, changed)
    assert await queue.repeat(database, **NEW) == identity, "for its cool-down"
    assert await episodes.resolve(database, **NEW) == episodes.Reference(id=identity, name="web-crash")
    assert await work.stale(database, limit=9) == [], "no status shows it"
    assert await queue.rows(database, "SELECT duplicates, alert_status FROM investigations") == [(1, "resolved")]


async def test_transcript_marked_as_purged_cannot_be_read_although_its_rows_exist(database: databases.Database) -> None:
    """Each read has the condition; none leans on rows that a purge has deleted."""
    identity = await ended(database)
    (started,) = await stage_rows.executions(database, identity)
    answered = await transcript_pages.call(database, identity, kind="tool", number=1)
    assert answered is not None
    assert isinstance(answered.entry.logged.entry, entries.ToolsAnswered)
    called = answered.entry.logged.entry.runs[0].call.id
    assert await transcript_pages.full_result(database, identity, started.id, called) is not None
    await queue.execute(database, "UPDATE investigations SET purged_at = clock_timestamp()")
    assert await summaries.location(database, identity) is None
    assert await summaries.load(database, identity) is None
    assert await summaries.details(database, identity) is None
    assert await log_entries.log_page(database, identity, after=0, limit=5) is None
    assert await log_entries.load(database, identity) == []
    assert await transcript_pages.last_entry(database, identity) is None
    assert not [page async for page in transcript_pages.walk(database, identity, upto=99)]
    assert await transcript_pages.outlines(database, identity, upto=99, limit=9) == []
    assert await transcript_pages.execution_names(database, identity, [started.id]) == {}
    assert await transcript_pages.investigation_name(database, identity) == ""
    assert await transcript_pages.call(database, identity, kind="tool", number=1) is None
    assert await transcript_pages.full_result(database, identity, started.id, called) is None
    assert await transcript_pages.unknown_entries(database, identity, upto=99, limit=9) == []
    assert await stage_rows.stage_progress(database, [identity]) == {}
    assert await stage_rows.executions(database, identity) == []
    assert await stage_rows.conclusions(database, identity, [started], upto=99, length=9) == {}
    assert await changes.positions(database, [identity]) == {}
    query = listing.Query(namespaces={"tarsy": ""})
    assert (await listing.page(database, query, limit=9)).items == []
    assert await questions.subject(database, identity) is None
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=queue.CALLER) == "unknown"


async def test_twenty_concurrent_purges_purge_once(database: databases.Database) -> None:
    identity = await ended(database)
    purges = (purge.purge(database, identity, by=queue.CALLER) for _ in range(20))
    assert await asyncio.gather(*purges) == [None] * 20
    assert await queue.rows(database, "SELECT count(*) FROM audit WHERE action = 'purge'") == [(1,)]


async def test_object_left_by_a_purge_expires_at_once(database: databases.Database) -> None:
    identity, other = await ended(database), await queue.admit(database, queue.subject("another"))
    expired: dict[str, Any] = {"namespace": "tarsy", "limit": 9}
    assert await expiry.expired(database, **expired) == []
    assert await purge.purge(database, identity, by=queue.CALLER) is None
    left = expiry.Expired(id=identity, name="web-crash", generation=None)
    assert await expiry.expired(database, **expired) == [left]
    await work.gone(database, identity)
    assert await expiry.expired(database, **expired) == []
    assert (await queue.summary(database, other)).phase == "Queued"


@pytest.mark.parametrize("order", ["ask purge", "purge ask", "ask purge purge", "purge purge ask", "purge ask purge"])
async def test_concurrent_question_and_purge_exclude_each_other(database: databases.Database, order: str) -> None:
    """The first to come waits first for the row, which another transaction has, and gets it first."""
    identity = await queue.admit(database)
    await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
    under_way = []
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("SELECT 1 FROM work FOR UPDATE"))
        for number, write in enumerate(order.split(), 1):
            writing: Coroutine[Any, Any, object] = (
                questions.ask(database, identity, SECRET, max_queued=9, by=queue.CALLER)
                if write == "ask"
                else purge.purge(database, identity, by=queue.CALLER)
            )
            under_way.append(asyncio.create_task(writing))
            await queue.blocked(database, number)
    outcomes = await asyncio.gather(*under_way)
    actions = await queue.rows(database, "SELECT action FROM audit WHERE investigation = :id", id=identity)
    entry_rows = await queue.rows(database, "SELECT 1 FROM entries WHERE investigation = :id", id=identity)
    purges = order.split().count("purge")
    if order.startswith("ask"):
        assert actions == [("chat",)]
        assert outcomes == [1, *["asked"] * purges]
        assert entry_rows
    else:
        assert actions == [("purge",)]
        assert sorted(map(str, outcomes)) == [*["None"] * purges, "unknown"]
        assert entry_rows == []


async def test_entries_committed_while_a_purge_waits_are_purged(database: databases.Database) -> None:
    await queue.admit(database)
    claim = await queue.claimed(database)
    end = log.prepare(stories.run_ended(final_analysis=SECRET))
    statement, values = log.append_statement(
        [end], investigation=claim.investigation, log_seq=0, token=claim.token, where=lambda _: (0, "")
    )
    async with database.begin() as connection:
        await connection.execute(statement, values)
        purging = asyncio.create_task(purge.purge(database, claim.investigation, by=queue.CALLER))
        await queue.blocked(database)
    assert await purging is None
    assert not [table for table, rows in (await everything(database)).items() if SECRET in rows]

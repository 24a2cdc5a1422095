"""The queue and the fence, on a real Postgres."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import sqlalchemy
from support import queue, stories
from support.database import behind_proxy
from tarsy.config.model import providers
from tarsy.store.base import databases, schema, tables
from tarsy.store.fleet import rate_limits
from tarsy.store.intake import queueing
from tarsy.store.operations import open_investigations
from tarsy.store.queue import heartbeats, journal, work
from tarsy.transcript import admission, entries, ports
from tarsy_dev import children, patience
from tarsy_dev import postgres as launcher

STARTED = stories.stage_started()
COMMITS = 200


async def test_ended_investigations_of_a_seen_generation_are_settled(database: databases.Database) -> None:
    uids = [str(await queue.admit(database)) for _ in range(3)]
    for uid in uids[:2]:
        await work.cancel(database, uuid.UUID(uid), why="user")
    generations = dict(zip([*uids, str(uuid.uuid4())], [1, 2, 1, 1], strict=True))
    assert await open_investigations.ended_uids(database, generations) == set(), "no status is written"
    await queue.execute(database, "UPDATE work SET stale = false")
    assert await open_investigations.ended_uids(database, generations) == {uids[0]}
    assert await open_investigations.ended_uids(database, {}) == set()


async def test_an_investigation_is_admitted_once_and_keeps_the_chain_it_was_admitted_with(
    database: databases.Database,
) -> None:
    subject = queue.subject()
    assert await queueing.admit(database, queue.admission(subject))
    assert not await queueing.admit(database, queue.admission(subject, queue.chain(description="edited")))
    assert await queue.rows(database, "SELECT state, attempts, chain_generation FROM work, runs, investigations") == [
        ("queued", 0, 3)
    ]
    snapshot = (await queue.opened(database, await queue.claimed(database))).record.snapshot
    assert snapshot.chain == queue.CHAIN.spec
    assert snapshot.alert_data == "web-0 restarts"


async def test_a_refused_investigation_has_ended_and_is_never_claimed(database: databases.Database) -> None:
    subject = queue.subject()
    refusal = admission.Refusal(reason="ChainNotFound", message="No chain found for alert type 'kubernetes'.")
    assert await queueing.admit(database, queue.admission(subject, refusal))
    assert not await queueing.admit(database, queue.admission(subject))
    summary = await queue.summary(database, subject.metadata.uid)
    assert (summary.state, summary.ending, summary.reason, summary.message) == (
        "ended",
        "Failed",
        refusal.reason,
        refusal.message,
    )
    assert summary.ended_at is not None
    assert summary.chain_name is None
    assert await queue.claim(database) is None
    assert await open_investigations.list_open(database, namespace="tarsy") == []
    (logged,) = await queue.log(database, subject.metadata.uid)
    assert logged.entry == entries.RunEnded(ending="Failed", reason=refusal.reason, message=refusal.message)
    assert await queue.rows(database, "SELECT log_seq FROM work") == [(1,)]


async def test_claim_does_not_wait_for_a_locked_row(database: databases.Database) -> None:
    held, free = [await queue.admit(database) for _ in range(2)]
    async with patience.limit(), database.begin() as connection:
        locked = sqlalchemy.select(tables.work).where(tables.work.c.investigation == held).with_for_update()
        await connection.execute(locked)
        assert (await queue.claimed(database)).investigation == free
        with pytest.raises(work.BusyError):
            await queue.claim(database)
    assert (await queue.claimed(database)).investigation == held
    assert await queue.claim(database) is None


async def test_expired_lease_is_taken_over_and_the_old_token_cannot_write(database: databases.Database) -> None:
    await queue.admit(database)
    first = await queue.claimed(database)
    late = await queue.opened(database, first)
    await late.commit(STARTED)
    await queue.let_leases_pass(database)
    second = await queue.claimed(database)
    assert second.investigation == first.investigation
    assert second.token != first.token
    assert (second.attempts, second.log_seq) == (2, 1)
    with pytest.raises(ports.LeaseLostError):
        await late.commit(stories.stage_ended())
    await work.release(database, first)
    assert await queue.claim(database) is None
    assert (await queue.opened(database, second)).record.stages["analysis"].ended is None


async def test_expired_lease_can_write_until_a_takeover(database: databases.Database) -> None:
    await queue.admit(database)
    only = await queue.claimed(database)
    await queue.let_leases_pass(database)
    await (await queue.opened(database, only)).commit(STARTED)
    assert (await queue.claimed(database)).log_seq == 1


async def test_released_claim_costs_no_attempt_and_the_run_goes_on(database: databases.Database) -> None:
    await queue.admit(database)
    first = await queue.claimed(database)
    journal = await queue.opened(database, first)
    await journal.commit(STARTED)
    await work.release(database, first)
    with pytest.raises(ports.LeaseLostError):
        await journal.commit(stories.stage_ended())
    second = await queue.claimed(database)
    assert (second.attempts, second.log_seq) == (1, 1)
    assert (await queue.opened(database, second)).record == journal.record


async def test_ended_investigation_is_neither_claimed_nor_released(database: databases.Database) -> None:
    await queue.admit(database)
    only = await queue.claimed(database)
    await (await queue.opened(database, only)).commit(stories.run_ended())
    await queue.let_leases_pass(database)
    await work.release(database, only)
    assert await queue.claim(database) is None


async def test_heartbeat_renews_held_claims_and_reports_lost_claims(
    database: databases.Database, migrated_url: str
) -> None:
    for _ in range(3):
        await queue.admit(database)
    held, _, lost = [await queue.claimed(database) for _ in range(3)]
    await queue.execute(
        database, "UPDATE work SET lease_until = clock_timestamp() WHERE token = :lost", lost=lost.token
    )
    await queue.claimed(database)
    heartbeat = heartbeats.Heartbeat(migrated_url, lease=timedelta(hours=1))
    try:
        tokens = {claim.investigation: claim.token for claim in (held, lost)}
        assert await heartbeat.beat(tokens) == {held.token: None}
        assert await heartbeat.beat({}) == {}
    finally:
        await heartbeat.close()
    renewed = "SELECT investigation FROM work WHERE lease_until > clock_timestamp() + interval '30 min'"
    assert await queue.rows(database, renewed) == [(held.investigation,)]


async def test_heartbeat_without_a_database_raises_store_down(postgres: launcher.Access) -> None:
    (nobody,) = children.free_ports(1)
    heartbeat = heartbeats.Heartbeat(postgres.url().replace(f":{postgres.port}/", f":{nobody}/"), lease=queue.LEASE)
    with pytest.raises(databases.StoreDownError):
        await heartbeat.beat({uuid.uuid4(): uuid.uuid4()})


async def test_investigation_is_stale_until_its_latest_revision_was_projected(database: databases.Database) -> None:
    only = await queue.admit(database)
    assert await work.stale(database, limit=10) == [only]
    before = await queue.summary(database, only)
    await queue.claimed(database)
    claimed = await queue.summary(database, only)
    assert claimed.revision > before.revision
    await work.projected(database, only, revision=before.revision)
    assert await work.stale(database, limit=10) == [only]
    await work.projected(database, only, revision=claimed.revision)
    assert await work.stale(database, limit=10) == []
    await work.projected(database, only, revision=before.revision)
    assert await work.stale(database, limit=10) == []


@pytest.mark.parametrize("lost", [b"INSERT INTO entries", b"analysis"], ids=["before it happens", "after it happened"])
async def test_commit_is_written_once_even_if_a_reply_is_lost(
    database: databases.Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch, lost: bytes
) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.0)
    await queue.admit(database)
    held = await queue.claimed(database)
    ends = (stories.stage_ended(outcome="Failed"), stories.run_ended("Failed", "StagesFailed"))
    async with behind_proxy(migrated_url) as (far, between):
        writing = await queue.opened(far, held)
        between.lose_reply(lambda sent: lost in sent)
        async with patience.limit():
            await writing.commit(STARTED)
            assert between.lost_replies == 1
            between.lose_reply(lambda sent: b"StagesFailed" in sent)
            await writing.commit(*ends)
        assert between.lost_replies == 2
    assert await queue.rows(database, "SELECT log_seq, state FROM work") == [(3, "ended")]
    assert await queue.rows(database, "SELECT name FROM stages") == [("analysis",)]
    assert [logged.entry for logged in await queue.log(database, held.investigation)] == [STARTED, *ends]


async def test_commit_with_a_lost_reply_is_not_written_again_after_a_takeover(
    database: databases.Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.0)
    await queue.admit(database)
    first = await queue.claimed(database)
    async with behind_proxy(migrated_url) as (far, between), patience.limit():
        late = await queue.opened(far, first)

        def is_commit(sent: bytes) -> bool:
            if b"analysis" not in sent:  # a value of the statement: this is its execution
                return False
            between.refuse()  # the retries, until the takeover has happened
            return True

        between.lose_reply(is_commit)
        writing = asyncio.create_task(late.commit(STARTED))
        await between.wait_for(lambda: between.lost_replies == 1)
        await queue.let_leases_pass(database)
        second = await queue.claimed(database)
        between.accept()
        with pytest.raises(ports.LeaseLostError):
            await writing
    assert second.log_seq == 1
    assert "analysis" in (await queue.opened(database, second)).record.stages


async def test_database_is_reported_down_and_serves_again_after_an_outage(
    database: databases.Database, migrated_url: str
) -> None:
    async with behind_proxy(migrated_url) as (far, between):
        assert await work.stale(far, limit=1) == []
        between.refuse()
        between.cut()
        await between.wait_for(lambda: between.open_connections == 0)
        for _ in range(2):
            with pytest.raises(databases.StoreDownError):
                await work.stale(far, limit=1)
        between.accept()
        assert await work.stale(far, limit=1) == []


@pytest.fixture
async def own(database_url: str) -> AsyncIterator[databases.Database]:
    """Yield a database that no other test has used: Postgres counts for all users of a database together."""
    database = databases.Database(database_url)
    await schema.migrate(database)
    yield database
    await database.close()


async def test_columns_that_each_commit_changes_are_in_no_index(own: databases.Database) -> None:
    """A row that moves to another page, or whose indexed columns change, costs an entry in every index."""
    database = own
    await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(STARTED, stories.started())
    settings = providers.GoogleProvider(type="google", model="m", requests_per_minute=10 * COMMITS)
    limited = rate_limits.RateLimits(database, {"google": settings}, window=0.3)
    for call_number in range(COMMITS):
        await writing.commit(stories.asks(call_number=call_number))
        await limited.take("google", 100)
    await database.close()  # a connection reports its counts when it ends
    counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = :table"
    async with patience.limit():
        for table in ("work", "executions", "throttles"):
            updates, hot = 0, 0
            while updates < COMMITS:
                ((updates, hot),) = await queue.rows(database, counted, table=table)
            assert hot > updates / 2, table  # a page that others read at that moment is not pruned

"""The queue and the fence, on a real Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest
import sqlalchemy
from support import queue
from tarsy.store import database as databases
from tarsy.store import journal, tables, work
from tarsy.transcript import entries, ports
from tarsy_dev import children, proxy
from tarsy_dev import postgres as launcher

STARTED = entries.StageStarted(stage="analysis")


async def rows(database: databases.Database, statement: str) -> list[tuple[object, ...]]:
    async with database.begin() as connection:
        return [tuple(row) for row in await connection.execute(sqlalchemy.text(statement))]


async def test_an_investigation_is_admitted_once_and_keeps_the_chain_it_was_admitted_with(
    database: databases.Database,
) -> None:
    subject = queue.subject()
    assert await work.admit(database, subject, queue.CHAIN, mask=str)
    assert not await work.admit(database, subject, queue.chain(description="edited"), mask=str)
    assert await rows(database, "SELECT state, attempts, chain_generation FROM work, investigations") == [
        ("queued", 0, 3)
    ]
    kept = (await queue.opened(database, await queue.claimed(database))).record.subject
    assert kept.chain == queue.CHAIN.spec
    assert kept.alert_data == "web-0 restarts"


async def test_of_admissions_at_once_one_counts(database: databases.Database) -> None:
    subject = queue.subject()
    admitted = await asyncio.gather(*(work.admit(database, subject, queue.CHAIN, mask=str) for _ in range(8)))
    assert sorted(admitted) == [False] * 7 + [True]
    assert await rows(database, "SELECT count(*) FROM work") == [(1,)]


async def test_a_refused_investigation_has_ended_and_is_never_claimed(database: databases.Database) -> None:
    subject = queue.subject()
    refusal = work.Refusal(reason="ChainNotFound", message="No chain found for alert type 'kubernetes'.")
    assert await work.admit(database, subject, refusal, mask=str)
    assert not await work.admit(database, subject, queue.CHAIN, mask=str)
    found = await queue.summary(database, subject.metadata.uid)
    assert (found.state, found.ending, found.reason, found.message) == (
        "ended",
        "Failed",
        refusal.reason,
        refusal.message,
    )
    assert found.ended_at is not None
    assert found.chain_name is None
    assert await queue.claim(database) is None


async def test_the_one_that_waits_longest_is_claimed_first(database: databases.Database) -> None:
    admitted = [await queue.admit(database) for _ in range(3)]
    claims = [await queue.claimed(database) for _ in admitted]
    assert [claim.investigation for claim in claims] == admitted
    assert [(claim.attempts, claim.commits) for claim in claims] == [(1, 0)] * 3
    assert await queue.claim(database) is None


async def test_claims_at_once_get_an_investigation_each(database: databases.Database) -> None:
    admitted = [await queue.admit(database) for _ in range(8)]
    claims = await asyncio.gather(*(queue.claimed(database) for _ in admitted))
    assert sorted(claim.investigation for claim in claims) == sorted(admitted)
    assert len({claim.token for claim in claims}) == len(admitted)


async def test_a_claim_does_not_wait_for_a_row_that_somebody_holds(database: databases.Database) -> None:
    held, free = [await queue.admit(database) for _ in range(2)]
    async with asyncio.timeout(5), database.begin() as connection:
        locked = sqlalchemy.select(tables.work).where(tables.work.c.investigation == held).with_for_update()
        await connection.execute(locked)
        assert (await queue.claimed(database)).investigation == free
        assert await queue.claim(database) is None


async def test_a_lease_that_passed_is_taken_over_and_its_old_token_writes_nothing(
    database: databases.Database,
) -> None:
    await queue.admit(database)
    first = await queue.claimed(database)
    late = await queue.opened(database, first)
    await late.commit(STARTED)
    await queue.let_leases_pass(database)
    second = await queue.claimed(database)
    assert second.investigation == first.investigation
    assert second.token != first.token
    assert (second.attempts, second.commits) == (2, 1)
    with pytest.raises(ports.LeaseLostError):
        await late.commit(entries.StageEnded(stage="analysis", outcome="Completed"))
    await work.release(database, first)
    assert await queue.claim(database) is None
    assert (await queue.opened(database, second)).record.stages["analysis"].ended is None


async def test_a_lease_that_passed_still_writes_while_nobody_took_it_over(database: databases.Database) -> None:
    await queue.admit(database)
    only = await queue.claimed(database)
    await queue.let_leases_pass(database)
    await (await queue.opened(database, only)).commit(STARTED)
    assert (await queue.claimed(database)).commits == 1


async def test_a_claim_that_is_given_back_costs_no_attempt_and_goes_on(database: databases.Database) -> None:
    await queue.admit(database)
    first = await queue.claimed(database)
    journal = await queue.opened(database, first)
    await journal.commit(STARTED)
    await work.release(database, first)
    with pytest.raises(ports.LeaseLostError):
        await journal.commit(entries.StageEnded(stage="analysis", outcome="Completed"))
    second = await queue.claimed(database)
    assert (second.attempts, second.commits) == (1, 1)
    assert (await queue.opened(database, second)).record == journal.record


async def test_an_ended_investigation_is_neither_claimed_nor_given_back(database: databases.Database) -> None:
    await queue.admit(database)
    only = await queue.claimed(database)
    await (await queue.opened(database, only)).commit(
        entries.InvestigationEnded(ending="Completed", reason="StagesCompleted")
    )
    await queue.let_leases_pass(database)
    await work.release(database, only)
    assert await queue.claim(database) is None


async def test_a_heartbeat_renews_what_it_is_given_and_tells_what_is_gone(
    database: databases.Database, database_url: str
) -> None:
    for _ in range(3):
        await queue.admit(database)
    kept, _, lost = [await queue.claimed(database) for _ in range(3)]
    await queue.execute(
        database, "UPDATE work SET lease_until = clock_timestamp() WHERE token = :lost", lost=lost.token
    )
    await queue.claimed(database)
    heartbeat = work.Heartbeat(database_url, lease=timedelta(hours=1))
    try:
        assert await heartbeat.beat([kept.token, lost.token]) == {kept.token: None}
        assert await heartbeat.beat([]) == {}
    finally:
        await heartbeat.close()
    renewed = "SELECT investigation FROM work WHERE lease_until > clock_timestamp() + interval '30 min'"
    assert await rows(database, renewed) == [(kept.investigation,)]


async def test_a_heartbeat_without_a_database_says_that_nobody_knows(postgres: launcher.Server) -> None:
    (nobody,) = children.free_ports(1)
    heartbeat = work.Heartbeat(postgres.url().replace(f":{postgres.port}/", f":{nobody}/"), lease=queue.LEASE)
    with pytest.raises(databases.StoreDownError):
        await heartbeat.beat([uuid.uuid4()])


async def test_every_change_is_unprojected_until_its_own_number_was_shown(database: databases.Database) -> None:
    only = await queue.admit(database)
    assert await work.unprojected(database, limit=10) == [only]
    before = await queue.summary(database, only)
    await queue.claimed(database)
    claimed = await queue.summary(database, only)
    assert claimed.seq > before.seq
    await work.projected(database, only, seq=before.seq)
    assert await work.unprojected(database, limit=10) == [only]
    await work.projected(database, only, seq=claimed.seq)
    assert await work.unprojected(database, limit=10) == []
    await work.projected(database, only, seq=before.seq)
    assert await work.unprojected(database, limit=10) == []


async def test_the_unprojected_come_in_order_and_no_more_than_asked_for(database: databases.Database) -> None:
    admitted = [await queue.admit(database) for _ in range(3)]
    assert await work.unprojected(database, limit=2) == admitted[:2]


@contextlib.asynccontextmanager
async def behind_proxy(
    server: launcher.Server, database_url: str
) -> AsyncIterator[tuple[databases.Database, proxy.Proxy]]:
    async with proxy.serve("127.0.0.1", server.port) as between:
        database = databases.Database(database_url.replace(f":{server.port}/", f":{between.port}/"))
        try:
            yield database, between
        finally:
            await database.close()


@pytest.mark.parametrize("lost", [b"INSERT INTO stages", b"analysis"], ids=["before it happens", "after it happened"])
async def test_a_commit_is_written_once_whichever_reply_of_it_is_lost(
    database: databases.Database,
    database_url: str,
    postgres: launcher.Server,
    monkeypatch: pytest.MonkeyPatch,
    lost: bytes,
) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.01)
    await queue.admit(database)
    held = await queue.claimed(database)
    async with behind_proxy(postgres, database_url) as (far, between):
        writing = await queue.opened(far, held)
        between.lose_reply(lambda sent: lost in sent)
        async with asyncio.timeout(10):
            await writing.commit(STARTED)
            assert between.lost_replies == 1
            between.lose_reply(lambda sent: b"StagesFailed" in sent)
            await writing.commit(entries.InvestigationEnded(ending="Failed", reason="StagesFailed"))
        assert between.lost_replies == 2
    assert await rows(database, "SELECT commits, state FROM work") == [(2, "ended")]
    assert await rows(database, "SELECT name FROM stages") == [("analysis",)]


async def test_a_commit_whose_reply_was_lost_does_not_write_again_after_a_takeover(
    database: databases.Database, database_url: str, postgres: launcher.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.01)
    await queue.admit(database)
    first = await queue.claimed(database)
    async with behind_proxy(postgres, database_url) as (far, between), asyncio.timeout(10):
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
    assert second.commits == 1
    assert "analysis" in (await queue.opened(database, second)).record.stages


async def test_a_database_that_went_away_is_said_to_be_down_and_serves_again(
    database: databases.Database, database_url: str, postgres: launcher.Server
) -> None:
    async with behind_proxy(postgres, database_url) as (far, between):
        assert await work.unprojected(far, limit=1) == []
        between.refuse()
        between.cut()
        await between.wait_for(lambda: between.open_connections == 0)
        for _ in range(2):
            with pytest.raises(databases.StoreDownError):
                await work.unprojected(far, limit=1)
        between.accept()
        assert await work.unprojected(far, limit=1) == []


async def test_a_statement_that_can_never_work_is_not_taken_for_an_outage(database: databases.Database) -> None:
    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        await rows(database, "SELECT nothing FROM nowhere")
    with pytest.raises(sqlalchemy.exc.IntegrityError) as refused:
        await rows(database, "INSERT INTO work (investigation, state) VALUES (gen_random_uuid(), 'queued')")
    assert isinstance(refused.value.orig, Exception)
    assert getattr(refused.value.orig, "sqlstate", None) == asyncpg.ForeignKeyViolationError.sqlstate

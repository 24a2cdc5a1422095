"""The queue and the fence, on a real Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
import sqlalchemy
from tarsy.resources import base, chain, investigation
from tarsy.store import database as databases
from tarsy.store import history, journal, tables, work
from tarsy.transcript import entries, ports
from tarsy.worker import lease
from tarsy_dev import children, proxy
from tarsy_dev import postgres as launcher

LEASE = timedelta(seconds=60)
OWNER = UUID(int=1)
STARTED = entries.StageStarted(stage="analysis")
CHAIN = chain.AgentChain(
    metadata=base.ObjectMeta(name="pod-crash", namespace="tarsy", generation=3),
    spec=chain.Spec(alert_types=["kubernetes"], stages=[chain.Stage(name="analysis", agent="KubernetesAgent")]),
)


def an_investigation() -> investigation.AlertInvestigation:
    return investigation.AlertInvestigation(
        metadata=base.ObjectMeta(name="web-crash", namespace="tarsy", uid=str(uuid.uuid4()), generation=1),
        spec=investigation.Spec(alert_type="kubernetes", alert_data="web-0 restarts"),
    )


async def admit(database: databases.Database, count: int = 1) -> list[UUID]:
    """Admit some investigations, one after the other; their ids."""
    subjects = [an_investigation() for _ in range(count)]
    for subject in subjects:
        assert await work.admit(database, subject, CHAIN, mask=str)
    return [UUID(subject.metadata.uid) for subject in subjects]


async def claim(database: databases.Database) -> work.Claim:
    claim = await work.claim(database, owner=OWNER, lease=LEASE)
    assert claim is not None
    return claim


async def opened(database: databases.Database, claim: work.Claim) -> journal.PgJournal:
    held = lease.Lease(claim, certain_until=math.inf)
    return await journal.PgJournal.open(database, claim=claim, clear_to_send=held.clear_to_send)


async def rows(database: databases.Database, statement: str) -> list[tuple[object, ...]]:
    async with database.begin() as connection:
        return [tuple(row) for row in await connection.execute(sqlalchemy.text(statement))]


async def let_lease_pass(database: databases.Database, claim: work.Claim) -> None:
    async with database.begin() as connection:
        row = tables.work.update().where(tables.work.c.investigation == claim.investigation)
        await connection.execute(row.values(lease_until=sqlalchemy.text("clock_timestamp()")))


async def test_an_investigation_is_admitted_once_and_keeps_the_chain_it_was_admitted_with(
    database: databases.Database,
) -> None:
    subject = an_investigation()
    edited = CHAIN.model_copy(update={"spec": CHAIN.spec.model_copy(update={"description": "edited"})})
    assert await work.admit(database, subject, CHAIN, mask=str)
    assert not await work.admit(database, subject, edited, mask=str)
    assert await rows(database, "SELECT state, attempts, chain_generation FROM work, investigations") == [
        ("queued", 0, 3)
    ]
    kept = (await opened(database, await claim(database))).record.subject
    assert kept.chain == CHAIN.spec
    assert kept.alert_data == "web-0 restarts"


async def test_of_admissions_at_once_one_counts(database: databases.Database) -> None:
    subject = an_investigation()
    admitted = await asyncio.gather(*(work.admit(database, subject, CHAIN, mask=str) for _ in range(8)))
    assert sorted(admitted) == [False] * 7 + [True]
    assert await rows(database, "SELECT count(*) FROM work") == [(1,)]


async def test_a_refused_investigation_has_ended_and_is_never_claimed(database: databases.Database) -> None:
    subject = an_investigation()
    refusal = work.Refusal(reason="ChainNotFound", message="No chain found for alert type 'kubernetes'.")
    assert await work.admit(database, subject, refusal, mask=str)
    assert not await work.admit(database, subject, CHAIN, mask=str)
    found = await history.summary(database, UUID(subject.metadata.uid))
    assert found is not None
    assert (found.state, found.ending, found.reason, found.message) == (
        "ended",
        "Failed",
        refusal.reason,
        refusal.message,
    )
    assert found.ended_at is not None
    assert found.chain_name is None
    assert await work.claim(database, owner=OWNER, lease=LEASE) is None


async def test_the_one_that_waits_longest_is_claimed_first(database: databases.Database) -> None:
    admitted = await admit(database, 3)
    claims = [await claim(database) for _ in admitted]
    assert [claim.investigation for claim in claims] == admitted
    assert [(claim.attempts, claim.commits) for claim in claims] == [(1, 0)] * 3
    assert await work.claim(database, owner=OWNER, lease=LEASE) is None


async def test_claims_at_once_get_an_investigation_each(database: databases.Database) -> None:
    admitted = await admit(database, 8)
    claims = await asyncio.gather(*(claim(database) for _ in admitted))
    assert sorted(claim.investigation for claim in claims) == sorted(admitted)
    assert len({claim.token for claim in claims}) == len(admitted)


async def test_a_claim_does_not_wait_for_a_row_that_somebody_holds(database: databases.Database) -> None:
    held, free = await admit(database, 2)
    async with asyncio.timeout(5), database.begin() as connection:
        locked = sqlalchemy.select(tables.work).where(tables.work.c.investigation == held).with_for_update()
        await connection.execute(locked)
        assert (await claim(database)).investigation == free
        assert await work.claim(database, owner=OWNER, lease=LEASE) is None


async def test_a_lease_that_passed_is_taken_over_and_its_old_token_writes_nothing(
    database: databases.Database,
) -> None:
    await admit(database)
    first = await claim(database)
    late = await opened(database, first)
    await late.commit(STARTED)
    await let_lease_pass(database, first)
    second = await claim(database)
    assert second.investigation == first.investigation
    assert second.token != first.token
    assert (second.attempts, second.commits) == (2, 1)
    with pytest.raises(ports.LeaseLostError):
        await late.commit(entries.StageEnded(stage="analysis", outcome="Completed"))
    await work.release(database, first)
    assert await work.claim(database, owner=OWNER, lease=LEASE) is None
    assert (await opened(database, second)).record.stages["analysis"].ended is None


async def test_a_lease_that_passed_still_writes_while_nobody_took_it_over(database: databases.Database) -> None:
    await admit(database)
    only = await claim(database)
    await let_lease_pass(database, only)
    await (await opened(database, only)).commit(STARTED)
    assert (await claim(database)).commits == 1


async def test_a_claim_that_is_given_back_costs_no_attempt_and_goes_on(database: databases.Database) -> None:
    await admit(database)
    first = await claim(database)
    journal = await opened(database, first)
    await journal.commit(STARTED)
    await work.release(database, first)
    with pytest.raises(ports.LeaseLostError):
        await journal.commit(entries.StageEnded(stage="analysis", outcome="Completed"))
    second = await claim(database)
    assert (second.attempts, second.commits) == (1, 1)
    assert (await opened(database, second)).record == journal.record


async def test_an_ended_investigation_is_neither_claimed_nor_given_back(database: databases.Database) -> None:
    await admit(database)
    only = await claim(database)
    await (await opened(database, only)).commit(
        entries.InvestigationEnded(ending="Completed", reason="StagesCompleted")
    )
    await let_lease_pass(database, only)
    await work.release(database, only)
    assert await work.claim(database, owner=OWNER, lease=LEASE) is None


async def test_a_heartbeat_renews_what_it_is_given_and_tells_what_is_gone(
    database: databases.Database, database_url: str
) -> None:
    await admit(database, 3)
    kept, _, lost = [await claim(database) for _ in range(3)]
    await let_lease_pass(database, lost)
    await claim(database)
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
    heartbeat = work.Heartbeat(postgres.url().replace(f":{postgres.port}/", f":{nobody}/"), lease=LEASE)
    with pytest.raises(databases.StoreDownError):
        await heartbeat.beat([uuid.uuid4()])


async def test_every_change_is_unprojected_until_its_own_number_was_shown(database: databases.Database) -> None:
    (only,) = await admit(database)
    assert await work.unprojected(database, limit=10) == [only]
    before = await history.summary(database, only)
    await claim(database)
    claimed = await history.summary(database, only)
    assert before is not None
    assert claimed is not None
    assert claimed.seq > before.seq
    await work.projected(database, only, seq=before.seq)
    assert await work.unprojected(database, limit=10) == [only]
    await work.projected(database, only, seq=claimed.seq)
    assert await work.unprojected(database, limit=10) == []
    await work.projected(database, only, seq=before.seq)
    assert await work.unprojected(database, limit=10) == []


async def test_the_unprojected_come_in_order_and_no_more_than_asked_for(database: databases.Database) -> None:
    admitted = await admit(database, 3)
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
    await admit(database)
    held = await claim(database)
    async with behind_proxy(postgres, database_url) as (far, between):
        writing = await opened(far, held)
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
    await admit(database)
    first = await claim(database)
    async with behind_proxy(postgres, database_url) as (far, between), asyncio.timeout(10):
        late = await opened(far, first)

        def is_commit(sent: bytes) -> bool:
            if b"analysis" not in sent:  # a value of the statement: this is its execution
                return False
            between.refuse()  # the retries, until the takeover has happened
            return True

        between.lose_reply(is_commit)
        writing = asyncio.create_task(late.commit(STARTED))
        await between.wait_for(lambda: between.lost_replies == 1)
        await let_lease_pass(database, first)
        second = await claim(database)
        await between.accept()
        with pytest.raises(ports.LeaseLostError):
            await writing
    assert second.commits == 1
    assert "analysis" in (await opened(database, second)).record.stages


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
        await between.accept()
        assert await work.unprojected(far, limit=1) == []


async def test_a_statement_that_can_never_work_is_not_taken_for_an_outage(database: databases.Database) -> None:
    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        await rows(database, "SELECT nothing FROM nowhere")
    with pytest.raises(sqlalchemy.exc.IntegrityError) as refused:
        await rows(database, "INSERT INTO work (investigation, state) VALUES (gen_random_uuid(), 'queued')")
    assert isinstance(refused.value.orig, Exception)
    assert getattr(refused.value.orig, "sqlstate", None) == asyncpg.ForeignKeyViolationError.sqlstate

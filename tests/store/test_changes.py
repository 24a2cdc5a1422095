"""Changes since a position: none is missed, whichever transaction ends first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest
from support import queue, stories
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import changes, listing
from tarsy.transcript import entries
from tarsy_dev import patience

pytestmark = pytest.mark.usefixtures("own_postgres")

NAMESPACES = {"tarsy": "uid-of-tarsy"}


async def since(database: databases.Database, changed: int, *, limit: int = 100) -> changes.Changes:
    page = await changes.since(database, changed=changed, namespaces=NAMESPACES, limit=limit)
    assert page is not None
    return page


async def test_admission_and_claim_mark_only_their_investigation_as_changed(database: databases.Database) -> None:
    begin = await changes.now(database)
    first, other = await queue.admit(database), await queue.admit(database)
    page = await since(database, begin)
    assert [summary.id for summary in page.summaries] == [first, other]
    assert list(page.summaries) == [await queue.summary(database, first), await queue.summary(database, other)]
    assert not page.more
    claim = await queue.claimed(database)
    page = await since(database, page.horizon)
    assert [(summary.id, summary.phase) for summary in page.summaries] == [(claim.investigation, "Running")]
    assert (await since(database, page.horizon)).summaries == []


async def test_stages_and_the_end_count_as_changes_but_counters_alone_do_not(database: databases.Database) -> None:
    await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    begin = await changes.now(database)
    asked = stories.asks("logs.tail")
    tells: dict[str, bool] = {}
    commits: dict[str, list[entries.Entry]] = {
        "a stage": [stories.stage_started("analysis"), stories.started()],
        "an answer": [asked],
        "results": [stories.ran(asked)],
        "a stage's end": [stories.ended(), stories.stage_ended("analysis", "Completed")],
        "the end": [stories.run_ended()],
    }
    for name, added in commits.items():
        await journal.commit(*added)
        page = await since(database, begin)
        tells[name], begin = bool(page.summaries), page.horizon
    assert tells == {"a stage": True, "an answer": False, "results": False, "a stage's end": True, "the end": True}


WRITERS, ROUNDS = 6, 25


async def give_way(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def write(url: str, identities: list[UUID], dice: random.Random) -> None:
    """Transactions that change one after the other, begun early or late and ended early or late, some in vain."""
    connection = await asyncpg.connect(url)
    try:
        for _ in range(ROUNDS):
            transaction = connection.transaction()
            await transaction.start()
            if dice.random() < 0.5:
                await connection.fetchval("SELECT pg_current_xact_id()")  # it has its number from here on
                await give_way(dice.randrange(20))
            changed = sorted(dice.sample(identities, dice.choice([1, 1, 3])))  # in one order: no deadlocks
            for identity in changed:
                await connection.execute("UPDATE work SET revision = revision + 1 WHERE investigation = $1", identity)
            await give_way(dice.randrange(40))
            await (transaction.rollback() if dice.random() < 0.2 else transaction.commit())
    finally:
        await connection.close()


@pytest.mark.parametrize("limit", [1, 100])
async def test_reader_that_continues_from_the_horizon_misses_no_latest_state(
    database: databases.Database, limit: int
) -> None:
    begin = await changes.now(database)
    identities = [await queue.admit(database) for _ in range(8)]
    dice = random.Random(14)  # noqa: S311 - no secret
    writing = [
        asyncio.create_task(write(database.url, identities, random.Random(dice.random())))  # noqa: S311
        for _ in range(WRITERS)
    ]
    seen: dict[UUID, int] = {}

    async def poll() -> bool:
        nonlocal begin
        page = await since(database, begin, limit=limit)
        for summary in page.summaries:
            assert summary.revision >= seen.get(summary.id, 0), "no older form comes behind a newer one"
            seen[summary.id] = summary.revision
        assert page.horizon >= begin
        begin = page.horizon
        return page.more

    while not all(task.done() for task in writing):
        await poll()
    await asyncio.gather(*writing)
    async with patience.limit():
        while await poll():
            pass
    assert seen == {identity: (await queue.summary(database, identity)).revision for identity in identities}


async def test_long_concurrent_transaction_delays_no_change_and_is_seen_at_its_end(
    database: databases.Database,
) -> None:
    begin = await changes.now(database)
    identities = [await queue.admit(database) for _ in range(5)]
    connection = await asyncpg.connect(database.url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE work SET revision = revision + 1 WHERE investigation = $1", identities[0])
    try:
        page = await since(database, begin, limit=100)
        assert {summary.id for summary in page.summaries} == set(identities)
        for identity in identities[1:]:
            await queue.execute(database, "UPDATE work SET revision = 7 WHERE investigation = :id", id=identity)
            page = await since(database, page.horizon, limit=2)
            assert not page.more
            assert identity in {summary.id for summary in page.summaries if summary.revision == 7}, "the newest comes"
        await transaction.commit()
    finally:
        await connection.close()
    page = await since(database, page.horizon, limit=100)
    assert (identities[0], 2) in {(summary.id, summary.revision) for summary in page.summaries}
    assert (await since(database, page.horizon)).summaries == []


async def test_list_has_no_events_of_other_namespaces(database: databases.Database) -> None:
    begin = await changes.now(database)
    await queue.admit(database)
    for namespaces in ({}, {"other": "uid-of-tarsy"}):
        page = await changes.since(database, changed=begin, namespaces=namespaces, limit=9)
        assert page is not None
        assert page.summaries == []
    await queue.execute(database, "UPDATE investigations SET namespace_uid = 'an earlier one'")
    assert (await since(database, begin)).summaries == []


async def test_every_listed_field_of_an_investigation_is_published_as_a_change(database: databases.Database) -> None:
    subject = queue.subject()
    identity = UUID(subject.metadata.uid)
    claims: list[work.Claim] = []

    async def claim() -> None:
        claims.append(await queue.claimed(database))

    def seen(generation: int, *, suspend: bool) -> Awaitable[None]:
        metadata = subject.metadata.model_copy(update={"generation": generation})
        spec = subject.spec.model_copy(update={"suspend": suspend})
        return work.observe(database, subject.model_copy(update={"metadata": metadata, "spec": spec}))

    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: queue.admit(database, subject),
        lambda: seen(2, suspend=True),
        lambda: seen(3, suspend=False),
        claim,
        lambda: work.release(database, claims[-1], unreadable="entry 1", build="x"),
        claim,
        lambda: work.release(database, claims[-1]),
        claim,
        lambda: work.cancel(database, identity, why="user"),
        lambda: work.give_up(database, claims[-1], reason="AttemptsExhausted", message="no"),
    ]
    begin = await changes.now(database)
    former_items: list[listing.Listed] = []
    for step in steps:
        await step()
        query = listing.Query(namespaces={"tarsy": NAMESPACES["tarsy"]})
        items = list((await listing.page(database, query, limit=9)).items)
        page = await since(database, begin)
        if items != former_items:
            assert [summary.id for summary in page.summaries] == [identity]
            assert page.summaries[0].phase == items[0].phase
        former_items, begin = items, page.horizon
    assert former_items[0].phase == "Failed"

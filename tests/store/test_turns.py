"""Turns of chains, and how many of a chain's investigations run at once; on a real Postgres."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from support import queue
from support.turns import admit, named
from tarsy.store.base import databases
from tarsy.store.queue import claim_filter, questions, turns, work
from tarsy.transcript import ports


async def end(database: databases.Database, claim: work.Claim) -> None:
    async with database.begin() as connection:
        await work.end(connection, claim.investigation, "Failed", reason="Test", message="ended")


async def claimed_chains(database: databases.Database, number: int) -> str:
    return "".join([(await queue.claimed(database)).chain for _ in range(number)])


async def claim_all(database: databases.Database) -> list[work.Claim]:
    """Claim until nothing is left to claim, as a worker does that meets others."""
    claims: list[work.Claim] = []
    while True:
        try:
            claim = await queue.claim(database)
        except work.BusyError:
            continue
        if claim is None:
            return claims
        claims.append(claim)


@pytest.fixture
async def processes(database: databases.Database) -> AsyncIterator[list[databases.Database]]:
    """The databases of eight processes, which claim at the same time."""
    async with AsyncExitStack() as stack:
        connected = [databases.Database(database.url) for _ in range(8)]
        for each in connected:
            stack.push_async_callback(each.close)
        yield connected


async def test_chain_with_fewest_running_goes_first_then_the_chain_waiting_longest(
    database: databases.Database,
) -> None:
    await admit(database, named("a"), 5)
    await admit(database, named("b"), 2)
    await admit(database, named("c"))
    assert await claimed_chains(database, 8) == "abcabaaa"


async def test_priority_goes_before_turns_of_chains(database: databases.Database) -> None:
    await admit(database, named("a"), 2)
    await admit(database, named("b"), priority=-1)
    await admit(database, named("a"), priority=1)
    assert await claimed_chains(database, 4) == "aaab"


async def test_takeover_goes_first_only_within_its_priority(database: databases.Database) -> None:
    await admit(database, named("a"))
    dead = await queue.claimed(database)
    await queue.let_leases_pass(database)
    await admit(database, named("b"))
    await admit(database, named("c"), priority=1)
    assert (await queue.claimed(database)).chain == "c"
    assert (await queue.claimed(database)).investigation == dead.investigation
    assert (await queue.claimed(database)).chain == "b"


async def test_full_chain_waits_and_does_not_hold_up_another(database: databases.Database) -> None:
    await admit(database, named("a", maxRunning=2), 4)
    await admit(database, named("b"), 3)
    claims = await claim_all(database)
    assert "".join(claim.chain for claim in claims) == "ababb"
    await work.release(database, claims[0])
    assert (await queue.claimed(database)).chain == "a"
    assert await queue.claim(database) is None


@pytest.mark.parametrize("seed", range(3))
async def test_limit_is_exact_through_kills_takeovers_and_releases(
    database: databases.Database, processes: list[databases.Database], seed: int
) -> None:
    """Eight processes claim at the same time; between their claims workers end, release, or die with what they hold."""
    chance = random.Random(seed)  # noqa: S311 - an order
    limits = {"a": 3, "b": 1, "c": 20}
    await admit(database, named("a", maxRunning=3), 12)
    await admit(database, named("b", maxRunning=1), 4)
    await admit(database, named("c"), 4)
    held: dict[UUID, work.Claim] = {}
    takeovers = ended = 0
    while ended < 20:
        for claims in await asyncio.gather(*map(claim_all, processes)):
            takeovers += sum(claim.is_takeover for claim in claims)
            held |= {claim.investigation: claim for claim in claims}
        running = await queue.rows(database, "SELECT queue, count(*) FROM work WHERE state = 'running' GROUP BY queue")
        assert all(number <= limits[name.removeprefix("tarsy/")] for name, number in running), running
        assert dict(running).get("tarsy/a", 0) == min(3, await open_runs(database, "tarsy/a"))
        for claim in list(held.values()):
            match chance.randrange(4):
                case 0:
                    await end(database, held.pop(claim.investigation))
                    ended += 1
                case 1:
                    await work.release(database, held.pop(claim.investigation))
                case 2:  # its worker is dead: it still counts, and is taken over
                    await queue.execute(
                        database,
                        "UPDATE work SET lease_until = now() - interval '1 s' WHERE investigation = :id",
                        id=claim.investigation,
                    )
    assert takeovers > 0
    assert await queue.rows(database, "SELECT DISTINCT state FROM work") == [("ended",)]


@pytest.mark.parametrize("seed", range(2))
async def test_changed_limit_is_exact_while_workers_die_and_runs_are_parked(
    database: databases.Database, processes: list[databases.Database], seed: int
) -> None:
    """The limit changes while eight processes claim: none is claimed above it, and parked runs do not count."""
    chance = random.Random(seed)  # noqa: S311 - an order
    wait = ports.Wait(reason="ApprovalPending", message="m", until=datetime.now(UTC) + timedelta(hours=1))
    await admit(database, named("a", maxRunning=1), 12)
    held: dict[UUID, work.Claim] = {}

    async def states() -> collections.Counter[str]:
        return collections.Counter(str(state) for (state,) in await queue.rows(database, "SELECT state FROM work"))

    async def claim_in_all_processes() -> None:
        for claims in await asyncio.gather(*map(claim_all, processes)):
            held.update((claim.investigation, claim) for claim in claims)

    limit, parked = 1, 0
    while (before := await states())["ended"] < 12:
        former, limit = limit, chance.randrange(1, 5)
        await asyncio.gather(claim_in_all_processes(), turns.store_limits(database, "tarsy", {"a": limit}, known=["a"]))
        meanwhile = await states()
        assert meanwhile["running"] <= max(before["running"], former, limit)
        await claim_in_all_processes()
        counts = await states()
        assert counts["running"] == max(meanwhile["running"], min(limit, counts["running"] + counts["queued"]))
        parked = max(parked, counts["parked"])
        for claim in list(held.values()):
            match chance.randrange(4):
                case 0:
                    await end(database, held.pop(claim.investigation))
                case 1:
                    await work.release(database, held.pop(claim.investigation), build=queue.BUILD, wait=wait)
                case 2:  # its worker is dead: it still counts, and is taken over
                    await queue.execute(
                        database,
                        "UPDATE work SET lease_until = now() - interval '1 s' WHERE investigation = :id",
                        id=claim.investigation,
                    )
        if not held or chance.randrange(3) == 0:
            await queue.execute(database, "UPDATE work SET wake_at = clock_timestamp() WHERE state = 'parked'")
            await work.sweep(database)
    assert parked > 0


async def open_runs(database: databases.Database, name: str) -> int:
    ((number,),) = await queue.rows(
        database, "SELECT count(*) FROM work WHERE queue = :name AND state <> 'ended'", name=name
    )
    return int(number)


async def test_claim_fails_if_a_concurrent_claim_took_the_chains_turn(database: databases.Database) -> None:
    """The other one's turn is not committed yet: the claim waits for it, and then knows that its count is old."""
    await admit(database, named("a", maxRunning=1), 2)
    values = {"owner": queue.OWNER, "lease": queue.LEASE, "build": queue.BUILD, **claim_filter.values(None)}
    async with database.begin() as connection:
        assert (await connection.execute(work._CLAIM, values)).one().investigation is not None
        waiting = asyncio.create_task(queue.claim(database))
        await queue.blocked(database)
    with pytest.raises(work.BusyError):
        await waiting
    assert await queue.claim(database) is None


async def test_dead_worker_keeps_its_slot_and_a_takeover_needs_no_free_slot(database: databases.Database) -> None:
    """Its worker may wake and renew the lease, so it counts; and it is taken over although the chain is full."""
    await admit(database, named("a", maxRunning=1), 2)
    dead = await queue.claimed(database)
    await queue.let_leases_pass(database)
    assert [claim.investigation for claim in await claim_all(database)] == [dead.investigation]


async def test_limit_of_a_deleted_chain_stays_until_its_last_investigation_ends(database: databases.Database) -> None:
    async def limits() -> list[tuple[object, ...]]:
        return await queue.rows(database, "SELECT queue, max_running FROM queues ORDER BY queue")

    await turns.store_limits(database, "tarsy", {"a": 1, "b": 2}, known=["a", "b"])
    await turns.store_limits(database, "tarsy-2", {"a": 7}, known=["a"])
    await admit(database, named("a", maxRunning=1))
    claim = await queue.claimed(database)
    await turns.store_limits(database, "tarsy", {}, known=[])
    assert await limits() == [("tarsy-2/a", 7), ("tarsy/a", 1)]
    await end(database, claim)
    await turns.store_limits(database, "tarsy", {}, known=[])
    assert await limits() == [("tarsy-2/a", 7)]


async def test_limit_does_not_hold_up_questions(database: databases.Database) -> None:
    chain = named("a", maxRunning=1)
    await admit(database, chain, 3)
    ended = await queue.claimed(database)
    await end(database, ended)
    assert (await queue.claimed(database)).run == 0
    asked = await questions.ask(database, ended.investigation, "Why?", max_queued=10, by=queue.CALLER)
    assert asked == 1
    assert [(claim.investigation, claim.run) for claim in await claim_all(database)] == [(ended.investigation, 1)]

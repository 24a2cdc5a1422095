"""Order of the queue: priorities, suspension, and how many run at once; on a real Postgres."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from support import queue
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.store.queue import work


def edited(before: investigations.AlertInvestigation, **spec: bool | int | None) -> investigations.AlertInvestigation:
    """The next generation of an object."""
    metadata = before.metadata.model_copy(update={"generation": before.metadata.generation + 1})
    return before.model_copy(update={"metadata": metadata, "spec": before.spec.model_copy(update=spec)})


async def admit(database: databases.Database, **spec: Any) -> investigations.AlertInvestigation:
    admitted = queue.subject(**spec)
    await queue.admit(database, admitted)
    return admitted


async def test_the_highest_priority_is_claimed_first_and_of_equals_the_oldest(database: databases.Database) -> None:
    priorities = (None, -5, 7, 7)
    admitted = [await admit(database, priority=priority) for priority in priorities]
    order = [(await queue.claimed(database)).investigation for _ in admitted]
    assert order == [UUID(admitted[index].metadata.uid) for index in (2, 3, 0, 1)]


async def test_max_running_limits_concurrent_runs_and_takeovers_are_not_counted_twice(
    database: databases.Database,
) -> None:
    for _ in range(4):
        await admit(database)
    claims = await asyncio.gather(*(queue.claim(database, max_running=2) for _ in range(4)))
    assert sum(claim is not None for claim in claims) == 2
    await queue.let_leases_pass(database)
    again = [await queue.claim(database, max_running=2) for _ in range(3)]
    assert [claim and claim.attempts for claim in again] == [2, 2, None]


async def test_investigation_suspended_at_admission_is_not_claimed(database: databases.Database) -> None:
    admitted = await admit(database, suspend=True)
    assert await queue.claim(database) is None
    assert await work.queued(database) == 0
    await work.observe(database, edited(admitted, suspend=False))
    assert (await queue.claimed(database)).investigation == UUID(admitted.metadata.uid)


async def test_running_investigation_is_suspended_after_a_heartbeat_and_released(database: databases.Database) -> None:
    admitted = await admit(database)
    held = await queue.claimed(database)
    await work.observe(database, edited(admitted, suspend=True))
    assert await queue.requested_stop(database, held) == "suspend"
    await work.cancel(database, UUID(admitted.metadata.uid), why="user")
    assert await queue.requested_stop(database, held) == "user", "cancel wins"


async def test_deadlines_clock_stops_during_suspension(database: databases.Database) -> None:
    admitted = await admit(database)
    held = await queue.claimed(database)
    await queue.execute(database, "UPDATE runs SET started_at = clock_timestamp() - interval '100 s'")
    suspended = edited(admitted, suspend=True)
    await work.observe(database, suspended)
    await work.release(database, held)
    assert (await queue.summary(database, admitted.metadata.uid)).suspend
    await queue.execute(database, "UPDATE runs SET suspended_at = suspended_at - interval '90 s'")
    assert await queue.claim(database) is None
    await work.observe(database, edited(suspended, suspend=False))
    resumed = await queue.claimed(database)
    assert 10 <= resumed.age < 60
    assert resumed.attempts == 1, "to be suspended is no attempt"


async def test_the_time_before_the_first_claim_is_not_taken_off_the_deadline(database: databases.Database) -> None:
    admitted = await admit(database, suspend=True)
    await queue.execute(database, "UPDATE runs SET suspended_at = clock_timestamp() - interval '1 h'")
    await work.observe(database, edited(admitted, suspend=False))
    assert 0 <= (await queue.claimed(database)).age < 60


async def test_sweep_suspends_a_run_whose_worker_died(database: databases.Database) -> None:
    admitted = await admit(database)
    await queue.claimed(database)
    await work.observe(database, edited(admitted, suspend=True))
    await queue.let_leases_pass(database)
    assert await queue.claim(database) is None
    assert (await queue.summary(database, admitted.metadata.uid)).state == "running"
    await work.sweep(database)
    assert (await queue.summary(database, admitted.metadata.uid)).state == "queued"


async def test_generation_is_stored_once_and_never_lowered(database: databases.Database) -> None:
    first = await admit(database)
    before = await queue.summary(database, first.metadata.uid)
    second = edited(first, suspend=True)
    await work.observe(database, edited(second, suspend=False))
    await work.observe(database, second)
    after = await queue.summary(database, first.metadata.uid)
    assert (after.generation, after.suspend) == (3, False)
    assert after.revision == before.revision + 1

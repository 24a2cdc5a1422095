"""Cancel, sweep and duties, on a real Postgres."""

from __future__ import annotations

import uuid
from datetime import timedelta
from uuid import UUID

import pytest
from support import queue
from tarsy.store import database as databases
from tarsy.store import duties, work
from tarsy.transcript import entries, ports

OTHER = UUID(int=2)


@pytest.mark.parametrize(
    ("why", "reason"),
    [("user", "CancelledByUser"), ("deleted", "ObjectDeleted"), ("resolved", "AlertResolved")],
    ids=["user", "deleted", "resolved"],
)
async def test_a_queued_one_ends_at_once(database: databases.Database, why: work.Cancellation, reason: str) -> None:
    identity = await queue.admit(database)
    assert await work.cancel(database, identity, why=why)
    found = await queue.summary(database, identity)
    assert (found.state, found.ending, found.reason) == ("ended", "Cancelled", reason)
    assert found.ended_at is not None
    assert found.message == work.CANCELLED_MESSAGES[why]
    assert await queue.claim(database) is None
    assert not await work.cancel(database, identity, why="user")


async def test_a_running_one_is_left_to_its_worker_which_the_heartbeat_tells(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    heartbeat = work.Heartbeat(database.url, lease=queue.LEASE)
    assert await heartbeat.beat([claim.token]) == {claim.token: None}
    assert await work.cancel(database, identity, why="user")
    assert await heartbeat.beat([claim.token]) == {claim.token: "user"}
    await heartbeat.close()
    found = await queue.summary(database, identity)
    assert (found.state, found.ending, found.cancel) == ("running", None, "user")


async def test_the_claim_that_takes_over_a_cancelled_one_knows_of_it(database: databases.Database) -> None:
    identity = await queue.admit(database)
    await queue.claimed(database)
    await work.cancel(database, identity, why="deleted")
    await queue.let_leases_pass(database)
    assert (await queue.claimed(database)).cancel == "deleted"


async def test_the_sweep_ends_a_cancelled_one_without_a_worker_and_fences_that_worker(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    late = await queue.opened(database, claim)
    await work.cancel(database, identity, why="user")
    assert await work.sweep(database) == 0  # its worker lives
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 1
    found = await queue.summary(database, identity)
    assert (found.state, found.ending) == ("ended", "Cancelled")
    with pytest.raises(ports.LeaseLostError):
        await late.commit(entries.StageStarted(stage="analysis"))


async def test_the_sweep_leaves_a_taken_over_run_alone(database: databases.Database) -> None:
    await queue.admit(database)
    await queue.claimed(database)
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 0
    assert await work.claim(database, owner=OTHER, lease=queue.LEASE) is not None


async def test_a_cancelled_one_ends_when_its_worker_shuts_down_and_gives_it_back(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    await work.cancel(database, identity, why="user")
    await work.release(database, claim)
    assert (await queue.summary(database, identity)).ending == "Cancelled"


async def test_an_unknown_or_ended_one_cannot_be_cancelled(database: databases.Database) -> None:
    assert not await work.cancel(database, uuid.uuid4(), why="user")


async def test_a_duty_is_one_process_s_until_its_lease_has_passed(database: databases.Database) -> None:
    assert await duties.take(database, "controller", owner=queue.OWNER, lease=queue.LEASE)
    assert await duties.take(database, "controller", owner=queue.OWNER, lease=timedelta(0))
    assert await duties.take(database, "controller", owner=OTHER, lease=queue.LEASE)
    assert not await duties.take(database, "controller", owner=queue.OWNER, lease=queue.LEASE)
    await duties.give_up(database, "controller", owner=queue.OWNER)
    assert not await duties.take(database, "controller", owner=queue.OWNER, lease=queue.LEASE), (
        "it was not this one's to give"
    )
    await duties.give_up(database, "controller", owner=OTHER)
    assert await duties.take(database, "controller", owner=queue.OWNER, lease=queue.LEASE)


async def test_a_database_remembers_its_first_cluster(database: databases.Database) -> None:
    assert await duties.remember_cluster(database, "one")
    assert await duties.remember_cluster(database, "one")
    assert not await duties.remember_cluster(database, "two")

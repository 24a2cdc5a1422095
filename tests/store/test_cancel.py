"""Cancel and sweep, and which process leads; on a real Postgres."""

from __future__ import annotations

import uuid
from datetime import timedelta
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.store import database as databases
from tarsy.store import leader, work
from tarsy.transcript import entries, ports, record

OTHER = UUID(int=2)
OPEN: tuple[entries.Entry, ...] = (
    stories.stage_started("collect"),
    stories.started("one", stage="collect"),
    stories.ended("one"),
    stories.stage_ended("collect"),
    stories.stage_started(),
    stories.started("two"),
    stories.started("three", index=1),
    stories.answers(execution="two"),
    stories.ended("two"),
    stories.asks("k8s.pods_log", execution="three"),
)
"""A run with an agent that is in the middle of a call, and one that has ended; and a stage that has."""


def cancelled(why: work.Cancellation) -> entries.RunEnded:
    return entries.RunEnded(
        ending="Cancelled", reason=work.CANCELLED_REASONS[why], message=work.CANCELLED_MESSAGES[why]
    )


def ends_of_open(why: work.Cancellation) -> tuple[entries.Entry, ...]:
    """What has to end where `OPEN` is all that there was."""
    message = work.CANCELLED_MESSAGES[why]
    return (
        stories.ended("three", "Cancelled", message),
        stories.stage_ended(outcome="Cancelled", message=message),
        cancelled(why),
    )


async def assert_ended_in_the_log(database: databases.Database, identity: UUID, *, before: record.Record) -> None:
    """The log goes on where it was to the end of all that was open, and the narrow rows say the same."""
    log = [logged.entry for logged in await queue.log(database, identity)]
    assert log == [*OPEN, *ends_of_open("user")]
    assert record.fold(before.snapshot, [entry for entry in log if not isinstance(entry, entries.Unreadable)]).ended
    open_rows = "SELECT count(*) FROM {} WHERE ended_at IS NULL"
    for table in ("runs", "stages", "executions", "investigations"):
        assert await queue.rows(database, open_rows.format(table)) == [(0,)], table
    outcomes = "SELECT id, outcome, error FROM executions ORDER BY id"
    message = work.CANCELLED_MESSAGES["user"]
    assert await queue.rows(database, outcomes) == [
        ("one", "Completed", ""),
        ("three", "Cancelled", message),
        ("two", "Completed", ""),
    ]
    assert await queue.rows(database, "SELECT log_seq, state, token FROM work") == [(len(log), "ended", None)]


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
    assert [logged.entry for logged in await queue.log(database, identity)] == [cancelled(why)]


async def test_a_running_one_is_left_to_its_worker_which_the_heartbeat_tells(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    assert await queue.told(database, claim) is None
    assert await work.cancel(database, identity, why="user")
    assert await queue.told(database, claim) == "user"
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
    await late.commit(*OPEN)
    await work.cancel(database, identity, why="user")
    assert await work.sweep(database) == 0  # its worker lives
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 1
    await assert_ended_in_the_log(database, identity, before=late.record)
    found = await queue.summary(database, identity)
    assert (found.state, found.ending) == ("ended", "Cancelled")
    with pytest.raises(ports.LeaseLostError):
        await late.commit(stories.ended("three"))


async def test_the_sweep_leaves_a_taken_over_run_alone(database: databases.Database) -> None:
    await queue.admit(database)
    await queue.claimed(database)
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 0
    assert await queue.claim(database, owner=OTHER) is not None


async def test_a_cancelled_one_ends_when_its_worker_shuts_down_and_gives_it_back(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    await writing.commit(*OPEN)
    await work.cancel(database, identity, why="user")
    await work.release(database, claim)
    assert (await queue.summary(database, identity)).ending == "Cancelled"
    await assert_ended_in_the_log(database, identity, before=writing.record)


async def test_a_given_back_one_that_waits_again_ends_with_all_that_is_open_in_it(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    await writing.commit(*OPEN)
    await work.release(database, claim)
    assert await work.cancel(database, identity, why="user")
    await assert_ended_in_the_log(database, identity, before=writing.record)


async def test_an_unknown_or_ended_one_cannot_be_cancelled(database: databases.Database) -> None:
    assert not await work.cancel(database, uuid.uuid4(), why="user")


async def test_a_role_is_one_process_s_until_its_lease_has_passed(database: databases.Database) -> None:
    assert await leader.lead(database, "controller", owner=queue.OWNER, lease=queue.LEASE)
    assert await leader.lead(database, "controller", owner=queue.OWNER, lease=timedelta(0))
    assert await leader.lead(database, "controller", owner=OTHER, lease=queue.LEASE)
    assert not await leader.lead(database, "controller", owner=queue.OWNER, lease=queue.LEASE)
    await leader.resign(database, "controller", owner=queue.OWNER)
    assert not await leader.lead(database, "controller", owner=queue.OWNER, lease=queue.LEASE), (
        "it was not this one's to give"
    )
    await leader.resign(database, "controller", owner=OTHER)
    assert await leader.lead(database, "controller", owner=queue.OWNER, lease=queue.LEASE)


async def test_a_database_remembers_its_first_cluster(database: databases.Database) -> None:
    assert await leader.remember_cluster(database, "one")
    assert await leader.remember_cluster(database, "one")
    assert not await leader.remember_cluster(database, "two")

"""Cancel and sweep, their rows in the audit, and which process leads; on a real Postgres."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.store.base import databases
from tarsy.store.fleet import leader
from tarsy.store.operations import purge
from tarsy.store.queue import work
from tarsy.store.reads import phase_rules
from tarsy.transcript import entries, ports, record
from tarsy.transcript.kinds import registry

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


def cancelled(why: phase_rules.Cancellation) -> entries.RunEnded:
    return entries.RunEnded(
        ending="Cancelled", reason=phase_rules.CANCELLED_REASONS[why], message=work.CANCELLED_MESSAGES[why]
    )


def ends_of_open(why: phase_rules.Cancellation) -> tuple[entries.Entry, ...]:
    """Return the entries that end all that is open after `OPEN`."""
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
    assert registry.fold(before.snapshot, [entry for entry in log if not isinstance(entry, entries.Unreadable)]).ended
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
async def test_cancelled_queued_investigation_ends_at_once(
    database: databases.Database, why: phase_rules.Cancellation, reason: str
) -> None:
    identity = await queue.admit(database)
    assert await work.cancel(database, identity, why=why)
    summary = await queue.summary(database, identity)
    assert (summary.state, summary.ending, summary.reason) == ("ended", "Cancelled", reason)
    assert summary.ended_at is not None
    assert summary.message == work.CANCELLED_MESSAGES[why]
    assert await queue.claim(database) is None
    assert not await work.cancel(database, identity, why="user")
    assert [logged.entry for logged in await queue.log(database, identity)] == [cancelled(why)]


async def test_takeover_of_a_cancelled_run_has_the_cancel(database: databases.Database) -> None:
    identity = await queue.admit(database)
    await queue.claimed(database)
    await work.cancel(database, identity, why="deleted")
    await queue.let_leases_pass(database)
    assert (await queue.claimed(database)).cancel == "deleted"


async def test_sweep_ends_a_cancelled_run_without_a_worker_and_fences_that_worker(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    late = await queue.opened(database, claim)
    await late.commit(*OPEN)
    await work.cancel(database, identity, why="user")
    assert await work.sweep(database) == 0  # its worker lives
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 1
    await assert_ended_in_the_log(database, identity, before=late.record)
    summary = await queue.summary(database, identity)
    assert (summary.state, summary.ending) == ("ended", "Cancelled")
    with pytest.raises(ports.LeaseLostError):
        await late.commit(stories.ended("three"))


async def test_the_sweep_leaves_a_taken_over_run_alone(database: databases.Database) -> None:
    await queue.admit(database)
    await queue.claimed(database)
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 0
    assert await queue.claim(database, owner=OTHER) is not None


async def test_cancelled_run_ends_when_its_worker_shuts_down_and_releases_it(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    await writing.commit(*OPEN)
    await work.cancel(database, identity, why="user")
    await work.release(database, claim)
    assert (await queue.summary(database, identity)).ending == "Cancelled"
    await assert_ended_in_the_log(database, identity, before=writing.record)


async def test_cancelled_run_that_was_released_ends_with_its_open_executions(database: databases.Database) -> None:
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    await writing.commit(*OPEN)
    await work.release(database, claim)
    assert await work.cancel(database, identity, why="user")
    await assert_ended_in_the_log(database, identity, before=writing.record)


async def audited(database: databases.Database, action: str = "cancel") -> list[UUID]:
    """Return the investigations of the audit's rows for that action by the caller, in order; rows of others do not
    count.
    """
    select = "SELECT investigation FROM audit WHERE (action, who, address) = (:action, :who, :address) ORDER BY 1"
    by = queue.CALLER
    return [uid for (uid,) in await queue.rows(database, select, action=action, who=by.who, address=by.address)]


async def test_cancel_ends_an_investigation_with_an_expired_lease(database: databases.Database) -> None:
    identity = await queue.admit(database)
    late = await queue.opened(database, await queue.claimed(database))
    await late.commit(*OPEN)
    await queue.let_leases_pass(database)
    assert await work.cancel(database, identity, why="user", by=queue.CALLER) == "Cancelled"
    await assert_ended_in_the_log(database, identity, before=late.record)
    with pytest.raises(ports.LeaseLostError):
        await late.commit(stories.ended("three"))
    assert await work.cancel(database, identity, why="user", by=queue.CALLER) is None
    assert await audited(database) == [identity]


async def test_second_cancel_only_ends_a_run_that_lost_its_worker(database: databases.Database) -> None:
    by_spec, identity = await queue.admit(database), await queue.admit(database)
    for investigation in (by_spec, identity):
        assert (await queue.claimed(database)).investigation == investigation
    assert await work.cancel(database, by_spec, why="user") == "Cancelling"
    assert await work.cancel(database, identity, why="user", by=queue.CALLER) == "Cancelling"
    revision = (await queue.summary(database, identity)).revision
    for investigation in (identity, by_spec):
        assert await work.cancel(database, investigation, why="user", by=queue.CALLER) == "Cancelling"
        assert await work.cancel(database, investigation, why="deleted") == "Cancelling"
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.cancel, summary.revision) == ("Cancelling", "user", revision)
    await queue.let_leases_pass(database)
    for investigation in (identity, by_spec):
        assert await work.cancel(database, investigation, why="user", by=queue.CALLER) == "Cancelled"
        assert [logged.entry for logged in await queue.log(database, investigation)] == [cancelled("user")]
    assert await audited(database) == sorted((identity, identity, by_spec)), "who began it, and who ended it"


async def test_cancelled_investigation_without_a_worker_ends_at_once(database: databases.Database) -> None:
    held = await queue.admit(database, queue.subject(suspend=True))
    unreadable = await queue.admit(database)
    await work.release(database, await queue.claimed(database), unreadable="a row too many", build=queue.BUILD)
    killed = await queue.admit(database)
    await queue.claimed(database)
    await queue.execute(database, "UPDATE work SET suspend = true WHERE investigation = :id", id=killed)
    await queue.let_leases_pass(database)
    for identity in (held, unreadable, killed):
        assert await work.cancel(database, identity, why="user", by=queue.CALLER) == "Cancelled"
        assert (await queue.summary(database, identity)).phase == "Cancelled"
    assert await audited(database) == sorted((held, unreadable, killed))


async def test_fifty_concurrent_cancels_end_a_run_once(database: databases.Database) -> None:
    identity = await queue.admit(database)
    cancels = (work.cancel(database, identity, why="user", by=queue.CALLER) for _ in range(50))
    assert sorted(map(str, await asyncio.gather(*cancels))) == ["Cancelled", *["None"] * 49]
    assert [logged.entry for logged in await queue.log(database, identity)] == [cancelled("user")]
    assert await audited(database) == [identity]


async def test_cancel_takes_effect_beside_concurrent_changes(database: databases.Database) -> None:
    """A claim or the commit of the end, the cancel of the spec, a purge, a sweep: each time in another order."""
    claims = [await claimed_one(database) for _ in range(15)]
    ends = {claim.investigation: (await queue.opened(database, claim)).commit(stories.run_ended()) for claim in claims}
    asked = [*ends, *[await queue.admit(database) for _ in range(15)]]
    outcomes = dict[UUID, work.Cancelled | None]()

    async def cancel(identity: UUID) -> None:
        outcomes[identity] = await work.cancel(database, identity, why="user", by=queue.CALLER)

    async def claim() -> None:
        with contextlib.suppress(work.BusyError):
            await queue.claim(database)

    for number, identity in enumerate(asked):
        at_once = [
            cancel(identity),
            ends.get(identity) or claim(),
            work.cancel(database, identity, why="user"),
            purge.purge(database, identity, by=queue.CALLER),
            work.sweep(database),
        ]
        offset = number % len(at_once)
        await asyncio.gather(*at_once[offset:], *at_once[:offset])
    await queue.let_leases_pass(database)
    await work.sweep(database)
    assert await queue.rows(database, "SELECT DISTINCT state FROM work") == [("ended",)]
    purged = await audited(database, "purge")
    ended = "SELECT investigation FROM entries WHERE kind = 'RunEnded' ORDER BY 1"
    assert [uid for (uid,) in await queue.rows(database, ended)] == sorted(set(asked) - set(purged)), "each once"
    cancels = await audited(database)
    assert len(cancels) == len(set(cancels))
    assert {outcomes[identity] for identity in cancels} <= {"Cancelled", "Cancelling"}


async def claimed_one(database: databases.Database) -> work.Claim:
    """A new investigation that runs."""
    await queue.admit(database)
    return await queue.claimed(database)


async def test_role_belongs_to_one_process_until_its_lease_expires(database: databases.Database) -> None:
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

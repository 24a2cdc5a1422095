"""Parked runs: what waits for something outside has no claim, no slot and no attempt, and its clock stands still."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from support import queue, supervisors
from tarsy.store.base import databases
from tarsy.store.operations import measures
from tarsy.store.queue import ledgers, work
from tarsy.store.reads import queue_counts
from tarsy.transcript import entries, messages, ports, record

STAGE = "look"
SIDE_BY_SIDE = queue.chain(stages=[{"name": STAGE, "agent": "KubernetesAgent", "replicas": 2}])
NEVER = datetime.max.replace(tzinfo=UTC)
MESSAGE = "the budget 'day' is spent"


class Model:
    """Lets the executions in `waiting` wait, and answers all others."""

    def __init__(self, *waiting: str, until: datetime = NEVER) -> None:
        self.waiting = set(waiting)
        self.until = until
        self.asked: list[str] = []

    async def ask(self, _request: ports.Request, scope: ports.Scope) -> ports.Answer:
        self.asked.append(scope.execution)
        if scope.execution in self.waiting:
            raise ports.MustWaitError(ports.Wait(reason="BudgetSpent", message=MESSAGE, until=self.until))
        call = entries.ModelCall(provider="scripted", model="scripted", seconds=0.0)
        return ports.Answer(message=messages.Message(role="assistant", text="done"), call=call)


async def work_on(database: databases.Database, model: Model) -> None:
    """Claim the next run as a worker does, and run it as far as it goes."""
    await supervisors.run_next(supervisors.supervisor(database, model))


def agent(identity: UUID, index: int) -> str:
    return record.execution_id(str(identity), run=0, stage=STAGE, kind="agent", index=index)


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def wake(database: databases.Database) -> None:
    """Let the time of all parked runs come, and sweep."""
    await queue.execute(database, "UPDATE work SET wake_at = clock_timestamp() WHERE state = 'parked'")
    await work.sweep(database)


async def parked(database: databases.Database) -> UUID:
    identity = await queue.admit(database, chain=SIDE_BY_SIDE)
    await work_on(database, Model(agent(identity, 0), agent(identity, 1), until=in_an_hour()))
    return identity


async def test_a_run_is_parked_once_no_execution_works_and_goes_on_where_it_stood(database: databases.Database) -> None:
    identity = await queue.admit(database, chain=SIDE_BY_SIDE)
    until = in_an_hour()
    first = Model(agent(identity, 1), until=until)
    await work_on(database, first)
    assert sorted(first.asked) == sorted([agent(identity, 0), agent(identity, 1)]), "each once"
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.state, summary.attempts, summary.llm_calls) == ("Waiting", "parked", 0, 1)
    assert summary.waits_for == f"waits: {MESSAGE}; it goes on at {until:%Y-%m-%dT%H:%M:%SZ}"
    assert await queue.rows(database, "SELECT token, lease_until FROM work") == [(None, None)]
    assert await queue.claim(database) is None

    await wake(database)
    second = Model()
    await work_on(database, second)
    assert second.asked[0] == agent(identity, 1), "only the one that waited is asked again"
    assert agent(identity, 0) not in second.asked
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.waits_for, summary.wait_reason) == ("Completed", "", None)


async def test_runs_that_wait_for_a_budget_are_queued_once_its_limits_change(database: databases.Database) -> None:
    """A run that waits for anything else goes on waiting."""
    await parked(database)
    await queue.execute(database, "UPDATE work SET wait_reason = 'AnythingElse'")
    await ledgers.wake_waiting(database)
    await work.sweep(database)
    assert await queue.claim(database) is None
    await queue.execute(database, "UPDATE work SET wait_reason = 'BudgetSpent'")
    await ledgers.wake_waiting(database)
    await work.sweep(database)
    assert await queue.claim(database) is not None


async def test_the_clock_of_a_parked_run_stands_still(database: databases.Database) -> None:
    identity = await parked(database)
    await queue.execute(
        database,
        "UPDATE runs SET started_at = started_at - interval '3 h', suspended_at = suspended_at - interval '3 h'",
    )
    await wake(database)
    again = await queue.claimed(database)
    assert again.investigation == identity
    assert again.age < 60, "three hours of the wait do not count"
    assert (again.attempts, again.attempts_without_progress, again.is_takeover) == (1, 1, False)


async def test_parked_runs_count_as_neither_running_nor_queued_until_they_are_due(database: databases.Database) -> None:
    await parked(database)
    other = await queue.admit(database, queue.subject("other"))
    assert await work.queued(database) == 1
    counts = await queue_counts.count(database)
    assert (counts.parked, counts.queued, counts.running) == (1, 1, 0)
    read = await measures.read(database)
    assert read.investigations["Waiting", "tarsy", "pod-crash", ""] == 1
    assert read.queue["tarsy", "pod-crash"].count == 1
    claim = await queue.claim(database, max_running=1)
    assert claim is not None, "the parked one is not among those that run"
    assert claim.investigation == other
    await work.cancel(database, other, why="user")
    await wake(database)
    assert (await queue_counts.count(database)).queued == 1
    assert (await measures.read(database)).queue["tarsy", "pod-crash"].count == 1


async def test_cancel_of_a_parked_run_ends_it_at_once(database: databases.Database) -> None:
    identity = await parked(database)
    assert await work.cancel(database, identity, why="user") == "Cancelled"
    summary = await queue.summary(database, identity)
    assert (summary.ending, summary.waits_for) == ("Cancelled", "")
    ends = [logged.entry for logged in await queue.log(database, identity)][-4:]
    assert [type(end).__name__ for end in ends] == ["ExecutionEnded", "ExecutionEnded", "StageEnded", "RunEnded"]


async def test_a_suspended_parked_run_is_not_claimed_when_its_time_comes(database: databases.Database) -> None:
    subject = queue.subject()
    identity = await queue.admit(database, subject, chain=SIDE_BY_SIDE)
    await work_on(database, Model(agent(identity, 0), agent(identity, 1), until=in_an_hour()))
    for generation, suspend, phase in ((2, True, "Suspended"), (3, False, "Waiting")):
        metadata = subject.metadata.model_copy(update={"generation": generation})
        spec = subject.spec.model_copy(update={"suspend": suspend})
        await work.observe(database, subject.model_copy(update={"metadata": metadata, "spec": spec}))
        assert (await queue.summary(database, identity)).phase == phase
        if suspend:
            await wake(database)
            assert await queue.claim(database) is None
    await work.sweep(database)
    assert (await queue.claimed(database)).investigation == identity


@pytest.mark.parametrize("released", [True, False], ids=["after the release", "before it"])
async def test_a_worker_that_dies_around_the_release_loses_nothing(
    database: databases.Database, *, released: bool
) -> None:
    identity = await queue.admit(database, chain=SIDE_BY_SIDE)
    claim = await queue.claimed(database)
    if released:
        wait = ports.Wait(reason="BudgetSpent", message=MESSAGE, until=datetime.now(UTC))
        await work.release(database, claim, wait=wait)
        await work.release(database, claim, wait=wait)  # a reply that was lost: the second changes nothing
    else:
        await queue.let_leases_pass(database)
    await work.sweep(database)
    model = Model()
    await work_on(database, model)
    assert (await queue.summary(database, identity)).ending == "Completed"
    journal = await queue.opened(database, replace(claim, log_seq=0))
    with pytest.raises(ports.LeaseLostError):
        await journal.commit(entries.StageStarted(stage=STAGE, clock=0.0))

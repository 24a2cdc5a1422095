"""The turns that commits of one journal take: proved by a gate at the writing, never by waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tarsy.transcript import commit_queue, entries, messages, nesting, ports, record
from tarsy.transcript.kinds import registry

CALL = entries.ModelCall(provider="first", model="m", seconds=0.0)
NAMES = ("e0", "e1", "e2")
LOST = ports.LeaseLostError("another worker has it")


def answered(name: str, call_number: int = 0) -> entries.Answered:
    message = messages.Message(role="assistant", text=f"{name} says {call_number}")
    return entries.Answered(execution=name, turn=call_number, messages=(message,), call=CALL)


def ended(name: str) -> entries.ExecutionEnded:
    return entries.ExecutionEnded(execution=name, outcome="Completed")


BEGINNING: tuple[entries.Entry, ...] = (
    entries.StageStarted(stage="data-collection", clock=0.0),
    *(
        entries.ExecutionStarted(stage="data-collection", execution=name, index=index, name=name, agent=None)
        for index, name in enumerate(NAMES)
    ),
)


class Gate:
    """Where batches are written: each waits here until it is let through, and is kept only then."""

    def __init__(self) -> None:
        self.tried: list[list[entries.Entry]] = []
        self.kept: list[list[entries.Entry]] = []
        self.most_inside = 0
        self._inside = 0
        self._came = asyncio.Semaphore(0)
        self._leave: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def write(self, batch: Sequence[entries.Entry]) -> None:
        self.tried.append(list(batch))
        self._inside += 1
        self.most_inside = max(self.most_inside, self._inside)
        self._came.release()
        try:
            error = await self._leave.get()
        finally:
            self._inside -= 1
        if error is not None:
            raise error
        self.kept.append(list(batch))

    async def came(self) -> None:
        """Return once a batch is being written."""
        await self._came.acquire()

    def let(self, error: Exception | None = None) -> None:
        """Let one batch through, or break it."""
        self._leave.put_nowait(error)


@pytest.fixture
def so_far(snapshot: record.Snapshot) -> record.Record:
    """A stage of three agents, all of which have begun."""
    return registry.fold(snapshot, BEGINNING)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def commits(so_far: record.Record, gate: Gate) -> commit_queue.CommitQueue[entries.Entry]:
    return commit_queue.CommitQueue(so_far, prepare=lambda entry: entry, write=gate.write)


async def waiting(*tasks: asyncio.Task[None]) -> None:
    """Return once each of these tasks has gone as far as it can; none may be done by then."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def texts_of(so_far: record.Record, name: str) -> list[str]:
    return [message.text for message in so_far.executions[name].log]


async def test_concurrent_commits_are_all_stored_in_order_and_in_two_batches(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    tasks = [asyncio.create_task(commits.commit(answered(name))) for name in NAMES]
    await gate.came()
    await waiting(*tasks)
    assert gate.tried == [[answered("e0")]], "the others wait for their turn"
    gate.let()
    await gate.came()
    await waiting(tasks[1], tasks[2])
    assert tasks[0].done(), "it does not wait for those behind it"
    assert (texts_of(so_far, "e0"), texts_of(so_far, "e1")) == (["e0 says 0"], [])
    gate.let()
    await asyncio.gather(*tasks)
    assert gate.kept == [[answered("e0")], [answered("e1"), answered("e2")]]
    assert gate.most_inside == 1
    assert [texts_of(so_far, name) for name in NAMES] == [[f"{name} says 0"] for name in NAMES]


async def test_entries_of_one_commit_stay_together_and_unmixed(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    pairs = [(answered(name), ended(name)) for name in NAMES]
    tasks = [asyncio.create_task(commits.commit(*pair)) for pair in pairs]
    await gate.came()
    gate.let()
    gate.let()
    await asyncio.gather(*tasks)
    assert gate.kept == [[*pairs[0]], [*pairs[1], *pairs[2]]]
    assert all(execution.ended for execution in so_far.executions.values())


async def test_each_non_concurrent_commit_is_its_own_batch(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate
) -> None:
    for call_number in range(3):
        gate.let()
        await commits.commit(answered("e0", call_number))
    assert gate.kept == [[answered("e0", call_number)] for call_number in range(3)]


@pytest.mark.parametrize("how", ["by the next commit", "by settle"])
async def test_commit_cancelled_while_waiting_is_still_stored(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record, how: str
) -> None:
    first, second = (asyncio.create_task(commits.commit(answered(name))) for name in NAMES[:2])
    await gate.came()
    await waiting(first, second)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.let()
    await first
    assert texts_of(so_far, "e1") == [], "nobody has written it yet"
    gate.let()
    await (commits.settle() if how == "by settle" else commits.commit(answered("e2")))
    others = [] if how == "by settle" else [answered("e2")]
    assert gate.kept == [[answered("e0")], [answered("e1"), *others]]
    assert texts_of(so_far, "e1") == ["e1 says 0"]


@pytest.mark.parametrize("how", ["by the next commit", "by one that waits", "by settle"])
async def test_batch_with_cancelled_write_is_written_again_unchanged(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record, how: str
) -> None:
    first = asyncio.create_task(commits.commit(answered("e0"), ended("e0")))
    await gate.came()
    later: asyncio.Task[None] | None = None
    if how == "by one that waits":
        later = asyncio.create_task(commits.commit(answered("e1")))
        await waiting(first, later)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert gate.kept == []
    assert so_far.executions["e0"].ended is None
    later = later or asyncio.create_task(commits.settle() if how == "by settle" else commits.commit(answered("e1")))
    await gate.came()
    gate.let()
    gate.let()
    await later
    again = [answered("e0"), ended("e0")]
    assert gate.tried[:2] == [again, again], "nothing was added to it: half of it may be there already"
    assert gate.kept == [again] if how == "by settle" else [again, [answered("e1")]]
    assert texts_of(so_far, "e0") == ["e0 says 0"]


async def test_batch_of_several_commits_is_stored_even_if_its_writer_is_cancelled(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    tasks = [asyncio.create_task(commits.commit(answered(name))) for name in NAMES]
    await gate.came()
    gate.let()
    await gate.came()
    await waiting(*tasks[1:])
    tasks[1].cancel()  # it writes for the third one too
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    gate.let()
    await tasks[2]
    both = [answered("e1"), answered("e2")]
    assert (gate.tried, gate.kept) == ([[answered("e0")], both, both], [[answered("e0")], both])
    assert [texts_of(so_far, name) for name in NAMES] == [[f"{name} says 0"] for name in NAMES]


async def test_settle_writes_nothing_if_all_is_settled(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate
) -> None:
    await commits.settle()
    gate.let()
    await commits.commit(answered("e0"))
    await commits.settle()
    assert gate.tried == [[answered("e0")]]


async def test_settle_waits_for_a_commit_that_is_under_way_and_for_those_behind_it(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    tasks = [asyncio.create_task(commits.commit(answered(name))) for name in NAMES[:2]]
    await gate.came()
    await waiting(*tasks)
    settling = asyncio.create_task(commits.settle())
    await waiting(settling)
    gate.let()
    await gate.came()
    await waiting(settling)
    gate.let()
    await settling
    assert (texts_of(so_far, "e0"), texts_of(so_far, "e1")) == (["e0 says 0"], ["e1 says 0"])
    await asyncio.gather(*tasks)


async def test_lost_lease_is_raised_to_all_waiting_and_all_later_commits(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    tasks = [asyncio.create_task(commits.commit(answered(name))) for name in NAMES]
    await gate.came()
    await waiting(*tasks)
    gate.let(LOST)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ports.LeaseLostError] * 3
    with pytest.raises(ports.LeaseLostError):
        await commits.commit(answered("e0"))
    with pytest.raises(ports.LeaseLostError):
        await commits.settle()
    assert gate.tried == [[answered("e0")]], "nobody tries again"
    assert [texts_of(so_far, name) for name in NAMES] == [[], [], []]


async def test_lost_lease_during_commit_of_cancelled_task_is_raised_on_settle(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate
) -> None:
    first = asyncio.create_task(commits.commit(answered("e0")))
    await gate.came()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.let(LOST)
    with pytest.raises(ports.LeaseLostError):
        await commits.settle()


async def test_out_of_order_entry_is_refused_and_harms_no_other_commits(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    first, second = (asyncio.create_task(commits.commit(answered(name), ended(name))) for name in NAMES[:2])
    await gate.came()
    await waiting(first, second)
    for late in ("e0", "e1"):  # of one the end is being written, of the other it waits
        with pytest.raises(nesting.OutOfOrderError, match=f"execution '{late}' has ended"):
            await commits.commit(answered(late, 1))
    with pytest.raises(nesting.OutOfOrderError, match="has not started"):
        await commits.commit(answered("e2"), answered("nobody"))
    third = asyncio.create_task(commits.commit(answered("e2")))
    await waiting(third)
    gate.let()
    gate.let()
    await asyncio.gather(first, second, third)
    assert gate.kept == [[answered("e0"), ended("e0")], [answered("e1"), ended("e1"), answered("e2")]]
    assert texts_of(so_far, "e2") == ["e2 says 0"], "of the refused commit nothing was kept, not its good half either"


async def test_commit_behind_commits_that_only_wait_may_wait_too(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    tasks = [asyncio.create_task(commits.commit(answered(name), ended(name))) for name in NAMES]
    await gate.came()
    await waiting(*tasks)
    stage_ended = entries.StageEnded(stage="data-collection", outcome="Completed")
    tasks.append(asyncio.create_task(commits.commit(stage_ended)))
    await waiting(*tasks)
    gate.let()
    gate.let()
    await asyncio.gather(*tasks)
    assert so_far.stages["data-collection"].ended == stage_ended


async def test_internal_error_during_write_is_raised_to_committer_and_batch_stays_due(
    commits: commit_queue.CommitQueue[entries.Entry], gate: Gate, so_far: record.Record
) -> None:
    first = asyncio.create_task(commits.commit(answered("e0")))
    await gate.came()
    gate.let(RuntimeError("a defect"))
    with pytest.raises(RuntimeError, match="a defect"):
        await first
    gate.let()
    await commits.settle()
    assert (gate.kept, texts_of(so_far, "e0")) == ([[answered("e0")]], ["e0 says 0"])

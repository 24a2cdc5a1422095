"""A stage's time: what it ends, what it leaves alone, and that it never begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.crew import Watched
from tarsy.engine import handover, investigation
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

pytestmark = pytest.mark.leaps

TIMED_OUT = "Stage data-collection timed out after 60 s"
LOOKS = messages.Message(
    role="assistant", text="web-0 restarts", calls=(messages.ToolCall(id="", name="k8s.get", arguments="{}"),)
)
ACCOUNT = f"""Chain Execution Summary:
- Total stages: 2
- Successful: 1
- Failed: 1

Stage Results:
❌ data-collection: {TIMED_OUT}
✅ analysis: Raise the memory limit."""
FOUND = messages.Message(role="assistant", text="It is out of memory.")


class HangingModel(memory.ScriptedModel):
    """Follows its script and hangs at the end of it; its cleaning up may be held."""

    def __init__(self, *script: messages.Message) -> None:
        super().__init__(*script)
        self.left = len(script)
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.closed = False

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        self.left -= 1
        if self.left >= 0:
            return await super().ask(request, scope)
        self.requests.append(request)
        try:
            await asyncio.Event().wait()
        finally:
            self.closing.set()
            await self.may_close.wait()
            self.closed = True
        raise AssertionError


class SlowJournal(memory.MemoryJournal):
    """Its first answer is under way until it is written again."""

    def __init__(self, snapshot: record.Snapshot, *facts: entries.Entry) -> None:
        super().__init__(snapshot, *facts)
        self.under_way: list[entries.Entry] = []
        self.begun = asyncio.Event()

    async def _write(self, batch: Sequence[entries.Entry]) -> None:
        if not self.under_way and any(isinstance(entry, entries.Answered) for entry in batch):
            self.under_way = list(batch)
            self.begun.set()
            await asyncio.Event().wait()
        await super()._write(batch)


@pytest.fixture
def snapshot(snapshot: record.Snapshot) -> record.Snapshot:
    """The first stage has a minute."""
    first, *others = snapshot.chain.stages
    stages = [first.model_copy(update={"timeout_seconds": 60}), *others]
    return replace(snapshot, chain=snapshot.chain.model_copy(update={"stages": stages}))


BEGUN = entries.StageStarted(stage="data-collection", clock=0.0)


@pytest.fixture
def journal(snapshot: record.Snapshot) -> memory.MemoryJournal:
    """The first stage has begun, and has 0.3 s left."""
    journal = memory.MemoryJournal(snapshot, BEGUN)
    journal.passed = 59.7
    return journal


@pytest.fixture
def slow(snapshot: record.Snapshot) -> SlowJournal:
    """The same, with a journal that is slow."""
    slow = SlowJournal(snapshot, BEGUN)
    slow.passed = 59.7
    return slow


@pytest.fixture
def hanging() -> HangingModel:
    return HangingModel(LOOKS)


@pytest.fixture
def second_model() -> memory.ScriptedModel:
    return memory.ScriptedModel(messages.Message(role="assistant", text="Raise the memory limit."))


@pytest.fixture
def runtime(runtime: ports.Runtime, hanging: HangingModel, second_model: memory.ScriptedModel) -> ports.Runtime:
    return replace(runtime, model={"first": hanging, "second": second_model}.__getitem__)


def ends(journal: memory.MemoryJournal) -> list[tuple[str, str]]:
    """The stages that have ended, and how."""
    return [(stage.ended.stage, stage.ended.outcome) for stage in journal.record.stages.values() if stage.ended]


async def test_timed_out_stage_fails_and_next_stage_reads_its_findings(
    runtime: ports.Runtime, journal: memory.MemoryJournal, hanging: HangingModel, second_model: memory.ScriptedModel
) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    assert hanging.closed
    assert journal.record.stages["data-collection"].ended == entries.StageEnded(
        stage="data-collection", outcome="TimedOut", message=TIMED_OUT
    )
    assert journal.record.ended == entries.RunEnded(
        ending="CompletedWithErrors",
        reason="StagesFailed",
        message=TIMED_OUT,
        final_analysis=f"{ACCOUNT}\n\nRaise the memory limit.",
        gaps=(entries.Gap(tool="-", reason="KubernetesAgent concluded without a result of its tools"),),
        grounds="NothingInspected",
    )
    task = second_model.requests[0].messages[1].text
    between = f"{handover.START}\nError: {TIMED_OUT}\n\nBefore it failed it found:\n\nweb-0 restarts\n{handover.END}"
    assert f"### Results from 'data-collection' stage:\n\n**Status**: timed_out\n\n{between}" in task


async def test_takeover_does_not_restart_the_stage_timeout(
    runtime: ports.Runtime, journal: memory.MemoryJournal, hanging: HangingModel, toolbox: memory.DictToolbox
) -> None:
    hanging.may_close.clear()
    first = asyncio.create_task(investigation.run(runtime=runtime, journal=journal))
    await hanging.closing.wait()
    first.cancel()  # before it could write that the time was over
    hanging.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = journal.taken_over()
    second.passed += 10
    sent = len(hanging.requests), len(toolbox.called)
    await investigation.run(runtime=runtime, journal=second)
    assert (len(hanging.requests), len(toolbox.called)) == sent, "a stage past its time sends nothing"
    assert ends(second) == [("data-collection", "TimedOut"), ("analysis", "Completed")]


async def test_suspended_its_time_stands_still(
    runtime: ports.Runtime, snapshot: record.Snapshot, hanging: HangingModel
) -> None:
    def suspend(added: Sequence[entries.Entry]) -> None:
        if any(isinstance(entry, entries.Answered) for entry in added):
            first.suspend()

    first = Watched(snapshot, suspend, BEGUN)
    first.passed = 50
    await investigation.run(runtime=runtime, journal=first)
    assert (ends(first), len(hanging.requests)) == ([], 1)
    second = memory.MemoryJournal(snapshot, *first.facts)
    second.passed = 50  # the run's own seconds: those in which it stood still are not among them
    hanging.left = 9
    await investigation.run(runtime=runtime, journal=second)
    assert ends(second) == [("data-collection", "Completed"), ("analysis", "Completed")]


async def test_stage_age_is_measured_by_run_clock_since_stage_start(
    runtime: ports.Runtime, snapshot: record.Snapshot
) -> None:
    journal = memory.MemoryJournal(snapshot)
    journal.passed = 3600  # the run is old; the stage is not
    await investigation.run(runtime=replace(runtime, model=lambda _: memory.ScriptedModel(FOUND)), journal=journal)
    started = journal.record.stages["data-collection"].started
    assert started
    assert 3600 <= started.clock < 3660
    assert ends(journal) == [("data-collection", "Completed"), ("analysis", "Completed")]


@pytest.mark.parametrize("cancelled", [False, True], ids=["by its time", "by a cancel, and taken over past its time"])
async def test_analysis_counts_even_if_its_commit_was_interrupted(
    runtime: ports.Runtime, slow: SlowJournal, cancelled: bool
) -> None:
    runtime = replace(runtime, model=lambda _: memory.ScriptedModel(FOUND), toolbox=lambda *_: memory.DictToolbox({}))
    if cancelled:
        running = asyncio.create_task(investigation.run(runtime=runtime, journal=slow))
        await slow.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ends(slow) == []
        await slow.settle()
        slow.passed += 3600
    await investigation.run(runtime=runtime, journal=slow)
    assert [type(entry).__name__ for entry in slow.under_way] == ["Answered", "ExecutionEnded", "StageEnded"]
    assert ends(slow) == [("data-collection", "Completed"), ("analysis", "Completed")]
    assert handover.analysis(slow.record.stages["data-collection"]) == FOUND.text


async def test_tool_calls_of_answer_with_interrupted_commit_are_not_made(
    runtime: ports.Runtime, slow: SlowJournal, toolbox: memory.DictToolbox
) -> None:
    await investigation.run(runtime=runtime, journal=slow)
    assert ends(slow)[0] == ("data-collection", "TimedOut")
    (execution,) = slow.record.stages["data-collection"].agents
    assert execution.log[-1] == replace(LOOKS, calls=(replace(LOOKS.calls[0], id="0.0"),))
    assert toolbox.called == []


async def test_a_timeout_of_other_origin_is_not_the_stages(runtime: ports.Runtime, snapshot: record.Snapshot) -> None:
    class Broken(memory.MemoryJournal):
        async def ensure_lease(self) -> None:
            raise TimeoutError("of other origin")

        async def _write(self, batch: Sequence[entries.Entry]) -> None:
            self.facts.extend(batch)

    broken = Broken(snapshot)
    with pytest.RaisesGroup(pytest.RaisesExc(TimeoutError, match="of other origin"), flatten_subgroups=True):
        await investigation.run(runtime=runtime, journal=broken)
    assert ends(broken) == []


async def test_a_stage_without_a_limit_is_never_too_old(runtime: ports.Runtime, snapshot: record.Snapshot) -> None:
    unlimited = chains.Stage(name="data-collection", agent="KubernetesAgent", llm_provider="second")
    without = snapshot.chain.model_copy(update={"stages": [unlimited, snapshot.chain.stages[1]]})
    journal = memory.MemoryJournal(replace(snapshot, chain=without), BEGUN)
    journal.passed = 1e6
    await investigation.run(runtime=runtime, journal=journal)
    assert ends(journal) == [("data-collection", "Completed"), ("analysis", "Completed")]

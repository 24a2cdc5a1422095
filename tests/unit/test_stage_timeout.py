"""A stage's time: what it ends, what it leaves alone, and that it never begins anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tarsy.engine import handover, investigation
from tarsy.resources import chain
from tarsy.transcript import entries, memory, messages, ports, record

TIMED_OUT = "Stage data-collection timed out after 60 s"
LOOKS = messages.Message(
    role="assistant", text="web-0 restarts", calls=(messages.ToolCall(id="", name="k8s.get", arguments="{}"),)
)
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

    async def ask(self, request: ports.Request, *, ensure_lease: ports.EnsureLease) -> ports.Answer:
        self.left -= 1
        if self.left >= 0:
            return await super().ask(request, ensure_lease=ensure_lease)
        self.requests.append(request)
        try:
            await asyncio.Event().wait()
        finally:
            self.closing.set()
            await self.may_close.wait()
            self.closed = True
        raise AssertionError


class SlowJournal(memory.MemoryJournal):
    """Its commits of answers are under way until they are settled."""

    def __init__(self, subject: record.Subject, *facts: entries.Entry) -> None:
        super().__init__(subject, *facts)
        self.under_way: entries.Entry | None = None
        self.begun = asyncio.Event()

    async def commit(self, entry: entries.Entry) -> None:
        if isinstance(entry, entries.Answered) and entry.execution == "data-collection/1":
            self.under_way = entry
            self.begun.set()
            await asyncio.Event().wait()
        assert self.under_way is None
        await super().commit(entry)

    async def settle(self) -> None:
        if self.under_way is not None:
            entry, self.under_way = self.under_way, None
            await super().commit(entry)


@pytest.fixture
def subject(subject: record.Subject) -> record.Subject:
    """The first stage has a minute."""
    first, *others = subject.chain.stages
    stages = [first.model_copy(update={"timeout_seconds": 60}), *others]
    return replace(subject, chain=subject.chain.model_copy(update={"stages": stages}))


def aged(journal: memory.MemoryJournal, *, by: float) -> None:
    """Let the first stage have started so many seconds earlier."""
    journal.record.stages["data-collection"].since -= by


@pytest.fixture
def journal(subject: record.Subject) -> memory.MemoryJournal:
    """The first stage has begun, and has 0.3 s left."""
    journal = memory.MemoryJournal(subject, entries.StageStarted(stage="data-collection"))
    aged(journal, by=59.7)
    return journal


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


async def test_a_stage_whose_time_is_over_has_failed_and_the_next_one_reads_what_it_had_found(
    runtime: ports.Runtime, journal: memory.MemoryJournal, hanging: HangingModel, second_model: memory.ScriptedModel
) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    assert hanging.closed
    assert journal.record.stages["data-collection"].ended == entries.StageEnded(
        stage="data-collection", outcome="TimedOut", message=TIMED_OUT
    )
    assert journal.record.ended == entries.InvestigationEnded(
        ending="CompletedWithErrors",
        reason="StagesFailed",
        message=TIMED_OUT,
        final_analysis="Raise the memory limit.",
    )
    told = second_model.requests[0].messages[1].text
    between = f"{handover.START}\nError: {TIMED_OUT}\n\nBefore it failed it found:\n\nweb-0 restarts\n{handover.END}"
    assert f"## Stage 'data-collection' failed\n\n{between}" in told


async def test_a_takeover_does_not_begin_its_time_anew(
    runtime: ports.Runtime, journal: memory.MemoryJournal, hanging: HangingModel, toolbox: memory.DictToolbox
) -> None:
    hanging.may_close.clear()
    first = asyncio.create_task(investigation.run(runtime=runtime, journal=journal))
    await hanging.closing.wait()
    first.cancel()  # before it could write that the time was over
    with pytest.raises(asyncio.CancelledError):
        await first
    second = journal.taken_over()
    aged(second, by=10)
    sent = len(hanging.requests), len(toolbox.called)
    await investigation.run(runtime=runtime, journal=second)
    assert (len(hanging.requests), len(toolbox.called)) == sent, "a stage past its time sends nothing"
    assert ends(second) == [("data-collection", "TimedOut"), ("analysis", "Completed")]


async def test_a_cancel_that_comes_while_the_time_ends_the_call_is_not_swallowed(
    runtime: ports.Runtime, journal: memory.MemoryJournal, hanging: HangingModel
) -> None:
    hanging.may_close.clear()
    running = asyncio.create_task(investigation.run(runtime=runtime, journal=journal))
    await hanging.closing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ends(journal) == []


@pytest.mark.parametrize("cancelled", [False, True], ids=["by its time", "by a cancel, and taken over past its time"])
async def test_an_analysis_counts_whose_commit_was_interrupted(
    runtime: ports.Runtime, journal: memory.MemoryJournal, subject: record.Subject, cancelled: bool
) -> None:
    slow = SlowJournal(subject, *journal.facts)
    aged(slow, by=59.7)
    runtime = replace(runtime, model=lambda _: memory.ScriptedModel(FOUND))
    if cancelled:
        running = asyncio.create_task(investigation.run(runtime=runtime, journal=slow))
        await slow.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await slow.settle()
        aged(slow, by=3600)
    await investigation.run(runtime=runtime, journal=slow)
    assert ends(slow) == [("data-collection", "Completed"), ("analysis", "Completed")]
    assert handover.analysis(slow.record.stages["data-collection"]) == FOUND.text


async def test_calls_of_an_answer_whose_commit_was_interrupted_are_not_made(
    runtime: ports.Runtime, journal: memory.MemoryJournal, subject: record.Subject, toolbox: memory.DictToolbox
) -> None:
    slow = SlowJournal(subject, *journal.facts)
    aged(slow, by=59.7)
    await investigation.run(runtime=runtime, journal=slow)
    assert ends(slow)[0] == ("data-collection", "TimedOut")
    assert slow.record.execution("data-collection/1").log[-1] == replace(
        LOOKS, calls=(replace(LOOKS.calls[0], id="0.0"),)
    )
    assert toolbox.called == []


async def test_a_timeout_of_other_origin_is_not_the_stages(runtime: ports.Runtime, subject: record.Subject) -> None:
    class Broken(memory.MemoryJournal):
        async def ensure_lease(self) -> None:
            raise TimeoutError("of other origin")

        async def commit(self, entry: entries.Entry) -> None:
            self._keep(entry)

    with pytest.raises(TimeoutError, match="of other origin"):
        await investigation.run(runtime=runtime, journal=Broken(subject))


async def test_a_stage_without_a_limit_is_never_too_old(runtime: ports.Runtime, journal: memory.MemoryJournal) -> None:
    unlimited = chain.Stage(name="data-collection", agent="KubernetesAgent", llm_provider="second")
    spec = journal.record.subject.chain
    without = spec.model_copy(update={"stages": [unlimited, spec.stages[1]]})
    journal = memory.MemoryJournal(replace(journal.record.subject, chain=without), *journal.facts)
    aged(journal, by=1e6)
    await investigation.run(runtime=runtime, journal=journal)
    assert ends(journal) == [("data-collection", "Completed"), ("analysis", "Completed")]

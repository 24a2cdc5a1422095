"""Agents side by side: they overlap, they are told in order, and none of them takes another one down.

What joins their results comes behind them (`test_synthesis.py`); here it is one more that is asked.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.crew import (
    FATAL,
    FIRST,
    JOINED,
    NAMES,
    SECOND,
    STAGE,
    SYNTHESIS,
    THIRD,
    TOOLS,
    UNKNOWN,
    Batches,
    Crew,
    Script,
    Shop,
    Tools,
    Watched,
    analysis,
)
from support.executions import asks, says
from tarsy import failpoints
from tarsy.agent import loop
from tarsy.engine import handover, investigation
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

TIMED_OUT = f"Stage {STAGE} timed out after 60 s"
CRASHED = pytest.RaisesGroup(failpoints.TriggeredError, allow_unwrapped=True, flatten_subgroups=True)
Stage = dict[str, Any]
THREE: Stage = {"agent": "KubernetesAgent", "replicas": 3}


@pytest.fixture
def stage() -> Stage:
    """Settings of the chain's first stage beside its name."""
    return THREE


@pytest.fixture
def snapshot(snapshot: record.Snapshot, stage: Stage) -> record.Snapshot:
    """One stage of three agents; behind it the one agent of another."""
    stages = [{"name": STAGE, **stage}, {"name": "analysis", "agent": "KubernetesAgent", "llmProvider": "second"}]
    spec = {"alertTypes": ["KubePodCrashLooping"], "stages": stages, "executiveSummary": {"enabled": False}}
    return replace(snapshot, chain=chains.Spec.model_validate(spec))


@pytest.fixture
def alone(snapshot: record.Snapshot) -> record.Snapshot:
    """The stage of three agents, and nothing behind it."""
    stages = snapshot.chain.stages[:1]
    return replace(snapshot, chain=snapshot.chain.model_copy(update={"stages": stages}))


@pytest.fixture
def scripts() -> dict[str, Script]:
    """Answers of the agents; an agent that is not in it knows at once."""
    return {}


@pytest.fixture
def crew(scripts: dict[str, Script]) -> Crew:
    return Crew(scripts)


@pytest.fixture
def tools() -> Tools:
    """Tools of the agents; without tools no agent looks, and none is asked to."""
    return {}


WITH_TOOLS = pytest.mark.parametrize("tools", [TOOLS], ids=["with tools"])


@pytest.fixture
def second_model(tools: Tools) -> memory.ScriptedModel:
    """Model of the second stage; it looks, if it can."""
    return memory.ScriptedModel(*([asks("k8s.get")] if tools else []), says("Raise the memory limit."))


@pytest.fixture
def shop(tools: Tools) -> Iterator[Shop]:
    """The toolboxes: whatever a test does, each is closed by the task that opened it."""
    shop = Shop(tools)
    yield shop
    assert shop.open == []


@pytest.fixture
def runtime(runtime: ports.Runtime, crew: Crew, second_model: memory.ScriptedModel, shop: Shop) -> ports.Runtime:
    models: dict[str, ports.Model] = {"first": crew, "second": second_model}
    return replace(runtime, model=models.__getitem__, toolbox=shop)


def outcomes(journal: ports.Journal) -> list[tuple[str, str]]:
    """The first stage's agents, in order: their names and how they ended."""
    ended = [(execution.started.name, execution.ended) for execution in journal.record.stages[STAGE].agents]
    return [(name, end.outcome if end else "") for name, end in ended]


def stage_end(journal: ports.Journal) -> entries.StageEnded:
    end = journal.record.stages[STAGE].ended
    assert end
    return end


@pytest.mark.parametrize(
    ("stage", "scripts", "outcome", "joined"),
    [(THREE, {}, "Completed", JOINED), ({**THREE, "successPolicy": "all"}, {SECOND: [FATAL]}, "Failed", "")],
    ids=["their results are joined", "one has failed, and that is the end"],
)
async def test_stage_ends_if_last_answers_of_its_agents_are_written_together(
    runtime: ports.Runtime, alone: record.Snapshot, outcome: str, joined: str
) -> None:
    """Each of them saw the others open still when it committed, so none brought what follows on all three."""

    class Slow(memory.MemoryJournal):
        """Writes nothing of an answer before all three have asked for it."""

        batches: list[int] = []

        async def commit(self, *added: entries.Entry) -> None:
            is_answer = isinstance(added[0], entries.Answered | entries.Unanswered)
            if is_answer and not self.record.stages[STAGE].synthesis:
                await all_have_answered.wait()
            await super().commit(*added)

        async def _write(self, batch: Sequence[entries.Entry]) -> None:
            await asyncio.sleep(0)
            self.batches.append(sum(isinstance(entry, entries.ExecutionEnded) for entry in batch))
            await super()._write(batch)

    all_have_answered = asyncio.Barrier(3)
    journal = Slow(alone)
    async with asyncio.timeout(60):
        await investigation.run(runtime=runtime, journal=journal)
    assert max(journal.batches) == 2, "the one at the gate, and the two that waited behind it"
    assert stage_end(journal).outcome == outcome
    assert journal.record.ended
    assert [type(fact).__name__ for fact in journal.facts[-2:]] == ["StageEnded", "RunEnded"]
    synthesis = journal.record.stages[STAGE].synthesis
    assert (synthesis.analysis if synthesis else "") == joined


@pytest.mark.parametrize("scripts", [{}, {SYNTHESIS: [FATAL]}], ids=["to a synthesis", "to the next stage"])
async def test_agent_results_are_handed_over_in_agent_order_regardless_of_end_order(
    runtime: ports.Runtime,
    snapshot: record.Snapshot,
    crew: Crew,
    second_model: memory.ScriptedModel,
    scripts: dict[str, Script],
) -> None:
    has_ended = {name: asyncio.Event() for name in NAMES}

    async def after_the_next(name: str, _call_number: int) -> None:
        if name != THIRD:
            await has_ended[NAMES[NAMES.index(name) + 1]].wait()

    def tell(added: Sequence[entries.Entry]) -> None:
        for entry in added:
            if isinstance(entry, entries.ExecutionEnded):
                name = journal.record.executions[entry.execution].started.name
                has_ended.get(name, asyncio.Event()).set()

    crew.meanwhile = after_the_next
    journal = Watched(snapshot, tell)
    await investigation.run(runtime=runtime, journal=journal)
    ended = [fact.execution for fact in journal.facts if isinstance(fact, entries.ExecutionEnded)]
    in_order = [agent.started.execution for agent in journal.record.stages[STAGE].agents]
    assert ended[:3] == in_order[::-1]
    settings = "" if scripts else "**Provider**: first\n**Strategy**: native-thinking\n"
    parts = [
        f"#### Agent {number}: {name}\n{settings}**Status**: completed\n\n"
        f"{handover.START}\n{analysis(name)}\n{handover.END}"
        for number, name in enumerate(NAMES, 1)
    ]
    task = second_model.requests[0].messages[1].text
    reader_task = task if scripts else crew.task_of_synthesis()
    heading = f"### Results from '{STAGE}' stage:" if scripts else "# The agents of this stage"
    assert "\n\n".join([heading, *parts]) in reader_task
    assert (f"{handover.START}\n{JOINED}\n{handover.END}" in task) != bool(scripts)


@pytest.mark.parametrize(
    ("policy", "outcome", "ending"), [("any", "Completed", "Completed"), ("all", "Failed", "CompletedWithErrors")]
)
async def test_an_agent_that_cannot_be_resolved_fails_alone(
    runtime: ports.Runtime,
    snapshot: record.Snapshot,
    crew: Crew,
    second_model: memory.ScriptedModel,
    policy: chains.SuccessPolicy,
    outcome: str,
    ending: str,
) -> None:
    agents = [chains.StageAgent(name=name) for name in ("KubernetesAgent", "Nobody", "KubernetesAgent")]
    look = chains.Stage(name=STAGE, agents=agents, success_policy=policy)
    spec = snapshot.chain.model_copy(update={"stages": [look, snapshot.chain.stages[1]]})
    journal = memory.MemoryJournal(replace(snapshot, chain=spec))
    await investigation.run(runtime=runtime, journal=journal)
    assert outcomes(journal) == [(FIRST, "Completed"), ("Nobody", "Failed"), (SECOND, "Completed")]
    assert (stage_end(journal).outcome, stage_end(journal).message) == (outcome, f"Nobody: {UNKNOWN}")
    assert journal.record.ended
    assert journal.record.ended.ending == ending
    if policy == "all":
        assert SYNTHESIS not in crew.names
        settings, task = "", second_model.requests[0].messages[1].text
    else:
        settings, task = "**Provider**: none\n", crew.task_of_synthesis()
    error = f"**Status**: failed\n\n{handover.START}\nError: {UNKNOWN}\n"
    assert f"#### Agent 2: Nobody\n{settings}{error}" in task


@pytest.mark.parametrize("scripts", [{SECOND: [FATAL]}])
@pytest.mark.parametrize("stage", [{**THREE, "successPolicy": "all"}])
async def test_failure_of_one_parallel_agent_stops_no_other_agent(
    runtime: ports.Runtime, alone: record.Snapshot, crew: Crew
) -> None:
    def tell(added: Sequence[entries.Entry]) -> None:
        if any(isinstance(entry, entries.ExecutionEnded) for entry in added):
            one_has_failed.set()

    async def after_the_failure(name: str, _call_number: int) -> None:
        if name != SECOND:
            await one_has_failed.wait()

    one_has_failed = asyncio.Event()
    crew.meanwhile = after_the_failure
    journal = Watched(alone, tell)
    await investigation.run(runtime=runtime, journal=journal)
    assert outcomes(journal) == [(FIRST, "Completed"), (SECOND, "Failed"), (THIRD, "Completed")]
    assert stage_end(journal).message == f"{SECOND}: the key is invalid"
    assert journal.record.ended
    assert journal.record.ended.ending == "Failed"


LOOKS: dict[str, Script] = {name: (asks("k8s.get"), says(analysis(name))) for name in NAMES}


@WITH_TOOLS
@pytest.mark.parametrize("scripts", [LOOKS])
async def test_suspension_during_two_calls_keeps_both_answers_and_starts_no_step(
    runtime: ports.Runtime, journal: memory.MemoryJournal, crew: Crew, shop: Shop, snapshot: record.Snapshot
) -> None:
    """The first has concluded; the second waits for its model, the third for its tool."""
    in_a_call, may_answer, first_has_ended = asyncio.Barrier(3), asyncio.Event(), asyncio.Event()
    ids = [record.execution_id(snapshot.id, run=0, stage=STAGE, kind="agent", index=index) for index in range(3)]

    def tell(added: Sequence[entries.Entry]) -> None:
        if any(isinstance(entry, entries.ExecutionEnded) for entry in added):
            first_has_ended.set()

    async def model(name: str, call_number: int) -> None:
        if name != FIRST:
            await first_has_ended.wait()
        if (name, call_number) == (SECOND, 1):
            await in_a_call.wait()
            await may_answer.wait()

    async def tool() -> None:
        if shop.called[-1][0] == ids[2]:
            await in_a_call.wait()
            await may_answer.wait()

    crew.meanwhile, shop.working = model, tool
    journal = Watched(snapshot, tell)
    async with asyncio.timeout(60):
        running = asyncio.create_task(investigation.run(runtime=runtime, journal=journal))
        await in_a_call.wait()
        asked, called = list(crew.asked), list(shop.called)
        journal.suspend()
        may_answer.set()
        await running
    assert (crew.asked, shop.called) == (asked, called), "no new step began"
    assert outcomes(journal) == [(FIRST, "Completed"), (SECOND, "Completed"), (THIRD, "")]
    assert messages.conversation(journal.record.executions[ids[2]].log)[-1].role == "tool", "its result was kept"
    assert journal.record.stages[STAGE].ended is None
    assert journal.record.ended is None

    second = journal.taken_over()
    await investigation.run(runtime=runtime, journal=second)
    assert outcomes(second) == [(name, "Completed") for name in NAMES]
    assert second.record.ended
    assert set(Counter([*crew.asked, *shop.called]).values()) == {1}, "what was kept is not sent again"
    assert sorted(crew.asked) == [*((name, call_number) for name in NAMES for call_number in range(2)), (SYNTHESIS, 0)]


async def test_suspension_after_first_agent_has_started_starts_no_other_agent(
    runtime: ports.Runtime, snapshot: record.Snapshot, crew: Crew, shop: Shop
) -> None:
    journal = Watched(snapshot, lambda _: journal.suspend())
    await investigation.run(runtime=runtime, journal=journal)
    assert (outcomes(journal), crew.asked, len(shop.made)) == ([(FIRST, "")], [], 1)
    second = journal.taken_over()
    await investigation.run(runtime=runtime, journal=second)
    assert outcomes(second) == [(name, "Completed") for name in NAMES]


@WITH_TOOLS
@pytest.mark.parametrize("scripts", [{SECOND: LOOKS[SECOND]}])
async def test_suspended_after_its_last_agent_the_next_stage_does_not_begin(
    runtime: ports.Runtime, snapshot: record.Snapshot, second_model: memory.ScriptedModel
) -> None:
    def suspend(added: Sequence[entries.Entry]) -> None:
        if any(isinstance(entry, entries.StageEnded) for entry in added):
            journal.suspend()

    journal = Watched(snapshot, suspend)
    await investigation.run(runtime=runtime, journal=journal)
    assert (list(journal.record.stages), second_model.requests, journal.record.ended) == ([STAGE], [], None)
    second = journal.taken_over()
    await investigation.run(runtime=runtime, journal=second)
    assert second.record.ended


async def hang(*_: object) -> None:
    await asyncio.Event().wait()


async def hang_but_the_first(name: str, _call_number: int) -> None:
    if name != FIRST:
        await hang()


def late(snapshot: record.Snapshot, *facts: entries.Entry) -> memory.MemoryJournal:
    """A journal, in which the first stage has begun and has 0.3 s left of its minute; `facts` have happened since."""
    journal = memory.MemoryJournal(snapshot, entries.StageStarted(stage=STAGE, clock=0.0), *facts)
    journal.passed = 59.7
    return journal


@pytest.mark.leaps
@pytest.mark.parametrize(
    ("stage", "outcome"),
    [
        ({**THREE, "timeoutSeconds": 60}, "CompletedWithErrors"),
        ({**THREE, "timeoutSeconds": 60, "successPolicy": "all"}, "Failed"),
    ],
    ids=["any", "all"],
)
async def test_a_stages_time_ends_those_that_have_not_and_leaves_what_has_ended(
    runtime: ports.Runtime, snapshot: record.Snapshot, crew: Crew, outcome: entries.StageOutcome
) -> None:
    crew.meanwhile = hang_but_the_first
    journal = late(snapshot)
    await investigation.run(runtime=runtime, journal=journal)
    assert outcomes(journal) == [(FIRST, "Completed"), (SECOND, "TimedOut"), (THIRD, "TimedOut")]
    problems = [f"{SECOND}: {TIMED_OUT}", f"{THIRD}: {TIMED_OUT}"]
    if outcome == "CompletedWithErrors":
        problems.append(f"synthesis by {SYNTHESIS}: {TIMED_OUT}")
    assert stage_end(journal) == entries.StageEnded(stage=STAGE, outcome=outcome, message="; ".join(problems))
    assert SYNTHESIS not in crew.names, "there is no time left for it"
    assert journal.record.stages[STAGE].agents[0].analysis == analysis(FIRST)


@pytest.mark.leaps
@pytest.mark.parametrize("stage", [{**THREE, "timeoutSeconds": 60}])
async def test_those_that_never_began_have_timed_out_too(
    runtime: ports.Runtime, snapshot: record.Snapshot, shop: Shop
) -> None:
    journal = late(snapshot)

    async def not_in_the_first_stage() -> None:
        if STAGE not in journal.record.stages or not journal.record.stages[STAGE].ended:
            await hang()

    shop.opening = not_in_the_first_stage
    await investigation.run(runtime=runtime, journal=journal)
    assert outcomes(journal) == [(name, "TimedOut") for name in NAMES]
    assert [agent.started.agent for agent in journal.record.stages[STAGE].agents] == [None] * 3
    assert stage_end(journal).outcome == "TimedOut"
    assert journal.record.ended
    assert journal.record.ended.ending == "CompletedWithErrors"


@pytest.mark.parametrize("stage", [{**THREE, "timeoutSeconds": 60}])
async def test_taken_over_stage_past_its_timeout_sends_no_request_and_keeps_ended_agents(
    runtime: ports.Runtime, journal: memory.MemoryJournal, crew: Crew
) -> None:
    others_hang = asyncio.Barrier(3)

    async def meanwhile(name: str, _call_number: int) -> None:
        if name != FIRST:
            await others_hang.wait()
            await hang()

    crew.meanwhile = meanwhile
    running = asyncio.create_task(investigation.run(runtime=runtime, journal=journal))
    await others_hang.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    second = journal.taken_over()
    second.passed += 60
    crew.asked.clear()
    await investigation.run(runtime=runtime, journal=second)
    assert crew.asked == []
    assert outcomes(second) == [(FIRST, "Completed"), (SECOND, "TimedOut"), (THIRD, "TimedOut")]
    assert stage_end(second).outcome == "CompletedWithErrors", "its results could not be joined"


async def test_lease_lost_by_three_parallel_agents_is_raised_as_one_error(
    runtime: ports.Runtime, journal: memory.MemoryJournal, crew: Crew
) -> None:
    all_have_asked = asyncio.Barrier(3)

    async def lose(_name: str, _call_number: int) -> None:
        await all_have_asked.wait()
        journal.lose_lease()

    crew.meanwhile = lose
    with pytest.raises(ports.LeaseLostError):
        await investigation.run(runtime=runtime, journal=journal)
    assert len(crew.asked) == 3
    assert len(journal.facts) == 4


BUSY: dict[str, Script] = {
    FIRST: (asks("k8s.get", "k8s.get"), says(analysis(FIRST))),
    SECOND: (asks("k8s.restart"), asks("k8s.get"), says(analysis(SECOND))),
    THIRD: (FATAL, FATAL),
}
COMMITS = (1 + 3) + (1 + 5) + (1 + 1) + (1 + 1) + (1 + 3)
"""Commits of each agent: its start, its answers and its results; ends go with them. Those of their synthesis
and of the next stage's agent follow.
"""
CRASHES = [(at, when) for at in range(1, COMMITS + 1) for when in ("before", "after")]


def shuffled(seed: int) -> Callable[..., Awaitable[None]]:
    """Lets others go first for some turns of the loop: how the agents mix depends on `seed` alone."""
    source = random.Random(seed)  # noqa: S311 - it mixes, it guards nothing

    async def yield_for_a_while(*_whom: object) -> None:
        for _ in range(source.randrange(4)):
            await asyncio.sleep(0)

    return yield_for_a_while


def ends(recorded: record.Record) -> object:
    """All ends, and all that was said; what a writing tool answered may be in doubt, and others are told of that."""
    log_messages = [
        message
        for execution in recorded.executions.values()
        for message in execution.log
        if isinstance(message, messages.Message)
    ]
    ended, gap = recorded.ended, ""
    if any(message.in_doubt for message in log_messages):
        assert ended
        assert ended.gaps == (entries.Gap(tool="k8s.restart", reason=loop.IN_DOUBT),)
        gap = f"\n\n{handover.not_inspected(ended.gaps)}"
        ended = replace(ended, gaps=(), grounds="Inspected")

    def same(entry: messages.Message | messages.Failure) -> messages.Message | messages.Failure:
        if isinstance(entry, messages.Message) and entry.tool_name == "k8s.restart":
            return replace(entry, text="", failed=False, in_doubt=False)
        text = entry.text.replace(gap, "").replace(f"k8s.restart: {loop.IN_DOUBT}", "k8s.restart: restarted")
        return replace(entry, text=text)

    return (
        ended,
        {name: stage.ended for name, stage in recorded.stages.items()},
        {name: execution.ended for name, execution in recorded.executions.items()},
        {name: [same(message) for message in execution.log] for name, execution in recorded.executions.items()},
    )


@WITH_TOOLS
@pytest.mark.parametrize("scripts", [BUSY])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("crash", CRASHES, ids=lambda crash: f"{crash[1]} {crash[0]}")
async def test_a_crash_at_any_commit_of_three_ends_in_the_same_ends_and_no_committed_call_is_sent_again(
    runtime: ports.Runtime,
    journal: memory.MemoryJournal,
    doomed_journal: ports.Journal,
    snapshot: record.Snapshot,
    crew: Crew,
    shop: Shop,
    seed: int,
) -> None:
    faultless = Batches(snapshot)
    models: dict[str, ports.Model] = {
        "first": Crew(BUSY),
        "second": memory.ScriptedModel(asks("k8s.get"), says("Raise the memory limit.")),
    }
    await investigation.run(runtime=replace(runtime, model=models.__getitem__, toolbox=Shop(TOOLS)), journal=faultless)
    assert stage_end(faultless).message == f"{THIRD}: the key is invalid"
    assert len(faultless.commits) == COMMITS, "no crash is left out"

    crew.meanwhile = shop.working = shuffled(seed)
    with CRASHED:
        await investigation.run(runtime=runtime, journal=doomed_journal)
    committed = {
        (journal.record.executions[fact.execution].started.name, fact.turn)
        for fact in journal.facts
        if isinstance(fact, entries.Answered | entries.Unanswered)
    }
    answered = {
        (fact.execution, ran.call.id)
        for fact in journal.facts
        if isinstance(fact, entries.ToolsAnswered)
        for ran in fact.runs
    }
    asked, called = len(crew.asked), len(shop.called)
    second = memory.MemoryJournal(snapshot, *journal.facts)
    await investigation.run(runtime=runtime, journal=second)

    assert ends(second.record) == ends(faultless.record)
    assert committed.isdisjoint(crew.asked[asked:])
    assert answered.isdisjoint(shop.called[called:])
    writes = {
        (fact.execution, ran.call.id)
        for fact in second.facts
        if isinstance(fact, entries.ToolsAnswered)
        for ran in fact.runs
        if ran.call.name == "k8s.restart"
    }
    sent = Counter([*crew.asked, *shop.called])
    assert max(sent.values()) <= 2
    assert all(sent[write] <= 1 for write in writes), "a write was repeated"

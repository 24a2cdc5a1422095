"""A question about an investigation that has ended, on the shipped fakes: what answers it, and how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tarsy import failpoints
from tarsy.engine import chat, investigation
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

CALL = (messages.ToolCall(id="", name="k8s.get", arguments="{}"),)
LOOKS = messages.Message(role="assistant", text="I look.", calls=CALL)
SAYS = messages.Message(role="assistant", text="It is out of memory.")
ANSWERS = messages.Message(role="assistant", text="Since noon.")
QUESTION = entries.RunStarted(run=1, question="Since when?")
STAGES = [
    {"name": "look", "agent": "KubernetesAgent", "tools": {"allow": ["k8s.get"]}},
    {"name": "conclude", "agent": "KubernetesAgent", "iterationStrategy": "react-final-analysis"},
]


@pytest.fixture
def script() -> tuple[messages.Message, ...]:
    return (LOOKS, SAYS)


@pytest.fixture
def snapshot(snapshot: record.Snapshot) -> record.Snapshot:
    """One stage whose agent may call one tool, and one that calls none."""
    spec = {"alertTypes": ["A"], "executiveSummary": {"enabled": False}, "stages": STAGES}
    return replace(snapshot, chain=chains.Spec.model_validate(spec))


@pytest.fixture
async def with_question(runtime: ports.Runtime, journal: memory.MemoryJournal) -> memory.MemoryJournal:
    """The investigation has ended, and a question is open."""
    await investigation.run(runtime=runtime, journal=journal)
    await journal.commit(QUESTION)
    return journal


async def answer(
    runtime: ports.Runtime, journal: ports.Journal, *script: messages.Message | messages.Failure
) -> tuple[memory.ScriptedModel, entries.RunEnded | None]:
    model = memory.ScriptedModel(*script)
    await chat.run(runtime=replace(runtime, model=lambda _: model), journal=journal, run=1)
    return model, journal.record.runs[1].ended


async def test_answer_ends_only_the_run_of_the_question(
    runtime: ports.Runtime, with_question: memory.MemoryJournal
) -> None:
    first = with_question.record.ended
    _, ended = await answer(runtime, with_question, ANSWERS)
    assert ended == entries.RunEnded(run=1, ending="Completed", reason="Answered", final_analysis="Since noon.")
    assert with_question.record.ended is first
    (execution,) = with_question.record.runs[1].executions.values()
    assert (execution.started.kind, execution.started.stage, execution.started.name) == ("chat", "", "ChatAgent")


async def test_chat_agent_has_the_tools_given_to_stage_agents(
    runtime: ports.Runtime, with_question: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    opened: list[tuple[str, ...]] = []

    def open_for(servers: tuple[str, ...], _: ports.ToolPredicate) -> memory.DictToolbox:
        opened.append(tuple(servers))
        return toolbox

    model, _ = await answer(replace(runtime, toolbox=open_for), with_question, LOOKS, ANSWERS)  # type: ignore[arg-type]
    assert opened == [("k8s",)]
    names = [tool.name for tool in model.requests[0].tools]
    assert names == ["k8s.get", "result.search", "result.read"], "not all that the server has"


async def test_agent_that_answers_without_a_look_is_not_asked_to_look(
    runtime: ports.Runtime, with_question: memory.MemoryJournal
) -> None:
    model, _ = await answer(runtime, with_question, ANSWERS)
    assert len(model.requests) == 1


async def test_chat_agent_reads_investigation_and_earlier_questions(
    runtime: ports.Runtime, with_question: memory.MemoryJournal
) -> None:
    await answer(runtime, with_question, ANSWERS)
    await with_question.commit(entries.RunStarted(run=2, question="And why?"))
    model = memory.ScriptedModel(SAYS)
    await chat.run(runtime=replace(runtime, model=lambda _: model), journal=with_question, run=2)
    task = model.requests[0].messages[1].text
    parts = ("Observation: k8s.get: CrashLoopBackOff", "It is out of memory.", "Since when?", "Since noon.", "And why?")
    assert sorted(map(task.index, parts)) == [task.index(part) for part in parts]


async def test_an_agent_that_fails_ends_the_run_as_failed(
    runtime: ports.Runtime, with_question: memory.MemoryJournal
) -> None:
    _, ended = await answer(runtime, with_question, messages.Failure(kind="fatal", text="the key is invalid"))
    assert ended == entries.RunEnded(run=1, ending="Failed", reason="NotAnswered", message="the key is invalid")


async def test_unknown_chat_agent_ends_run_with_error_naming_available_agents(
    runtime: ports.Runtime, snapshot: record.Snapshot
) -> None:
    spec = snapshot.chain.model_copy(update={"chat": chains.Chat(agent="Nobody")})
    journal = memory.MemoryJournal(replace(snapshot, chain=spec))
    await investigation.run(runtime=runtime, journal=journal)
    await journal.commit(QUESTION)
    _, ended = await answer(runtime, journal, ANSWERS)
    assert ended
    assert ended.message.startswith("Chain 'pod-crash' chat references unknown agent 'Nobody'. Available agents: ")


@pytest.mark.parametrize("crash", [(at, when) for at in (1, 2, 3, 4) for when in ("before", "after")])
async def test_chat_run_can_be_taken_over_at_every_commit(
    runtime: ports.Runtime, journal: memory.MemoryJournal, doomed_journal: ports.Journal, toolbox: memory.DictToolbox
) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    await journal.commit(QUESTION)
    called = len(toolbox.called)
    crashed = pytest.RaisesGroup(failpoints.TriggeredError, allow_unwrapped=True, flatten_subgroups=True)
    with crashed:
        await answer(runtime, doomed_journal, LOOKS, ANSWERS)
    await answer(runtime, journal, LOOKS, ANSWERS)
    ended = journal.record.runs[1].ended
    assert ended
    assert (ended.ending, ended.final_analysis) == ("Completed", "Since noon.")
    assert 1 <= len(toolbox.called) - called <= 2, "a reading call in flight is made once more at most"

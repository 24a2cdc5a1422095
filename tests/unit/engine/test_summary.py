"""Executive summary: the last step, by an execution of no stage; the investigation does not fail with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.crew import FATAL, Batches, Script
from support.executions import says
from tarsy import failpoints
from tarsy.agent import templates
from tarsy.engine import handover, investigation, outcomes, summary
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

SUMMARY = "ExecutiveSummary"
LINES = "web-0 restarts every minute.\nIts memory limit is too low."
FOUND = "It is out of memory."
NO_PROVIDER = (
    "Chain 'pod-crash' executiveSummary references unknown LLM provider 'third'. Available LLM providers: first, second"
)
CRASHED = pytest.RaisesGroup(failpoints.TriggeredError, allow_unwrapped=True, flatten_subgroups=True)
LOOKS = messages.Message(
    role="assistant", text="I look.", calls=(messages.ToolCall(id="", name="k8s.get", arguments="{}"),)
)
ENDED = entries.RunEnded(
    ending="Completed", reason="StagesCompleted", final_analysis=FOUND, summary=LINES, grounds="Inspected"
)


class Silent(memory.ScriptedModel):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:  # noqa: ARG002
        self.requests.append(request)
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
def block() -> dict[str, Any] | None:
    """The chain's executiveSummary."""
    return {"llmProvider": "second"}


@pytest.fixture
def stages() -> list[dict[str, Any]]:
    """The chain's stages."""
    return [{"name": "analysis", "agent": "KubernetesAgent"}]


@pytest.fixture
def snapshot(snapshot: record.Snapshot, block: dict[str, Any] | None, stages: list[dict[str, Any]]) -> record.Snapshot:
    """One stage of one agent, and a summary by another provider."""
    spec = {"alertTypes": ["A"], "stages": stages, **({"executiveSummary": block} if block is not None else {})}
    return replace(snapshot, chain=chains.Spec.model_validate(spec))


@pytest.fixture
def script() -> Script:
    """Answers of the agent."""
    return (LOOKS, says(FOUND))


@pytest.fixture
def second_script() -> Script:
    """Answers of the summary's model."""
    return (says(LINES),)


@pytest.fixture
def second_model(second_script: Script) -> memory.ScriptedModel:
    return memory.ScriptedModel(*second_script)


@pytest.fixture
def runtime(runtime: ports.Runtime, model: memory.ScriptedModel, second_model: memory.ScriptedModel) -> ports.Runtime:
    return replace(runtime, model={"first": model, "second": second_model}.__getitem__)


@pytest.fixture
def journal(snapshot: record.Snapshot) -> Batches:
    return Batches(snapshot)


def summary_execution(journal: ports.Journal) -> record.Execution | None:
    """The summary's execution, if it has begun; it is of no stage."""
    executions = list(journal.record.runs[0].executions.values())
    assert len(executions) <= 1
    return executions[0] if executions else None


def at_deadline(so_far: record.Record) -> list[Any]:
    """The entries that the deadline commits."""
    return outcomes.stopped(so_far, entries.INVESTIGATION, "TimedOut", reason="DeadlineExceeded", message="too late")


def end_of(journal: ports.Journal) -> tuple[str, str]:
    execution = summary_execution(journal)
    assert execution
    assert execution.ended
    return execution.ended.outcome, execution.ended.error


@pytest.mark.parametrize(
    ("second_script", "expected"),
    [
        ((says(LINES),), LINES),
        ((says("It is out of memory."),), "It is out of memory."),
        ((says("\n  one \n\n two\r\n\nthree\n \nfour\n"),), "one\ntwo\nthree\nfour"),
        ((says("\n".join(f"- {number}" for number in range(30))),), "- 0\n- 1\n- 2\n- 3"),
        ((says("x" * 5_000),), "x" * 1_024),
    ],
    ids=["two lines", "one line", "blank lines", "more than four", "one that does not end"],
)
async def test_its_lines_are_in_the_end_of_the_run(runtime: ports.Runtime, journal: Batches, expected: str) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    assert journal.record.ended == replace(ENDED, summary=expected)


async def test_summary_is_execution_outside_stages_started_with_last_stage_end(
    runtime: ports.Runtime, journal: Batches, snapshot: record.Snapshot
) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    execution = summary_execution(journal)
    assert execution
    started = execution.started
    assert (started.kind, started.stage, started.index, started.name) == ("summary", "", 0, SUMMARY)
    assert started.execution == record.execution_id(snapshot.id, run=0, stage="", kind="summary", index=0)
    assert started.agent
    assert (started.agent.provider, started.agent.servers, started.tools) == ("second", (), ())
    assert journal.commits[-2:] == [
        ["Answered", "ExecutionEnded", "StageEnded", "ExecutionStarted"],
        ["Answered", "ExecutionEnded", "RunEnded"],
    ]
    assert [
        stage_execution.started.kind for stage_execution in journal.record.stages["analysis"].executions.values()
    ] == ["agent"]


async def test_summary_call_is_made_once_without_tools_and_reads_result_and_gaps(
    runtime: ports.Runtime, journal: Batches, second_model: memory.ScriptedModel, snapshot: record.Snapshot
) -> None:
    away = replace(runtime, toolbox=lambda *_: Broken({"k8s.get": ""}))
    await investigation.run(runtime=away, journal=journal)
    (request,) = second_model.requests
    system, task = request.messages
    assert request.tools == ()
    assert system.text.startswith(templates.text("summary")[:60])
    gaps = "- k8s.get: --&gt; forbidden\n- -: KubernetesAgent concluded without a result of its tools"
    alert_facts = [
        f"{handover.START}\n{FOUND}\n{handover.END}",
        f"### What could not be inspected:\n\n{handover.START}\n{gaps}\n{handover.END}",
    ]
    start, end = "<!-- DATA 0123abcd START -->", "<!-- DATA 0123abcd END -->"
    assert task.text.endswith(
        "\n\n".join(["", f"{start}\n" + "\n\n".join(alert_facts) + f"\n{end}", "Sum up this investigation."])
    )
    assert snapshot.alert_data in task.text
    assert "I look." not in task.text


class Broken(memory.DictToolbox):
    """Its tools fail."""

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:  # noqa: ARG002
        return ports.ToolOutput(text="--> forbidden", failed=True)


@pytest.mark.parametrize(
    ("block", "script", "ending"),
    [({"enabled": False}, (LOOKS, says(FOUND)), "Completed"), ({"llmProvider": "second"}, (FATAL, FATAL), "Failed")],
    ids=["disabled", "there is no analysis"],
)
async def test_no_summary_runs_if_disabled_or_if_no_result_exists(
    runtime: ports.Runtime, journal: Batches, second_model: memory.ScriptedModel, ending: str
) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    assert (summary_execution(journal), second_model.requests) == (None, [])
    assert journal.record.ended
    assert (journal.record.ended.ending, journal.record.ended.summary) == (ending, "")
    assert journal.commits[-1][-2:] == ["StageEnded", "RunEnded"], "all in one"


@pytest.mark.parametrize("block", [None, {}, {"enabled": True}], ids=["no block", "an empty one", "enabled"])
async def test_summary_runs_unless_disabled_by_chain(runtime: ports.Runtime, journal: Batches) -> None:
    await investigation.run(runtime=runtime, journal=journal)
    execution = summary_execution(journal)
    assert execution
    assert execution.started.agent
    assert execution.started.agent.provider == "first", "the default"
    assert end_of(journal) == ("Completed", "")


TWO_STAGES = [
    {"name": "look", "agent": "KubernetesAgent", "llmProvider": "first"},
    {"name": "analysis", "agent": "Nobody"},
]


@pytest.mark.parametrize("stages", [TWO_STAGES])
@pytest.mark.parametrize("policy", ["Continue", "Stop"])
async def test_summary_after_failed_stage_reads_findings_and_stage_account(
    runtime: ports.Runtime, snapshot: record.Snapshot, second_model: memory.ScriptedModel, policy: str
) -> None:
    spec = snapshot.chain.model_copy(update={"failure_policy": policy})
    journal = memory.MemoryJournal(replace(snapshot, chain=spec))
    await investigation.run(runtime=runtime, journal=journal)
    ended = journal.record.ended
    assert ended
    assert (ended.ending, ended.summary) == ("Failed" if policy == "Stop" else "CompletedWithErrors", LINES)
    assert f"{handover.START}\n{ended.final_analysis}\n{handover.END}" in second_model.requests[0].messages[1].text


@pytest.mark.leaps
@pytest.mark.parametrize(
    ("block", "second_model", "seconds", "ended"),
    [
        ({"llmProvider": "second"}, memory.ScriptedModel(FATAL), 30.0, ("Failed", "the key is invalid")),
        ({"llmProvider": "third"}, memory.ScriptedModel(), 30.0, ("Failed", NO_PROVIDER)),
        ({"llmProvider": "second"}, Silent(), 0.1, ("TimedOut", "there was no summary after 0.1 s")),
    ],
    ids=["a fatal error", "an unknown provider", "silence"],
)
async def test_run_with_failed_summary_ends_as_its_stages_and_keeps_summary_failure(
    runtime: ports.Runtime, journal: Batches, seconds: float, ended: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert summary.SECONDS == 30
    monkeypatch.setattr(summary, "SECONDS", seconds)
    async with asyncio.timeout(60):
        await investigation.run(runtime=runtime, journal=journal)
    assert end_of(journal) == ended
    assert journal.record.ended == replace(ENDED, summary="")


class Queued:
    """Waits for a slot before it is asked to sum up, as a model does whose provider is busy."""

    def __init__(self, model: ports.Model) -> None:
        self._model = model

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        if request.messages[-1].text.endswith("Sum up this investigation."):
            free = asyncio.Event()
            asyncio.get_running_loop().call_later(0.5, free.set)
            with scope.pause_time():
                await free.wait()
        return await self._model.ask(request, scope)


@pytest.mark.leaps
async def test_wait_for_slot_does_not_count_against_summary_timeout(
    runtime: ports.Runtime, journal: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "SECONDS", 0.2)
    queued = replace(runtime, model=lambda name: Queued(runtime.model(name)))
    await investigation.run(runtime=queued, journal=journal)
    assert end_of(journal) == ("Completed", "")
    assert journal.record.ended == ENDED


async def test_questions_asked_during_investigation_do_not_affect_summary(
    runtime: ports.Runtime, snapshot: record.Snapshot, second_model: memory.ScriptedModel
) -> None:
    journal = memory.MemoryJournal(snapshot, entries.RunStarted(run=1, question="Why, oh why?"))
    await investigation.run(runtime=runtime, journal=journal)
    assert "oh why" not in second_model.requests[0].messages[1].text
    assert journal.record.ended == ENDED


async def test_a_deadline_that_comes_while_it_is_made_ends_the_run_as_its_stages_ended(
    runtime: ports.Runtime, journal: Batches, model: memory.ScriptedModel
) -> None:
    silent = Silent()
    models: dict[str, ports.Model] = {"first": model, "second": silent}
    running = asyncio.create_task(
        investigation.run(runtime=replace(runtime, model=models.__getitem__), journal=journal)
    )
    await silent.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await journal.commit(*at_deadline(journal.record))
    assert end_of(journal) == ("TimedOut", "the investigation's deadline came first")
    assert journal.record.ended == replace(ENDED, summary="")


KINDS: list[tuple[dict[str, Any], Script, int]] = [
    ({"llmProvider": "second"}, (says(LINES),), 5),
    ({"llmProvider": "second"}, (FATAL, FATAL), 5),
    ({"llmProvider": "third"}, (), 4),
]
"""Each with its commits: the agent's start, its answers and its result, and what ends the summary, if it can begin."""


@pytest.mark.parametrize(
    ("block", "second_script", "commits", "crash"),
    [
        (block, answers, commits, (at, when))
        for block, answers, commits in KINDS
        for at in range(1, commits + 1)
        for when in ("before", "after")
    ],
)
async def test_a_takeover_at_any_commit_ends_in_the_same_record(
    runtime: ports.Runtime,
    snapshot: record.Snapshot,
    journal: memory.MemoryJournal,
    doomed_journal: ports.Journal,
    script: Script,
    second_script: Script,
    second_model: memory.ScriptedModel,
    commits: int,
) -> None:
    faultless = Batches(snapshot)
    models = {"first": memory.ScriptedModel(*script), "second": memory.ScriptedModel(*second_script)}
    await investigation.run(runtime=replace(runtime, model=models.__getitem__), journal=faultless)
    assert len(faultless.commits) == commits, "no crash is left out"
    with CRASHED:
        await investigation.run(runtime=runtime, journal=doomed_journal)
    second = memory.MemoryJournal(snapshot, *journal.facts)
    asked = len(second_model.requests)
    has_ended = second.record.ended is not None
    await investigation.run(runtime=runtime, journal=second)
    assert second.record.ended == faultless.record.ended
    assert second.record.executions == faultless.record.executions
    assert summary_execution(second)
    assert len(second_model.requests) - asked == (bool(second_script) and not has_ended)


@pytest.mark.parametrize(
    ("second_script", "lines"),
    [((says(LINES),), LINES), ((says("\n".join("abcdef")),), "a\nb\nc"), ((FATAL,), "")],
    ids=["two lines", "too many", "none"],
)
async def test_summary_begins_with_the_servers_that_could_not_be_reached(
    runtime: ports.Runtime, journal: Batches, second_model: memory.ScriptedModel, lines: str
) -> None:
    toolbox = memory.DictToolbox({}, away=["k8s"])
    await investigation.run(runtime=replace(runtime, toolbox=lambda *_: toolbox), journal=journal)
    assert journal.record.ended
    missing = "Could not be looked at: MCP server k8s could not be reached (stage analysis)."
    assert journal.record.ended.summary == (f"{missing}\n{lines}" if lines else "")
    assert missing in second_model.requests[0].messages[1].text, "its author knows"

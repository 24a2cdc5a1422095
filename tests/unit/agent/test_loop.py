"""The loop's guarantee: what is committed is never sent again, what was in flight at most once more, a write never."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

import pytest
from support import executions
from support.crew import Batches
from support.executions import ID, asks, says
from tarsy import failpoints
from tarsy.agent import loop, templates
from tarsy.transcript import entries, memory, messages, ports, record

CONCLUDE = messages.Message(role="user", text=templates.fill("conclude-native", why=templates.text("iterations")))
COMMITS = 6
"""An answer, its write, its reads, an answer, its read, and the conclusion with its end."""
CRASHES = [(at, when) for at in range(1, COMMITS + 1) for when in ("before", "after")]


def stated(state: str, *names: str, text: str = "") -> messages.Message:
    return replace(asks(*names, text=text), provider_state=messages.ProviderState(provider="first", data=[state]))


def fails(kind: Literal["timeout", "rejected", "fatal"], text: str = "no") -> messages.Failure:
    return messages.Failure(kind=kind, text=text)


@pytest.fixture
def limit() -> int:
    return 20


@pytest.fixture
def journal(snapshot: record.Snapshot, toolbox: memory.DictToolbox, limit: int) -> memory.MemoryJournal:
    """One execution has begun and nothing was said yet."""
    started = executions.started(toolbox, stage="data-collection", max_iterations=limit)
    return memory.MemoryJournal(snapshot, entries.StageStarted(stage="data-collection", clock=0.0), started)


def log(journal: ports.Journal) -> messages.Log:
    return journal.record.executions[ID].log


def results(journal: ports.Journal) -> dict[str, messages.Message]:
    log_messages = [entry for entry in log(journal) if isinstance(entry, messages.Message)]
    return {message.call_id: message for message in log_messages if message.role == "tool"}


async def run(
    journal: ports.Journal, model: ports.Model, toolbox: ports.Toolbox, **options: Any
) -> entries.ExecutionEnded:
    """Run the execution to its end."""
    execution = await executions.run(journal, model, toolbox, **options)
    assert execution.ended
    return execution.ended


def analysis(journal: ports.Journal) -> str:
    return journal.record.executions[ID].analysis


def kinds(journal: memory.MemoryJournal) -> list[str]:
    return [type(fact).__name__ for fact in journal.facts[2:]]


async def test_a_straight_run_ends_with_the_models_conclusion(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    ended = await run(journal, model, toolbox)
    assert ended == entries.ExecutionEnded(execution=ID, outcome="Completed")
    assert analysis(journal) == "It is out of memory."
    assert [fact.turn for fact in journal.facts if isinstance(fact, entries.Answered)] == [0, 1, 2]
    assert [request.tools == tuple(toolbox.specs) for request in model.requests] == [True] * 3


async def test_a_conclusion_is_committed_together_with_the_ends_that_it_brings(
    snapshot: record.Snapshot, journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    seen: list[tuple[str, entries.Outcome]] = []

    def following(ended: record.Execution) -> tuple[entries.Entry, ...]:
        assert ended.ended
        seen.append((ended.analysis, ended.ended.outcome))
        assert journal.record.executions[ID].ended is None, "it is told of an end that is not committed yet"
        return (entries.StageEnded(stage="data-collection", outcome="Completed"),)

    batches = Batches(snapshot, *journal.facts)
    await run(batches, model, toolbox, ends_with=following)
    assert seen == [("It is out of memory.", "Completed")]
    asked, ran = ["Answered"], ["ToolsAnswered"]
    assert batches.commits == [asked, ran, ran, asked, ran, ["Answered", "ExecutionEnded", "StageEnded"]]
    assert len(batches.commits) == COMMITS


@pytest.mark.parametrize("script", [(fails("fatal", "the key is invalid"),)])
async def test_error_that_ends_it_is_committed_together_with_its_end(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox, snapshot: record.Snapshot
) -> None:
    batches = Batches(snapshot, *journal.facts)
    ended = await run(batches, model, toolbox)
    assert batches.commits == [["Unanswered", "ExecutionEnded"]]
    assert (ended.error, analysis(batches)) == ("the key is invalid", "")


async def test_execution_with_a_committed_conclusion_ends_without_another_model_call(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    model_call = entries.ModelCall(provider="first", model="m", seconds=0)
    call = messages.ToolCall(id="0.0", name="k8s.get", arguments="{}")
    looked = messages.Message(role="assistant", calls=(call,))
    seen = messages.Message(role="tool", call_id="0.0", tool_name="k8s.get", text="CrashLoopBackOff")
    await journal.commit(
        entries.Answered(execution=ID, turn=0, messages=(looked,), call=model_call),
        entries.ToolsAnswered(execution=ID, runs=(entries.ToolRun(call=call, result=seen, seconds=0),)),
        entries.Answered(execution=ID, turn=1, messages=(says("so"),), call=model_call),
    )
    assert (await run(journal, model, toolbox)).outcome == "Completed"
    assert (analysis(journal), model.requests, toolbox.called) == ("so", [], [])


LOOK = messages.Message(role="user", text=templates.text("look"))


@pytest.mark.parametrize(
    ("script", "ungrounded"),
    [
        ((says("It is a guess."), says("Nothing could show it.")), True),
        ((says("It is a guess."), asks("k8s.get"), says("It is out of memory.")), False),
    ],
    ids=["it gives no more than its word", "it looks"],
)
async def test_model_that_concludes_unseen_is_asked_once_to_look_and_its_next_answer_counts(
    journal: memory.MemoryJournal,
    model: memory.ScriptedModel,
    toolbox: memory.DictToolbox,
    script: tuple[messages.Message, ...],
    ungrounded: bool,
) -> None:
    ended = await run(journal, model, toolbox)
    assert ended == entries.ExecutionEnded(execution=ID, outcome="Completed", ungrounded=ungrounded)
    assert analysis(journal) == script[-1].text
    opening = journal.record.executions[ID].started.messages
    assert model.requests[1].messages == (*opening, says("It is a guess."), LOOK)
    assert model.requests[1].tools, "it may look"
    assert len(model.requests) == len(script)
    assert messages.conversation(log(journal)).count(LOOK) == 1


@pytest.mark.parametrize("script", [(*[asks("k8s.get")] * 4, asks("k8s.list"), asks("k8s.get"), says("done"))])
async def test_call_made_twice_in_a_row_is_not_made_again_and_the_model_hears_why(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    await run(journal, model, toolbox)
    assert [call.id for call in toolbox.called] == ["0.0", "1.0", "4.0", "5.0"]
    rejection = messages.Message(role="tool", tool_name="k8s.get", text=templates.text("repeated"), failed=True)
    assert [results(journal)[of] for of in ("2.0", "3.0")] == [replace(rejection, call_id=of) for of in ("2.0", "3.0")]
    assert model.requests[3].messages[-1] == replace(rejection, call_id="2.0")


async def test_suspended_it_finishes_the_step_that_is_under_way_and_begins_none(
    journal: memory.MemoryJournal, script: tuple[messages.Message, ...], toolbox: memory.DictToolbox
) -> None:
    class Suspending(memory.ScriptedModel):
        """Its answer comes when the run is to stand still."""

        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            answer = await super().ask(request, scope)
            journal.suspend()
            return answer

    model = Suspending(*script)
    assert (await executions.run(journal, model, toolbox)).ended is None
    assert (kinds(journal), len(model.requests), toolbox.called) == (["Answered"], 1, [])
    again = journal.taken_over()
    await run(again, memory.ScriptedModel(*script), toolbox)
    assert analysis(again) == "It is out of memory."
    assert Counter(call.id for call in toolbox.called).keys() == {"0.0", "0.2", "1.0"}, "the write is in doubt"


async def test_a_write_commits_alone_and_results_reach_the_model_in_call_order(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    await run(journal, model, toolbox)
    batches = [
        [ran.call.name for ran in fact.runs] for fact in journal.facts if isinstance(fact, entries.ToolsAnswered)
    ]
    assert batches == [["k8s.restart"], ["k8s.get", "k8s.list"], ["k8s.get"]]
    tool_messages = [message for message in model.requests[1].messages if message.role == "tool"]
    assert [message.tool_name for message in tool_messages] == ["k8s.get", "k8s.restart", "k8s.list"]
    assert [message.text for message in tool_messages] == ["CrashLoopBackOff", "restarted", "web-0"]


async def test_read_calls_of_one_answer_run_in_parallel(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    class Meeting(memory.DictToolbox):
        """Its reads wait for each other; its write is alone."""

        async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
            running.append(call.name)
            if len(journal.facts) == 4:
                await both.wait()
            else:
                assert running == [call.name]
            output = await super().call(call, scope)
            running.remove(call.name)
            return output

    running: list[str] = []
    both = asyncio.Barrier(2)
    async with asyncio.timeout(60):
        await run(journal, model, Meeting(toolbox.answers, writing=["k8s.restart"]))


@pytest.mark.parametrize("crash", CRASHES)
async def test_a_crash_at_any_commit_repeats_nothing_that_was_committed(
    snapshot: record.Snapshot,
    journal: memory.MemoryJournal,
    doomed_journal: ports.Journal,
    script: tuple[messages.Message, ...],
    model: memory.ScriptedModel,
    toolbox: memory.DictToolbox,
) -> None:
    faultless = memory.MemoryJournal(snapshot, *journal.facts)
    await run(faultless, memory.ScriptedModel(*script), memory.DictToolbox(toolbox.answers, writing=["k8s.restart"]))
    with pytest.raises(failpoints.TriggeredError):
        await run(doomed_journal, model, toolbox)
    committed_results = results(journal)
    answered = sum(isinstance(fact, entries.Answered) for fact in journal.facts)
    called_before, asked_before = len(toolbox.called), len(model.requests)

    second = memory.MemoryJournal(snapshot, *journal.facts)
    await run(second, model, toolbox)
    assert analysis(second) == "It is out of memory."

    assert not committed_results.keys() & {call.id for call in toolbox.called[called_before:]}
    assert len(model.requests) - asked_before == 3 - answered
    sent = Counter(call.id for call in toolbox.called)
    assert sent["0.1"] <= 1, "the write was repeated"
    assert max(sent.values()) <= 2
    doubts = {call_id for call_id, message in results(second).items() if message.in_doubt}
    assert doubts == ({"0.1"} if answered and "0.1" not in committed_results else set())
    same = results(faultless)
    assert [same[e.call_id] if isinstance(e, messages.Message) and e.in_doubt else e for e in log(second)] == log(
        faultless
    )


async def test_model_hears_of_a_call_with_unknown_outcome_as_an_error(
    snapshot: record.Snapshot, journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    asked = replace(asks("k8s.restart"), calls=(messages.ToolCall(id="0.0", name="k8s.restart", arguments="{}"),))
    call = entries.ModelCall(provider="first", model="m", seconds=0)
    await journal.commit(entries.Answered(execution=ID, turn=0, messages=(asked,), call=call))
    model = memory.ScriptedModel(asked)
    await run(journal, model, toolbox)
    last_message = model.requests[0].messages[-1]
    assert (last_message.text, last_message.failed, last_message.in_doubt) == (loop.IN_DOUBT, True, True)
    assert toolbox.called == []


async def test_a_write_that_fails_is_an_answer_and_not_a_doubt(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    class Refusing(memory.DictToolbox):
        async def call(self, _: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:  # noqa: ARG002
            return ports.ToolOutput(text="forbidden", failed=True)

    await run(journal, memory.ScriptedModel(asks("k8s.restart")), Refusing(toolbox.answers, writing=["k8s.restart"]))
    (result,) = results(journal).values()
    assert (result.text, result.failed, result.in_doubt) == ("forbidden", True, False)


async def test_a_tool_that_was_not_pinned_at_the_start_is_not_called(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    grown = memory.DictToolbox({**toolbox.answers, "k8s.delete": "deleted"}, writing=["k8s.restart", "k8s.delete"])
    await run(journal, memory.ScriptedModel(asks("k8s.delete")), grown)
    (result,) = results(journal).values()
    assert result.failed
    assert grown.called == []


@pytest.mark.parametrize(
    "script",
    [
        (fails("timeout"), asks("k8s.get"), fails("timeout"), says("done")),
        (fails("rejected"), fails("timeout"), asks("k8s.get"), fails("rejected"), says("done")),
    ],
)
async def test_a_failure_leaves_no_message(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    await run(journal, model, toolbox)
    sent = [[message.role for message in request.messages] for request in model.requests]
    assert sent[-1] == ["system", "user", "assistant", "tool"]
    assert sent.count(["system", "user"]) == len(sent) - 2


@pytest.mark.parametrize(
    "blank", [says(""), says(" \n"), messages.Message(role="assistant", thinking="hm"), stated("s")]
)
async def test_a_blank_answer_leaves_no_message(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox, blank: messages.Message
) -> None:
    class Blank(memory.ScriptedModel):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            answer = await model.ask(request, scope)
            return replace(answer, message=blank) if len(model.requests) <= 2 else answer

    await run(journal, Blank(), toolbox)
    assert blank not in log(journal)
    assert [request.messages for request in model.requests[1:3]] == [model.requests[0].messages] * 2
    failures = [entry for entry in log(journal) if isinstance(entry, messages.Failure)]
    assert failures == [fails("rejected", "the model gave an empty answer")] * 2


@pytest.mark.parametrize("limit", [2])
@pytest.mark.parametrize(
    "script", [(stated("a", "k8s.get"), stated("b", "k8s.get"), stated("c", "k8s.get", text="so"))]
)
async def test_beyond_the_limit_it_must_conclude_without_tools(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    ended = await run(journal, model, toolbox)
    assert (ended.outcome, analysis(journal)) == ("Completed", "so")
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert model.requests[2].messages[-1] == CONCLUDE
    assert len(toolbox.called) == 2, "a call in the conclusion was run"
    *earlier, conclusion = [e for e in log(journal) if isinstance(e, messages.Message) and e.role == "assistant"]
    assert [message.provider_state and message.provider_state.data for message in earlier] == [["a"], ["b"]]
    assert (conclusion.calls, conclusion.provider_state) == ((), None)


@pytest.mark.parametrize("limit", [1])
@pytest.mark.parametrize("script", [(asks("k8s.get"), asks("k8s.get"))])
async def test_tool_calls_instead_of_a_conclusion_are_rejected_until_the_execution_fails(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    ended = await run(journal, model, toolbox)
    assert ended.outcome == "Failed"
    assert ended.error == "no conclusion after 3 model calls: the model gave tool calls instead of a conclusion"
    assert len(toolbox.called) == 1


@pytest.mark.parametrize("limit", [1])
@pytest.mark.parametrize("script", [(asks("k8s.get"), fails("timeout"), asks("k8s.get"))])
async def test_messages_of_a_failed_model_call_are_stored_and_sent_without_duplicates(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox
) -> None:
    await run(journal, model, toolbox)
    _, failed, *again = model.requests
    assert failed.messages[-1] == CONCLUDE
    assert [request.messages for request in again] == [failed.messages]
    assert messages.conversation(log(journal)) == failed.messages


@pytest.mark.parametrize("limit", [3])
@pytest.mark.parametrize(
    ("script", "requests", "text"),
    [
        ((fails("rejected", "flooded"),) * 9, 3, "3 rejected answers in a row: flooded"),
        ((fails("rejected"), fails("timeout", "slow")) * 5, 5, "no conclusion after 5 model calls: no"),
        ((fails("timeout", "slow"),) * 9, 2, "two timeouts in a row: slow"),
        ((fails("timeout"), fails("fatal", "the key is invalid")), 2, "the key is invalid"),
    ],
)
async def test_execution_fails_if_the_model_never_answers(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: memory.DictToolbox, requests: int, text: str
) -> None:
    ended = await run(journal, model, toolbox)
    assert (ended.outcome, ended.error, len(model.requests)) == ("Failed", text, requests)
    assert [fact.turn for fact in journal.facts if isinstance(fact, entries.Unanswered)] == list(range(requests))


async def test_cancellation_ends_the_model_call_and_commits_nothing(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    class Hanging(memory.ScriptedModel):
        async def ask(self, *_: object) -> ports.Answer:
            asked.set()
            try:
                return await asyncio.Future()
            finally:
                closed.set()

    before = list(journal.facts)
    task = asyncio.create_task(run(journal, Hanging(), toolbox))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    assert journal.facts == before


async def test_no_request_is_sent_once_the_lease_is_lost(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    class Fenced(memory.ScriptedModel):
        """Its answer comes when another worker already has the investigation."""

        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            answer = await super().ask(request, scope)
            journal.lose_lease()
            return answer

    model, before = Fenced(asks("k8s.get")), list(journal.facts)
    for _ in range(2):
        with pytest.raises(ports.LeaseLostError):
            await run(journal, model, toolbox)
        assert (len(model.requests), toolbox.called, journal.facts) == (1, [], before)


@pytest.mark.parametrize(("commits", "called"), [(1, []), (2, ["0.1"]), (3, ["0.1", "0.2"])])
async def test_no_tool_is_called_once_the_lease_is_lost(
    snapshot: record.Snapshot,
    journal: memory.MemoryJournal,
    toolbox: memory.DictToolbox,
    commits: int,
    called: list[str],
) -> None:
    class Fenced(memory.MemoryJournal):
        """Another worker has the investigation after some commits."""

        async def commit(self, *added: entries.Entry) -> None:
            await super().commit(*added)
            if len(self.facts) == 2 + commits:
                self.lose_lease()

    model = memory.ScriptedModel(asks("k8s.get", "k8s.restart", "k8s.restart"))
    with pytest.raises(ports.LeaseLostError):
        await run(Fenced(snapshot, *journal.facts), model, toolbox)
    assert [call.id for call in toolbox.called] == called


class Retried(memory.ScriptedModel):
    """Sends a request again before each answer."""

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        failed = entries.Attempt(error="429: too fast", provider="first", code="429")
        await scope.on_retry(ports.Retry(attempt=1, failed=failed, model="scripted", seconds=1.5))
        return await super().ask(request, scope)


async def test_request_that_is_sent_again_is_an_entry_and_a_line_of_the_log(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await run(journal, Retried(asks("k8s.get"), says("so")), toolbox)).outcome == "Completed"
    answer_kinds = ["ModelRetried", "Answered"]
    assert kinds(journal) == [*answer_kinds, "ToolsAnswered", *answer_kinds, "ExecutionEnded"]
    retried = journal.facts[2]
    assert isinstance(retried, entries.ModelRetried)
    assert (retried.turn, retried.provider, retried.error, retried.seconds) == (0, "first", "429: too fast", 1.5)
    (line, _) = [line for line in caplog.records if vars(line).get("action") == "model_retry"]
    assert line.getMessage() == "first is asked again in 1.5 s: 429: too fast"
    assert (vars(line)["provider"], vars(line)["code"]) == ("first", "429")


async def test_request_is_not_sent_again_once_the_lease_is_lost(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    model = Retried(says("so"))
    journal.lose_lease()
    with pytest.raises(ports.LeaseLostError):
        await run(journal, model, toolbox)
    assert model.requests == []


def joined(number: int) -> ports.JoinedAlert:
    return ports.JoinedAlert(alert_type="KubePodNotReady", severity="warning", labels={"pod": f"web-{number}"})


async def test_agent_hears_of_joined_alerts_once_and_at_most_once_a_minute(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    journal.joining += [joined(0), joined(1)]

    class Joining(memory.ScriptedModel):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            answer = await super().ask(request, scope)
            journal.joining.append(joined(1 + len(self.requests)))
            if len(self.requests) == 2:
                journal.passed += 60
            return answer

    model = Joining(asks("k8s.get"), asks("k8s.list"), asks("k8s.get"), says("done"))
    execution = await executions.run(journal, model, toolbox)
    joined_entries = [entry for entry in journal.facts if isinstance(entry, entries.AlertJoined)]
    assert [(entry.number, entry.alerts) for entry in joined_entries] == [(2, 2), (4, 2)]
    texts = [
        [message.text for message in request.messages if "joined this" in message.text] for request in model.requests
    ]
    assert [len(alert_texts) for alert_texts in texts] == [1, 1, 2, 2], "each message stays, as it was"
    assert "pod=web-0" in texts[0][0]
    assert "pod=web-1" in texts[0][0]
    assert "pod=web-3" in texts[2][1]
    taken_over = journal.taken_over().record.executions[ID]
    assert taken_over.log == execution.log, "a takeover tells the same"
    assert taken_over.told == joined_entries[-1]


@pytest.mark.parametrize("kind", ["synthesis", "summary", "chat"])
async def test_later_execution_hears_of_joined_alerts_once_before_its_first_request(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, kind: entries.ExecutionKind
) -> None:
    journal.joining.append(joined(0))

    class Joining(memory.ScriptedModel):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            journal.joining.append(joined(1))
            journal.passed += 60
            return await super().ask(request, scope)

    model = Joining(asks("k8s.get"), says("done"))
    execution = journal.record.executions[ID]
    execution.started = replace(execution.started, kind=kind)
    await run(journal, model, toolbox)
    joined_entries = [entry for entry in journal.facts if isinstance(entry, entries.AlertJoined)]
    assert [entry.number for entry in joined_entries] == [1]
    assert "pod=web-0" in model.requests[0].messages[-1].text

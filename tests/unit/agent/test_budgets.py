"""Budgets of tool calls, counted by the log alone, so a takeover counts the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies
from support import executions
from support.executions import ID
from tarsy.agent import loop, steps, templates
from tarsy.config import resolve
from tarsy.transcript import entries, memory, messages, ports, record

BUDGET = resolve.Budget(at_once=3, calls=10, of_one_tool=4, failed=3)
TOOLS = {name: f"{name} says so" for name in ("k8s.get", "k8s.list", "k8s.log", "k8s.gone", "k8s.lost", "k8s.scale")}
FAILING = ("k8s.gone", "k8s.lost")
WRITING = ("k8s.scale",)


@pytest.fixture
def toolbox() -> memory.DictToolbox:
    return memory.DictToolbox(TOOLS, writing=WRITING, failing=FAILING)


def asks(*names: str) -> messages.Message:
    """One call of each, none like another."""
    calls = tuple(
        messages.ToolCall(id="", name=name, arguments=f'{{"n": {index}}}') for index, name in enumerate(names)
    )
    return messages.Message(role="assistant", calls=calls)


def begun(snapshot: record.Snapshot, *, budget: resolve.Budget | None = BUDGET) -> memory.MemoryJournal:
    specs = memory.DictToolbox(TOOLS, writing=WRITING)
    started = executions.started(specs, stage="look", max_iterations=100, budget=budget)
    return memory.MemoryJournal(snapshot, entries.StageStarted(stage="look", clock=0.0), started)


async def run(
    journal: memory.MemoryJournal, model: memory.ScriptedModel, toolbox: ports.Toolbox
) -> entries.ExecutionEnded:
    execution = await executions.run(journal, model, toolbox)
    assert execution.ended
    return execution.ended


def results(journal: memory.MemoryJournal) -> list[str]:
    """Return the results of its calls that the model got, in the order in which it asked for them."""
    conversation = messages.conversation(journal.record.executions[ID].log)
    return [message.text for message in conversation if message.role == "tool"]


def refused(why: str) -> str:
    return templates.fill("refused", why=why)


ALL = "All 10 tool calls that there may be are made."
ONE = "One tool was called 4 times, as often as it may be."
LAST = "The last tool calls failed, 3 or more in a row."


async def test_first_calls_of_an_answer_over_budget_are_made_and_the_others_refused(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    names = ["k8s.get", "k8s.list", "k8s.log"] * 4
    model = memory.ScriptedModel(asks(*names[:7]), asks(*(["k8s.scale", "k8s.get"] * 50)))
    journal = begun(snapshot, budget=replace(BUDGET, of_one_tool=9))
    assert (await run(journal, model, toolbox)).outcome == "Completed"
    assert [call.name for call in toolbox.called] == [*names[:7], "k8s.scale", "k8s.scale", "k8s.get"]
    assert results(journal)[10:] == [refused(ALL)] * 97
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert model.requests[2].messages[-1].text.startswith(f"{ALL} Call no more tools. Conclude now")


async def test_a_tool_that_is_called_again_and_again_is_called_no_more_and_the_next_answer_is_the_last(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    model = memory.ScriptedModel(asks(*["k8s.log"] * 4), asks("k8s.get"), asks("k8s.log", "k8s.get"), asks("k8s.get"))
    journal = begun(snapshot)
    ended = await run(journal, model, toolbox)
    assert [call.name for call in toolbox.called] == ["k8s.log"] * 4 + ["k8s.get"] * 2
    assert results(journal)[5] == refused(ONE)
    assert [bool(request.tools) for request in model.requests] == [True, True, True, False, False]
    assert model.requests[3].messages[-1].text.startswith(f"{ONE} Call no more tools.")
    assert ended.error == "no conclusion after 5 model calls: the model gave tool calls instead of a conclusion"


async def test_consecutive_failed_tool_calls_lead_to_a_conclusion(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    model = memory.ScriptedModel(asks("k8s.gone"), asks("k8s.lost"), asks("k8s.gone"))
    assert (await run(begun(snapshot), model, toolbox)).outcome == "Completed"
    assert len(toolbox.called) == 3
    assert [bool(request.tools) for request in model.requests] == [True, True, True, False]
    assert model.requests[3].messages[-1].text.startswith(f"{LAST} Call no more tools.")


async def test_after_many_failed_calls_one_more_failure_leads_to_the_conclusion(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    """They fail for one and the same reason, such as a namespace that is none."""
    model = memory.ScriptedModel(asks(*["k8s.gone"] * 6), asks(*["k8s.lost"] * 3))
    journal = begun(snapshot, budget=replace(BUDGET, of_one_tool=9))
    assert (await run(journal, model, toolbox)).outcome == "Completed"
    assert [call.name for call in toolbox.called] == ["k8s.gone"] * 3 + ["k8s.lost"]
    assert results(journal)[3:6] == [refused(LAST)] * 3
    assert results(journal)[7:] == [refused(LAST)] * 2
    assert [bool(request.tools) for request in model.requests] == [True, True, False]


GOES_ON = {
    "one succeeds between them": [["k8s.gone"], ["k8s.lost"], ["k8s.get"], ["k8s.gone"], ["k8s.lost"], ["k8s.list"]],
    "tools that there are not": [["k8s.gone"], ["k8s.none"], ["k8s.nothing"], ["k8s.lost"], ["k8s.never"], ["k8s.get"]],
    "something else after many failures": [["k8s.gone"] * 6, ["k8s.get", "k8s.list"], ["k8s.gone"]],
}


@pytest.mark.parametrize("answers", GOES_ON.values(), ids=GOES_ON)
async def test_agent_goes_on_while_not_all_of_its_last_calls_fail(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox, answers: list[list[str]]
) -> None:
    model = memory.ScriptedModel(*(asks(*names) for names in answers))
    journal = begun(snapshot, budget=replace(BUDGET, of_one_tool=9))
    assert (await run(journal, model, toolbox)).outcome == "Completed"
    assert all(request.tools for request in model.requests)


async def test_execution_started_before_budgets_existed_has_no_budget(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    model = memory.ScriptedModel(asks(*["k8s.get"] * 100), *[asks("k8s.gone")] * 2, asks(*["k8s.lost"] * 100))
    await run(begun(snapshot, budget=None), model, toolbox)
    assert len(toolbox.called) == 202
    assert all(request.tools for request in model.requests)


async def test_writes_that_were_not_made_are_not_in_doubt(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    """Neither those that are refused nor those that would have been made later."""
    journal = begun(snapshot, budget=replace(BUDGET, calls=5, of_one_tool=9))
    call = entries.ModelCall(provider="first", model="m", seconds=0)
    asked = asks(*["k8s.scale"] * 8)
    numbered = tuple(replace(tool_call, id=f"0.{index}") for index, tool_call in enumerate(asked.calls))
    await journal.commit(entries.Answered(execution=ID, turn=0, messages=(replace(asked, calls=numbered),), call=call))
    await run(journal.taken_over(), memory.ScriptedModel(asked), toolbox)
    successor = journal.taken_over()
    await run(successor, memory.ScriptedModel(asked), toolbox)
    result_texts = results(successor)
    assert result_texts == [loop.IN_DOUBT] * 3 + [TOOLS["k8s.scale"]] * 2 + [refused(ALL.replace("10", "5"))] * 3


class Dying(memory.DictToolbox):
    """Ends its worker with one of its calls, which was sent."""

    def __init__(self, *, at: int) -> None:
        super().__init__(TOOLS, writing=WRITING, failing=FAILING)
        self.at = at

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        output = await super().call(call, scope)
        if len(self.called) == self.at:
            raise RuntimeError("it dies")
        return output


@pytest.mark.parametrize("at", range(1, 12))
async def test_write_call_under_way_is_never_sent_again_after_a_takeover(snapshot: record.Snapshot, at: int) -> None:
    """Failures make those fewer that are made at once: who takes over finds those that were made at once before."""
    writing = {"k8s.scale", "k8s.lost"}
    budget = replace(BUDGET, at_once=8, calls=50, of_one_tool=20)
    asked = asks(*["k8s.get"] * 3, "k8s.lost", "k8s.scale", "k8s.lost", "k8s.scale", *["k8s.list"] * 3, "k8s.scale")
    model = memory.ScriptedModel(asked)
    journal = begun(snapshot, budget=budget)
    started = journal.record.executions[ID].started
    specs = tuple(replace(spec, idempotent=spec.name not in writing) for spec in started.tools)
    journal = memory.MemoryJournal(
        snapshot, entries.StageStarted(stage="look", clock=0.0), replace(started, tools=specs)
    )
    toolbox = Dying(at=at)
    with pytest.raises(ExceptionGroup):
        await run(journal, model, toolbox)
    await run(journal.taken_over(), model, toolbox)
    sent = Counter(call.id for call in toolbox.called if call.name in writing)
    assert set(sent.values()) <= {1}


# --- whatever a model asks for ----------------------------------------------------------------------------------------

ANSWERS = strategies.lists(
    strategies.lists(strategies.sampled_from([*TOOLS, "k8s.unknown"]), min_size=1, max_size=12), max_size=8
)
BUDGETS = strategies.builds(
    resolve.Budget,
    at_once=strategies.integers(1, 4),
    calls=strategies.integers(1, 20),
    of_one_tool=strategies.integers(1, 8),
    failed=strategies.integers(1, 5),
)
RULES = steps.Rules(limit=100, problem=lambda _: "", tools=frozenset(TOOLS))


class Run:
    """Conversation as the log makes it, the same after a takeover."""

    def __init__(self, answers: Sequence[Sequence[str]], budget: resolve.Budget) -> None:
        self.answers = answers
        self.rules = replace(RULES, budget=budget)
        self.log: messages.Log = []
        self.made: list[list[str]] = []
        """Tool calls that were made side by side, in order."""

    def go_on(self) -> bool:
        """One step more; False once it is over."""
        match steps.next_step(self.log, self.rules):
            case steps.Ask(final=final):
                call_number = len(messages.answers(self.log))
                names = () if final or call_number >= len(self.answers) else self.answers[call_number]
                calls = tuple(
                    messages.ToolCall(id=f"{call_number}.{index}", name=name, arguments=f'{{"n": {index}}}')
                    for index, name in enumerate(names)
                )
                self.log.append(messages.Message(role="assistant", text="so", calls=calls))
            case steps.Run(calls):
                refusals = {call.id: steps.refusal(self.log, call, self.rules) for call in calls}
                self.made.append([call.name for call in calls if not refusals[call.id]])
                for call in calls:
                    failed = bool(refusals[call.id]) or call.name not in TOOLS or call.name in FAILING
                    self.log.append(messages.Message(role="tool", call_id=call.id, tool_name=call.name, failed=failed))
            case _:
                return False
        return True


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(answers=ANSWERS, budget=BUDGETS)
def test_no_sequence_of_tool_calls_exceeds_a_budget_or_runs_forever(
    answers: list[list[str]], budget: resolve.Budget
) -> None:
    run = Run(answers, budget)
    taken = 0
    while run.go_on():
        taken += 1
        assert taken < 500
    made = [name for batch in run.made for name in batch]
    assert len(made) <= budget.calls
    assert max(Counter(made).values(), default=0) <= budget.of_one_tool
    assert max(map(len, run.made), default=0) <= budget.at_once
    in_a_row = most = 0
    for name in made:
        if name in TOOLS:  # what there is not was not made
            in_a_row = in_a_row + 1 if name in FAILING else 0
        most = max(most, in_a_row)
    at_first = max(budget.at_once, budget.failed)
    assert most <= at_first + budget.at_once, "those that were made side by side, and one more try"
    answered = {entry.call_id for entry in run.log if isinstance(entry, messages.Message) and entry.role == "tool"}
    asked = [call.id for entry in run.log if isinstance(entry, messages.Message) for call in entry.calls]
    assert set(asked) == answered, "every call has a result"


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(answers=ANSWERS, budget=BUDGETS, data=strategies.data())
def test_calls_under_way_are_found_wherever_the_worker_dies(
    answers: list[list[str]], budget: resolve.Budget, data: strategies.DataObject
) -> None:
    """Results come in any order, and each may be the last one that was kept."""
    run = Run(answers, budget)
    before: messages.Log = []
    while run.go_on():
        brought = run.log[len(before) :]
        results = [entry for entry in brought if isinstance(entry, messages.Message) and entry.role == "tool"]
        begun = {result.call_id for result in results}
        for result in data.draw(strategies.permutations(results)):
            assert {call.id for call in steps.under_way(before, run.rules)} == begun
            before = [*before, result]
            begun.remove(result.call_id)
        run.log = before = before if results else list(run.log)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(answers=ANSWERS, budget=BUDGETS, data=strategies.data())
def test_takeover_makes_no_call_that_a_longer_log_would_not_have_made(
    answers: list[list[str]], budget: resolve.Budget, data: strategies.DataObject
) -> None:
    """A takeover at any point does what the previous worker would have done."""
    full_run = Run(answers, budget)
    logs = [list(full_run.log)]
    while full_run.go_on():
        logs.append(list(full_run.log))
    successor = Run(answers, budget)
    successor.log = list(data.draw(strategies.sampled_from(logs)))
    while successor.go_on():
        pass
    assert successor.log == full_run.log

"""The loop and what a model takes: nothing too large is sent twice, and what gave way is in the log before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import executions
from support.executions import ID
from tarsy import failpoints
from tarsy.config import resolve
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record, token_estimate

ALERT = executions.started(memory.DictToolbox({})).messages
TURNS = 8
LENGTH = 3000
"""Characters of a result; a turn has two."""
TAKES = 6000
"""Tokens that the model takes: five or six of them."""


def asks(number: int, strategy: str) -> messages.Message:
    arguments = f'{{"name": "web-{number}"}}'
    if strategy == "react":
        return messages.Message(role="assistant", text=f"Thought: on\nAction: k8s.get\nAction Input: {arguments}")
    calls = [messages.ToolCall(id="", name=name, arguments=arguments) for name in ("k8s.get", "k8s.list")]
    return messages.Message(role="assistant", calls=tuple(calls))


def script(strategy: str, turns: int = TURNS) -> list[messages.Message]:
    conclusion = "Thought: enough\nFinal Answer: memory" if strategy == "react" else "memory"
    return [*(asks(number, strategy) for number in range(turns)), messages.Message(role="assistant", text=conclusion)]


class Narrow(memory.ScriptedModel):
    """Refuses what has more tokens than it takes, and tells how many there were of what it answers."""

    def __init__(self, *script: messages.Message, takes: int) -> None:
        super().__init__(*script)
        self.takes = takes
        self.refused: list[ports.Request] = []

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        tokens = token_estimate.tokens(request)
        if tokens > self.takes:
            self.refused.append(request)
            text, code = f"{tokens} tokens are more than {self.takes}", messages.CONTEXT_OVERFLOW
            raise ports.ModelError(text, kind="fatal", call=self.call, code=code)
        answer = await super().ask(request, scope)
        usage = messages.Usage(input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)
        return replace(answer, call=replace(answer.call, usage=usage))


@pytest.fixture
def toolbox() -> memory.DictToolbox:
    return memory.DictToolbox({"k8s.get": "g" * LENGTH, "k8s.list": "l" * LENGTH})


@pytest.fixture
def strategy() -> chains.IterationStrategy:
    return "native-thinking"


@pytest.fixture
def journal(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox, strategy: chains.IterationStrategy
) -> memory.MemoryJournal:
    """One execution has begun and nothing was said yet."""
    return memory.MemoryJournal(snapshot, executions.started(toolbox, strategy=strategy))


async def run(
    journal: ports.Journal, model: ports.Model, toolbox: ports.Toolbox, *, takes: int | None = None
) -> entries.ExecutionEnded:
    """Run the execution to its end; `takes` is what is known of the model."""
    execution = await executions.run(journal, model, toolbox, context_tokens=lambda _: takes)
    assert execution.ended
    return execution.ended


def compactions(journal: memory.MemoryJournal) -> list[entries.ContextCompacted]:
    return [fact for fact in journal.facts if isinstance(fact, entries.ContextCompacted)]


def holds_alert_and_last_turn(request: ports.Request, *, shortest: int = LENGTH) -> bool:
    """Whether a request begins with the alert, and ends with results of at least so many characters."""
    answers = [message for message in request.messages if message.role == "assistant"]
    if not answers:
        return request.messages == ALERT
    last_answer = max(index for index, message in enumerate(request.messages) if message.role == "assistant")
    last = request.messages[last_answer + 1 :]
    letters = [max(message.text.count("g"), message.text.count("l")) for message in last]
    return request.messages[:2] == ALERT and len(last) in (1, 2) and min(letters) >= shortest


@pytest.mark.parametrize("strategy", ["native-thinking", "react"])
async def test_request_known_to_be_too_large_is_not_sent(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, strategy: chains.IterationStrategy
) -> None:
    model = Narrow(*script(strategy), takes=TAKES)
    ended = await run(journal, model, toolbox, takes=TAKES)
    assert (ended.outcome, model.refused, len(model.requests)) == ("Completed", [], TURNS + 1)
    assert all(map(holds_alert_and_last_turn, model.requests))
    done = compactions(journal)
    assert done
    assert {(compaction.limit, compaction.failure, compaction.call, compaction.cut) for compaction in done} == {
        (TAKES, None, None, ())
    }
    assert all(compaction.tokens > TAKES for compaction in done)
    compacted_calls = [call for compaction in done for call in compaction.results]
    assert compacted_calls == sorted(set(compacted_calls)), "each once, the oldest first"
    logged_results = record.results(journal.record.executions[ID].log)
    assert {len(message.text) for message in logged_results} == {LENGTH}
    assert len(logged_results) == len(toolbox.called) == TURNS * (1 if strategy == "react" else 2)


async def test_a_request_that_is_refused_as_too_large_is_asked_again_with_half_of_it(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    model = Narrow(*script("native-thinking"), takes=TAKES)
    ended = await run(journal, model, toolbox)
    assert (ended.outcome, len(model.requests)) == ("Completed", TURNS + 1)
    assert len(model.refused) == len(compactions(journal)) > 0
    assert all(map(holds_alert_and_last_turn, model.requests))
    for compaction, refused in zip(compactions(journal), model.refused, strict=True):
        answered = next(request for request in model.requests if len(request.messages) == len(refused.messages))
        assert token_estimate.tokens(answered) <= token_estimate.tokens(refused) / 2
        assert compaction.failure
        assert compaction.failure.code == messages.CONTEXT_OVERFLOW
        assert (compaction.call, compaction.limit) == (model.call, 0)
    assert not any(isinstance(fact, entries.Unanswered) for fact in journal.facts)


async def test_too_large_last_turn_is_shortened_until_the_provider_accepts_it(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    model = Narrow(*script("native-thinking", 1), takes=700)
    ended = await run(journal, model, toolbox)
    assert ended.outcome == "Completed"
    compactions_made = compactions(journal)
    assert [(compaction.results, compaction.cut) for compaction in compactions_made] == [((), ("0.0", "0.1"))] * 2
    assert compactions_made[0].shown > compactions_made[1].shown
    assert holds_alert_and_last_turn(model.requests[-1], shortest=compactions_made[1].shown)


async def test_provider_that_refuses_everything_ends_it_once_nothing_is_left_to_give_way(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    class Refusing(Narrow):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            self.takes = TAKES if len(self.requests) < 3 else 0
            return await super().ask(request, scope)

    model = Refusing(*script("native-thinking"), takes=TAKES)
    ended = await run(journal, model, toolbox)
    assert (ended.outcome, "tokens are more than 0" in ended.error) == ("Failed", True)
    sizes = [token_estimate.tokens(request) for request in model.refused]
    assert sizes == sorted(set(sizes), reverse=True), "never the same again"
    assert len(sizes) == len(compactions(journal)) + 1 < 8
    assert isinstance(journal.facts[-2], entries.Unanswered)


async def test_conversation_without_results_has_nothing_to_give_way(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    model = Narrow(*script("native-thinking"), takes=0)
    ended = await run(journal, model, toolbox, takes=1)
    assert (ended.outcome, len(model.refused), compactions(journal)) == ("Failed", 1, [])


async def test_takeover_before_the_answer_sends_the_same_and_compacts_nothing_again(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    class Dying(Narrow):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            if compactions(journal):
                self.requests.append(request)
                raise failpoints.TriggeredError
            return await super().ask(request, scope)

    first = Dying(*script("native-thinking"), takes=TAKES)
    with pytest.raises(failpoints.TriggeredError):
        await run(journal, first, toolbox, takes=TAKES)
    second = Narrow(*script("native-thinking"), takes=TAKES)
    again = journal.taken_over()
    ended = await run(again, second, toolbox, takes=TAKES)
    assert ended.outcome == "Completed"
    assert second.requests[0] == first.requests[-1]
    compacted_calls = [call for compaction in compactions(again) for call in compaction.results]
    assert len(compacted_calls) == len(set(compacted_calls))


async def test_limit_is_what_the_provider_that_is_asked_now_takes(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    """The first of two providers takes anything and is dead after four model calls; then the second is asked."""
    started = executions.started(toolbox, fallbacks=(resolve.Fallback(provider="second"),))
    both = memory.MemoryJournal(snapshot, started)
    wide, narrow = (Narrow(*script("native-thinking"), takes=takes) for takes in (10**9, TAKES))

    class Falling(memory.ScriptedModel):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            answer = await wide.ask(request, scope)
            if len(wide.requests) == 4:
                dead = messages.Failure(kind="fatal", text="gone")
                await both.commit(
                    entries.FellBack(execution=ID, turn=4, provider="second", failure=dead, call=self.call)
                )
            return answer

    takes = {"first": None, "second": TAKES}
    await executions.run(both, Falling(), toolbox, others={"second": narrow}, context_tokens=takes.__getitem__)
    assert both.record.executions[ID].analysis == "memory"
    assert (len(wide.requests), narrow.refused) == (4, [])
    assert {compaction.turn >= 4 for compaction in compactions(both)} == {True}
    assert token_estimate.tokens(wide.requests[-1]) > TAKES


async def test_tool_can_be_called_again_after_its_result_was_compacted(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    answers = script("native-thinking")
    model = Narrow(*answers[:-1], answers[0], answers[-1], takes=TAKES)
    ended = await run(journal, model, toolbox, takes=TAKES)
    assert ended.outcome == "Completed"
    assert "0.0" in journal.record.executions[ID].compacted
    assert [(message.failed, len(message.text)) for message in model.requests[-1].messages[-2:]] == [
        (False, LENGTH)
    ] * 2

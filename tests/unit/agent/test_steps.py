from __future__ import annotations

import pytest
from tarsy.agent import steps
from tarsy.transcript import messages

FIRST = messages.ToolCall(id="0.0", name="k8s.get", arguments="{}")
SECOND = messages.ToolCall(id="0.1", name="k8s.list", arguments="{}")
ASKS = messages.Message(role="assistant", text="I look.", calls=(FIRST, SECOND))
RESULTS = [messages.Message(role="tool", call_id=call.id) for call in (FIRST, SECOND)]
SAYS = messages.Message(role="assistant", text="It is out of memory.")
OPENING = messages.Message(role="user", text="alert")
TIMEOUT = messages.Failure(kind="timeout", text="nothing within 5 s")
REJECTED = messages.Failure(kind="rejected", text="an empty answer")
FLOODED = messages.Failure(kind="rejected", text="a flood")
FATAL = messages.Failure(kind="fatal", text="the key is invalid")

RULES = steps.Rules(limit=3, problem=lambda _: "")

CASES: dict[str, tuple[messages.Log, steps.Step]] = {
    "nothing was said": ([], steps.Ask(final=False)),
    "no call has a result": ([ASKS], steps.Run((FIRST, SECOND))),
    "a later call has a result": ([ASKS, RESULTS[1]], steps.Run((FIRST,))),
    "all calls have results": ([ASKS, *RESULTS], steps.Ask(final=False)),
    "it concluded": ([ASKS, *RESULTS, SAYS], steps.Done()),
    "it concluded past the limit": ([TIMEOUT, REJECTED, TIMEOUT, REJECTED, SAYS], steps.Done()),
    "one timeout": ([TIMEOUT], steps.Ask(final=False)),
    "timeouts apart": ([TIMEOUT, ASKS, *RESULTS, TIMEOUT], steps.Ask(final=True, prompt="conclude")),
    "two timeouts in a row": ([TIMEOUT, TIMEOUT], steps.GiveUp("two timeouts in a row: nothing within 5 s")),
    "a fatal error": ([TIMEOUT, FATAL], steps.GiveUp("the key is invalid")),
    "rejected answers in a row": (
        [REJECTED, TIMEOUT, REJECTED, REJECTED, FLOODED],
        steps.GiveUp("3 rejected answers in a row: a flood"),
    ),
    "rejected answers apart": (
        [REJECTED, REJECTED, ASKS, *RESULTS, REJECTED],
        steps.Ask(final=True, prompt="conclude"),
    ),
    "at the limit": ([REJECTED, REJECTED, TIMEOUT], steps.Ask(final=True, prompt="conclude")),
    "calls at the limit are run first": ([REJECTED, REJECTED, ASKS], steps.Run((FIRST, SECOND))),
    "two beyond the limit": (
        [TIMEOUT, *[REJECTED, TIMEOUT] * 2],
        steps.GiveUp("no conclusion after 5 model calls: nothing within 5 s"),
    ),
}


@pytest.mark.parametrize(("log", "step"), CASES.values(), ids=CASES)
def test_the_log_alone_decides_what_comes_next(log: messages.Log, step: steps.Step) -> None:
    assert steps.next_step([OPENING, *log], RULES) == step


def says(text: str) -> messages.Message:
    return messages.Message(role="assistant", text=text)


def asks(*calls: messages.ToolCall) -> messages.Message:
    return messages.Message(role="assistant", calls=calls)


def unreadable(answer: messages.Message) -> str:
    """Answers that begin with a question mark cannot be read."""
    return f"{answer.text} is no answer" if answer.text.startswith("?") else ""


FAILED = [messages.Message(role="tool", call_id=call.id, text="gone", failed=True) for call in (FIRST, SECOND)]
LOOKING = steps.Rules(limit=4, problem=unreadable, must_look=True)
LOOK = steps.Ask(final=False, prompt="look")
LOOK_CASES: dict[str, tuple[messages.Log, steps.Step]] = {
    "it has not looked": ([SAYS], LOOK),
    "it has not looked, and concludes again": ([SAYS, says("so")], steps.Done()),
    "it was asked to look, and has looked": ([SAYS, ASKS, *RESULTS, says("so")], steps.Done()),
    "it has looked": ([ASKS, *RESULTS, SAYS], steps.Done()),
    "all that it looked at failed": ([ASKS, *FAILED, SAYS], LOOK),
    "all that it looked at failed, and it concludes again": ([ASKS, *FAILED, SAYS, says("so")], steps.Done()),
    "the last that it may be asked": ([TIMEOUT, REJECTED, TIMEOUT, SAYS], steps.Done()),
    "its conclusion was forced": ([TIMEOUT, REJECTED, TIMEOUT, REJECTED, SAYS], steps.Done()),
    "what cannot be read is no conclusion": ([says("?"), SAYS], LOOK),
    "it was asked, and what came cannot be read": (
        [SAYS, says("?")],
        steps.Ask(final=False, prompt="format", problem="? is no answer"),
    ),
    "it was asked, what came cannot be read, and it concludes again": ([SAYS, says("?"), says("so")], steps.Done()),
}


@pytest.mark.parametrize(("log", "step"), LOOK_CASES.values(), ids=LOOK_CASES)
def test_model_that_concludes_without_having_looked_is_asked_once_to_look(log: messages.Log, step: steps.Step) -> None:
    assert steps.next_step([OPENING, *log], LOOKING) == step


@pytest.mark.parametrize(("log", "step"), LOOK_CASES.values(), ids=LOOK_CASES)
def test_model_that_need_not_look_is_never_asked_to(log: messages.Log, step: steps.Step) -> None:
    free = steps.next_step([OPENING, *log], steps.Rules(limit=4, problem=unreadable))
    assert free == (steps.Done() if step == LOOK else step)


FORMAT = steps.Rules(limit=6, problem=unreadable)
A, B, C = says("?a"), says("?b"), says("?c")
FORMAT_CASES: dict[str, tuple[messages.Log, steps.Step]] = {
    "one": ([A], steps.Ask(final=False, prompt="format", problem="?a is no answer")),
    "three in a row": ([A, B, C], steps.GiveUp("3 answers in a row that cannot be read: ?c is no answer")),
    "calls in between": ([A, B, ASKS, *RESULTS, C], steps.Ask(final=False, prompt="format", problem="?c is no answer")),
    "one that can be read": ([A, B, SAYS], steps.Done()),
    "no answer came when it was told": ([A, TIMEOUT], steps.Ask(final=False)),
    "at the limit": ([TIMEOUT, REJECTED, TIMEOUT, REJECTED, TIMEOUT, A], steps.Ask(final=True, prompt="conclude")),
    "three in a row at the limit": (
        [TIMEOUT, REJECTED, TIMEOUT, A, B, C],
        steps.GiveUp("3 answers in a row that cannot be read: ?c is no answer"),
    ),
}


@pytest.mark.parametrize(("log", "step"), FORMAT_CASES.values(), ids=FORMAT_CASES)
def test_unreadable_answer_is_pointed_out_until_it_is_the_third_in_a_row(log: messages.Log, step: steps.Step) -> None:
    assert steps.next_step([OPENING, *log], FORMAT) == step


@pytest.mark.parametrize("must_look", [False, True])
@pytest.mark.parametrize("before", [[A, B], [TIMEOUT, REJECTED], [ASKS, *RESULTS, B], [SAYS, A]])
@pytest.mark.parametrize("limit", [0, 2])
def test_a_forced_conclusion_counts_in_any_form(before: messages.Log, limit: int, must_look: bool) -> None:
    rules = steps.Rules(limit=limit, problem=unreadable, must_look=must_look)
    conversation = before if limit else []
    assert steps.next_step([OPENING, *conversation], rules) == steps.Ask(final=True, prompt="conclude")
    assert steps.next_step([OPENING, *conversation, C], rules) == steps.Done()


SINCE_CASES: dict[str, tuple[int, messages.Log, steps.Step]] = {
    "nothing of its own yet": (2, [REJECTED, REJECTED], steps.Ask(final=False)),
    "a timeout of another's": (1, [TIMEOUT, TIMEOUT], steps.Ask(final=False)),
    "two of its own": (1, [TIMEOUT, TIMEOUT, TIMEOUT], steps.GiveUp("two timeouts in a row: nothing within 5 s")),
    "three of its own": (
        1,
        [REJECTED, REJECTED, REJECTED, FLOODED],
        steps.GiveUp("3 rejected answers in a row: a flood"),
    ),
    "what another gave cannot be read": (2, [A, B], steps.Ask(final=False, prompt="format", problem="?b is no answer")),
    "another's calls beyond the limit": (8, [REJECTED, TIMEOUT] * 4, steps.Ask(final=True, prompt="conclude")),
    "two of its own beyond the limit": (
        8,
        [*[REJECTED, TIMEOUT] * 4, REJECTED, TIMEOUT],
        steps.GiveUp("no conclusion after 10 model calls: nothing within 5 s"),
    ),
}


@pytest.mark.parametrize(("since", "log", "step"), SINCE_CASES.values(), ids=SINCE_CASES)
def test_failures_of_another_provider_do_not_count_against_the_current_provider(
    since: int, log: messages.Log, step: steps.Step
) -> None:
    rules = steps.Rules(limit=6, problem=unreadable, since=since)
    assert steps.next_step([OPENING, *log], rules) == step


def call(call_number: int, name: str = "k8s.get", arguments: str = "{}") -> messages.ToolCall:
    return messages.ToolCall(id=f"{call_number}.0", name=name, arguments=arguments)


def made(*calls: messages.ToolCall) -> messages.Log:
    """A conversation of one call an answer, each with its result; but the last."""
    log: messages.Log = [OPENING]
    for tool_call in calls:
        log += [asks(tool_call), messages.Message(role="tool", call_id=tool_call.id)]
    return log[:-1]


NESTED = '{"a": {"b": 1, "c": [1, 2]}, "d": "x"}'
SPELLINGS = {
    "the same": [NESTED] * 3,
    "in another order": [NESTED, '{"d": "x", "a": {"c": [1, 2], "b": 1}}', NESTED],
    "in another spelling": [NESTED, '{"a":{"b":1,\n"c":[1,2]},"d":"\\u0078"}', NESTED],
    "none, and an empty object": ["", "{}", " { } "],
    "no JSON": ["{", "{", "{"],
}
OTHERS = {
    "other values": [NESTED, NESTED.replace("1", "2", 1), NESTED],
    "a list in another order": [NESTED, NESTED.replace("[1, 2]", "[2, 1]"), NESTED],
    "a number and a truth": ['{"a": 1}', '{"a": true}', '{"a": 1}'],
    "a number and a text": ['{"a": 1}', '{"a": "1"}', '{"a": 1}'],
    "null and nothing": ['{"a": null}', "{}", '{"a": null}'],
    "only the last one": ["{}", "{}", NESTED],
    "only the first one": [NESTED, "{}", "{}"],
    "no JSON, and other of it": ["{", "{{", "{"],
}


@pytest.mark.parametrize(
    ("spellings", "repeated"),
    [*((spelling, True) for spelling in SPELLINGS.values()), *((spelling, False) for spelling in OTHERS.values())],
    ids=[*SPELLINGS, *OTHERS],
)
def test_the_third_call_in_a_row_is_repeated_where_all_three_mean_the_same(
    spellings: list[str], repeated: bool
) -> None:
    calls = [call(call_number, arguments=text) for call_number, text in enumerate(spellings)]
    assert steps.is_repeated(made(*calls), calls[-1]) == repeated


@pytest.mark.parametrize(
    ("names", "repeated"),
    [("g", False), ("gg", False), ("ggg", True), ("gggg", True), ("glg", False), ("gglg", False), ("gglgg", False)],
)
def test_different_call_in_between_restarts_the_repeat_count(names: str, repeated: bool) -> None:
    calls = [call(call_number, name={"g": "k8s.get", "l": "k8s.list"}[name]) for call_number, name in enumerate(names)]
    assert steps.is_repeated(made(*calls), calls[-1]) == repeated


def test_equal_calls_of_one_answer_are_counted_in_order() -> None:
    three = [messages.ToolCall(id=f"0.{index}", name="k8s.get", arguments="{}") for index in range(3)]
    log: messages.Log = [OPENING, asks(*three)]
    assert [steps.is_repeated(log, tool_call) for tool_call in three] == [False, False, True]


def test_text_between_calls_is_no_call() -> None:
    calls = [call(call_number) for call_number in range(3)]
    log = made(*calls)
    log[3:3] = [says("Hm."), TIMEOUT, messages.Message(role="user", text="look")]
    assert steps.is_repeated(log, calls[-1])

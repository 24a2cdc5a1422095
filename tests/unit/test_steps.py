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
    "one call has a result": ([ASKS, RESULTS[0]], steps.Run((SECOND,))),
    "a later call has a result": ([ASKS, RESULTS[1]], steps.Run((FIRST,))),
    "all calls have results": ([ASKS, *RESULTS], steps.Ask(final=False)),
    "it concluded": ([ASKS, *RESULTS, SAYS], steps.Done("It is out of memory.")),
    "it concluded past the limit": ([TIMEOUT, REJECTED, TIMEOUT, REJECTED, SAYS], steps.Done("It is out of memory.")),
    "one timeout": ([TIMEOUT], steps.Ask(final=False)),
    "timeouts apart": ([TIMEOUT, ASKS, *RESULTS, TIMEOUT], steps.Ask(final=True, prompt="conclude")),
    "two timeouts in a row": ([TIMEOUT, TIMEOUT], steps.GiveUp("two timeouts in a row: nothing within 5 s")),
    "a rejected answer": ([REJECTED], steps.Ask(final=False)),
    "a fatal error": ([TIMEOUT, FATAL], steps.GiveUp("the key is invalid")),
    "a fatal error at first": ([FATAL], steps.GiveUp("the key is invalid")),
    "below the limit": ([REJECTED, REJECTED], steps.Ask(final=False)),
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
    "one beyond the limit": ([REJECTED, TIMEOUT] * 2, steps.Ask(final=True, prompt="conclude")),
    "two beyond the limit": (
        [TIMEOUT, *[REJECTED, TIMEOUT] * 2],
        steps.GiveUp("no conclusion after 5 model calls: nothing within 5 s"),
    ),
}


@pytest.mark.parametrize(("log", "step"), CASES.values(), ids=CASES)
def test_the_log_alone_decides_what_comes_next(log: messages.Log, step: steps.Step) -> None:
    assert steps.next_step([OPENING, *log], RULES) == step

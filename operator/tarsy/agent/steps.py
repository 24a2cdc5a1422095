"""The next step of a conversation: a pure function of its log.

The same function decides for a new execution and after a takeover, so resuming needs no code of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, TypeAlias

from tarsy.config import resolve
from tarsy.transcript import messages, record

BEYOND_LIMIT = 2
"""Model calls that a provider gets for its conclusion after the last iteration, so that the loop ends."""
REJECTED_IN_A_ROW = 3
"""Rejected answers in a row that end an execution; as many answers that cannot be read do, too."""
IDENTICAL_IN_A_ROW = 3
"""The number of identical calls in a row of which the last is not made."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that an execution's strategy and settings set for its conversation."""

    limit: int
    """Model calls before the model must conclude."""
    problem: Callable[[messages.Message], str]
    """Returns why an answer without calls is no conclusion; "" if it is one."""
    must_look: bool = False
    """Whether a model that concludes without a result of a tool is asked once to look."""
    since: int = 0
    """The first call number of the present provider: failures of earlier providers do not count against it."""
    budget: resolve.Budget | None = None
    """The limits of its tool calls; None: no limits."""
    tools: frozenset[str] = frozenset()
    """The names of its tools."""


Prompt = Literal["conclude", "look", "format"]
"""The instruction that a request may add: conclude, look before concluding, or keep to the format."""


@dataclass(frozen=True)
class Ask:
    """Ask the model; `final`: without tools, for its conclusion."""

    final: bool
    prompt: Prompt | None = None
    problem: str = ""
    """With `format`: the problem of the last answer. With `conclude`: why no more tools may be called; "" if the
    iterations are used up."""


@dataclass(frozen=True)
class Run:
    """Run these tool calls, which have no results yet, side by side; more may follow."""

    calls: tuple[messages.ToolCall, ...]


@dataclass(frozen=True)
class Done:
    """The last answer is the analysis."""


@dataclass(frozen=True)
class GiveUp:
    """The execution ends without an analysis; `text` is the reason."""

    text: str


Step: TypeAlias = Ask | Run | Done | GiveUp


def next_step(log: messages.Log, rules: Rules) -> Step:
    """Return the next step by the log alone."""
    turns = messages.answers(log)
    spent = _spent(log, rules)
    if spent:  # the last answer with calls used the budget up: only a conclusion can follow
        asked = max(index for index, reply in enumerate(turns) if isinstance(reply, messages.Message) and reply.calls)
        rules = replace(rules, limit=min(rules.limit, asked + 1))
    if used_up := messages.budget_used_up(log):  # only a conclusion can follow
        first = next(index for index, reply in enumerate(turns) if reply is used_up)
        rules, spent = (
            replace(rules, limit=min(rules.limit, first + 1)),
            spent or f"{used_up.text[:1].upper()}{used_up.text[1:]}.",
        )
    own = turns[rules.since :]
    step: Step = Ask(final=False)
    match own[-2:]:
        case [*_, messages.Failure(kind="fatal", text=text)]:
            return GiveUp(text)
        case [messages.Failure(kind="timeout", text=text), messages.Failure(kind="timeout")]:
            return GiveUp(f"two timeouts in a row: {text}")
    match own[-REJECTED_IN_A_ROW:]:
        case [*_, messages.Failure(text=text)] as failures if len(failures) == REJECTED_IN_A_ROW and all(
            isinstance(failure, messages.Failure) and failure.kind == "rejected" for failure in failures
        ):
            return GiveUp(f"{REJECTED_IN_A_ROW} rejected answers in a row: {text}")
    match turns[-1:]:
        case [messages.Message() as answer] if answer.calls:
            if calls := pending(log):
                return Run(_side_by_side(log, calls, rules))
        case [messages.Message() as answer]:
            step = _after_words(answer, turns, rules, has_looked=bool(record.results(log)))
    if not isinstance(step, Ask):
        return step
    if len(turns) >= max(rules.limit, rules.since) + BEYOND_LIMIT:
        last = turns[-1]
        why = f": {last.text}" if isinstance(last, messages.Failure) else ""
        return GiveUp(f"no conclusion after {len(turns)} model calls{why}")
    return Ask(final=True, prompt="conclude", problem=spent) if len(turns) >= rules.limit else step


def pending(log: messages.Log) -> tuple[messages.ToolCall, ...]:
    """Return the calls of the last answer that have no results yet."""
    done = {entry.call_id for entry in log if isinstance(entry, messages.Message)}
    return tuple(call for call in _calls(messages.answers(log)[-1:]) if call.id not in done)


def under_way(log: messages.Log, rules: Rules) -> tuple[messages.ToolCall, ...]:
    """Return the calls that an earlier worker may have begun: those without results in its first incomplete `Run`.

    They follow from the log before their own results, as the earlier worker saw it.
    """
    done = {entry.call_id for entry in log if isinstance(entry, messages.Message)}
    answers = messages.answers(log)[-1:]
    entries_before = log[: next((index for index in reversed(range(len(log))) if log[index] in answers), -1) + 1]
    while together := _side_by_side(entries_before, pending(entries_before), rules):
        if begun := tuple(call for call in together if call.id not in done):
            return begun
        ids = {call.id for call in together}
        last = max(index for index, entry in enumerate(log) if getattr(entry, "call_id", "") in ids)
        entries_before = log[: last + 1]
    return ()


def _after_words(
    answer: messages.Message, turns: list[messages.Message | messages.Failure], rules: Rules, *, has_looked: bool
) -> Step:
    """Return the step after an answer without calls, which is usually the conclusion."""
    if len(turns) > rules.limit:  # an answer to the request to conclude is a conclusion in any form
        return Done()
    problem = rules.problem(answer)
    unreadable = [
        isinstance(reply, messages.Message) and not reply.calls and bool(rules.problem(reply))
        for reply in turns[rules.since :][-REJECTED_IN_A_ROW:]
    ]
    if unreadable == [True] * REJECTED_IN_A_ROW:
        return GiveUp(f"{REJECTED_IN_A_ROW} answers in a row that cannot be read: {problem}")
    if problem:
        return Ask(final=False, prompt="format", problem=problem)
    may_look = rules.must_look and not has_looked and len(turns) < rules.limit
    answers = [reply for reply in turns if isinstance(reply, messages.Message) and not reply.calls]
    if may_look and sum(not rules.problem(conclusion) for conclusion in answers) == 1:
        return Ask(final=False, prompt="look")
    return Done()


def refusal(log: messages.Log, call: messages.ToolCall, rules: Rules) -> str:
    """Return why the budget refuses `call`, which the log has; "" if it does not."""
    if (budget := rules.budget) is None:
        return ""
    made = list(_calls(log))
    index = next(index for index, other in enumerate(made) if other.id == call.id)
    failed = _failed_last(log, rules)
    if index >= budget.calls:
        return _all_made(budget)
    if sum(other.name == call.name for other in made[:index]) >= budget.of_one_tool:
        return _one_made(budget)
    if len(failed) >= budget.failed and _call_number(failed[-1]) == _call_number(call.id):
        return _all_failed(budget)
    return ""


def _spent(log: messages.Log, rules: Rules) -> str:
    """Return why no more tools may be called; "" if they may.

    Failures of a single answer's calls do not end them: they may have one reason, which the model reads once.
    """
    if (budget := rules.budget) is None:
        return ""
    made = Counter(call.name for call in _calls(log))
    failed = _failed_last(log, rules)
    if made.total() >= budget.calls:
        return _all_made(budget)
    if any(count > budget.of_one_tool for count in made.values()):
        return _one_made(budget)
    if len(failed) >= budget.failed and len(set(map(_call_number, failed))) >= min(2, budget.failed):
        return _all_failed(budget)
    return ""


def _side_by_side(
    log: messages.Log, pending: tuple[messages.ToolCall, ...], rules: Rules
) -> tuple[messages.ToolCall, ...]:
    """Return the next calls to make of `pending`, within the budget; if none may be made, those that are refused.

    After failures no more calls run at once than may still fail.
    """
    if (budget := rules.budget) is None:
        return pending
    failed = len(_failed_last(log, rules))
    slots = min(budget.at_once, max(1, budget.failed - failed)) if failed else budget.at_once
    return tuple(call for call in pending if not refusal(log, call, rules))[:slots] or pending


def _all_made(budget: resolve.Budget) -> str:
    return f"All {budget.calls} tool calls that there may be are made."


def _one_made(budget: resolve.Budget) -> str:
    return f"One tool was called {budget.of_one_tool} times, as often as it may be."


def _all_failed(budget: resolve.Budget) -> str:
    return f"The last tool calls failed, {budget.failed} or more in a row."


def _failed_last(log: messages.Log, rules: Rules) -> list[str]:
    """Return the ids of the failed calls at the end of the log, in the order of their results.

    Calls in doubt do not count, nor calls of unknown tools.
    """
    results = [
        entry
        for entry in log
        if isinstance(entry, messages.Message) and entry.tool_name in rules.tools and not entry.in_doubt
    ]
    return [result.call_id for result in takewhile(lambda result: result.failed, reversed(results))][::-1]


def _call_number(call_id: str) -> str:
    return call_id.partition(".")[0]


def is_repeated(log: messages.Log, call: messages.ToolCall) -> bool:
    """Return whether the calls just before `call` were the same, so that one more would show nothing new."""
    made = list(_calls(log))
    index = next(index for index, other in enumerate(made) if other.id == call.id)
    before = made[max(0, index - IDENTICAL_IN_A_ROW + 1) : index]
    return len(before) == IDENTICAL_IN_A_ROW - 1 and all(
        (other.name, _arguments(other)) == (call.name, _arguments(call)) for other in before
    )


def _calls(log: messages.Log) -> Iterator[messages.ToolCall]:
    for entry in log:
        if isinstance(entry, messages.Message):
            yield from entry.calls


def _arguments(call: messages.ToolCall) -> str:
    try:
        return json.dumps(json.loads(call.arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return call.arguments

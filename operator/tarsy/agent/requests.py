"""The requests to a model, and the end of an execution: pure functions of its log.

The loop sends the requests, and the trace shows them by the same functions. So no request is stored, and people see
what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tarsy.agent import context, result_tools, steps, strategies, summaries, templates
from tarsy.config import resolve
from tarsy.transcript import entries, messages, ports, record

Called: TypeAlias = entries.Answered | entries.Unanswered | entries.FellBack | entries.ContextCompacted
"""The entries about a model call. A compaction is one if the provider refused the request before it."""


def next_step(execution: record.Execution, log: messages.Log | None = None) -> steps.Step:
    """Return the next step of an execution, by its own log or by `log`."""
    return steps.next_step(execution.log if log is None else log, rules(execution))


def end(execution: record.Execution, log: messages.Log) -> entries.ExecutionEnded | None:
    """Return the end of an execution whose log is now `log`; None if it continues."""
    identity = execution.started.execution
    match next_step(execution, log):
        case steps.Done():
            ungrounded = rules(execution).must_look and not record.results(log)
            return entries.ExecutionEnded(execution=identity, outcome="Completed", ungrounded=ungrounded)
        case steps.GiveUp(error):
            errors = "; before that, ".join((error, *reversed(execution.given_up)))
            return entries.ExecutionEnded(execution=identity, outcome="Failed", error=errors)
    return None


def rules(execution: record.Execution) -> steps.Rules:
    """Return the rules that strategy and settings set for the conversation."""
    started, chosen = execution.started, strategy(execution)
    return steps.Rules(
        limit=settings(execution).max_iterations if chosen.tools else 0,
        problem=chosen.dialect.problem,
        must_look=started.kind == "agent"
        and chosen.tools
        and any(not result_tools.is_own(tool.name) for tool in started.tools),
        since=execution.since,
        budget=settings(execution).budget,
        tools=frozenset(tool.name for tool in execution.tools),
    )


def strategy(execution: record.Execution) -> strategies.Strategy:
    """Return the strategy of an execution."""
    return strategies.STRATEGIES[settings(execution).strategy]


def settings(execution: record.Execution) -> resolve.ResolvedAgent:
    """Return the settings that the execution was started with."""
    agent = execution.started.agent
    assert agent  # noqa: S101 - an execution without settings ends when it starts
    return agent


def added(execution: record.Execution, ask: steps.Ask) -> tuple[messages.Message, ...]:
    """Return the messages that are added for a request. After an unanswered call the log has them already."""
    if ask.prompt is None or not strategy(execution).tools:  # a strategy without tools always concludes
        return ()
    match ask.prompt:
        case "conclude":
            template = "conclude-chat" if execution.started.kind == "chat" else strategy(execution).conclude
            text = templates.fill(template, why=ask.problem or templates.text("iterations"))
        case "look":
            text = templates.text("look")
        case "format":
            text = templates.fill("format-react", problem=ask.problem)
    addition = messages.Message(role="user", text=text)
    conversation = messages.conversation(execution.log)
    return () if conversation[-1] == addition else (addition,)


def context_of(execution: record.Execution, ask: steps.Ask, additions: Sequence[messages.Message]) -> context.Context:
    """Return the context of the next request: the conversation with `additions`, and the tools."""
    return context.build(execution, (*messages.conversation(execution.log), *additions), _tools(execution, ask))


def next_request(execution: record.Execution, ask: steps.Ask, additions: Sequence[messages.Message]) -> ports.Request:
    """Return the next request: each message as the model reads it, and the tools that it may call."""
    return ports.Request(
        messages=strategy(execution).dialect.render(context_of(execution, ask, additions).visible()),
        tools=_tools(execution, ask),
        native_tools=() if ask.final else execution.source.native.offered,
    )


def request_of(execution: record.Execution, called: Called) -> tuple[steps.Ask, ports.Request]:
    """Return the request of the call that `called` records, by the execution's state before that commit.

    If the rules of this version would not have asked then, an earlier version asked, with all tools.
    """
    step = next_step(execution)
    ask = step if isinstance(step, steps.Ask) else steps.Ask(final=False)
    match called:
        case entries.Answered():
            additions = called.messages[:-1]
        case entries.Unanswered():
            additions = called.messages
        case _:  # the log has them with the next call
            additions = added(execution, ask)
    return ask, next_request(execution, ask, additions)


def asked_for_summary(
    execution: record.Execution, entry: entries.ToolSummarised, *, investigation: str, full_result: str | None
) -> ports.Request:
    """Return the request of a summary, by the execution's state before the summary was committed.

    `investigation` is `namespace/name`; `full_result` is the whole result, if the log has only a part.
    """
    _, result = execution.result(entry.call_id)
    return summaries.request(
        execution,
        execution.due[entry.call_id],
        investigation=investigation,
        call_id=entry.call_id,
        full_result=result.text if full_result is None else full_result,
        word=entry.word,
    )


def _tools(execution: record.Execution, ask: steps.Ask) -> tuple[messages.ToolSpec, ...]:
    return () if ask.final else strategy(execution).dialect.declared_tools(execution.tools)

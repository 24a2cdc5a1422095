"""The parts of a kind of entry. No part has a default: a kind without a part sets `nothing`, `none` or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from tarsy.transcript import entries, messages, nesting, timeline_events

E = TypeVar("E")

Additions: TypeAlias = Sequence[messages.Message | messages.Failure]


@dataclass(frozen=True, kw_only=True)
class ModelCalls(Generic[E]):
    """The model calls in entries of a kind."""

    call: Callable[[E], entries.ModelCall | None]
    """Returns the account of the call; None if this entry has none."""
    reply: Callable[[E], messages.Message | messages.Failure]
    """Returns the reply to the call; an empty message if there was no reply."""
    context: Callable[[E, int], int]
    """Returns the number of messages in the request; the argument is the conversation's length before the entry."""


@dataclass(frozen=True, kw_only=True)
class Timeline(Generic[E]):
    """The events of a kind, and its effect on earlier ones."""

    events: Callable[[E, timeline_events.Context], Iterable[timeline_events.Event]]
    closes: Callable[[E], entries.Outcome | None]
    """Returns the outcome with which it closes the streaming events of its execution; None if it closes none.

    A model call closes them too: all earlier tool calls have results by then, but maybe in unreadable entries.
    """
    last_text: Callable[[E], timeline_events.Type | None]
    """Returns the final type of the last text of its execution; None if the entry does not decide it.

    The last text of a completed execution is its conclusion. A text before another request or a failure is not.
    """


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[E]):
    """The meaning of the entries of one kind."""

    order: Callable[[nesting.Nesting, E], None]
    """Begins, requires or ends levels; raises OutOfOrderError."""
    effect: Callable[[Any, E], None]
    """Applies an entry of `entries.OfExecution` to its `record.Execution`, any other entry to the `record.Record`."""
    messages: Callable[[E], Additions]
    """Returns the messages and failures that it adds to the conversation of its execution."""
    model_calls: ModelCalls[E] | None
    """None if its entries have no model call."""
    tool_calls: Callable[[E], Sequence[entries.ToolRun]]
    timeline: Timeline[E]


def nothing(*_: Any) -> tuple[()]:
    """Return (), for a part that a kind does not have."""
    return ()


def none(*_: Any) -> None:
    """Return None, for a part that a kind does not have."""


def require_execution(levels: nesting.Nesting, entry: Any) -> None:
    """Raise OutOfOrderError unless the execution of `entry` has begun and has not ended."""
    levels.require(nesting.execution(entry.execution))


NO_EVENTS: Timeline[Any] = Timeline(events=nothing, closes=none, last_text=none)
"""The timeline of a kind without events."""


def timeline_with(events: Callable[[E, timeline_events.Context], Iterable[timeline_events.Event]]) -> Timeline[E]:
    """Return the timeline of a kind that has events and changes no earlier ones."""
    return Timeline(events=events, closes=none, last_text=none)

"""The parts that each kind of entry has. None has a default: a kind says of each part what it is, or `nothing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from tarsy.transcript import entries, messages, nesting, timeline_events

E = TypeVar("E")

Additions: TypeAlias = Sequence[messages.Message | messages.Failure]


@dataclass(frozen=True, kw_only=True)
class ModelCalls(Generic[E]):
    """The model call that entries of a kind account for."""

    call: Callable[[E], entries.ModelCall | None]
    """None where this entry has none."""
    reply: Callable[[E], messages.Message | messages.Failure]
    """The reply to the call; an empty message where it brought nothing."""
    context: Callable[[E, int], int]
    """The messages that were sent, where so many stood in the conversation before the entry."""


@dataclass(frozen=True, kw_only=True)
class Timeline(Generic[E]):
    """The events of a kind, and its effect on earlier ones."""

    events: Callable[[E, timeline_events.Context], Iterable[timeline_events.Event]]
    closes: Callable[[E], entries.Outcome | None]
    """The outcome with which it closes the streaming events of its execution; None if it closes none.

    A model is asked again only once its calls have results: one that has none then has one that cannot be read.
    """
    last_text: Callable[[E], timeline_events.Type | None]
    """The type that the last text of its execution turns out to have; None where the entry does not tell.

    A text before a further request, or before a failure, was no conclusion; that of a completed execution was.
    """


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[E]):
    """All that the entries of one kind mean."""

    order: Callable[[nesting.Nesting, E], None]
    """Begins, requires or ends levels; raises an OutOfOrderError."""
    effect: Callable[[Any, E], None]
    """Adds an entry to its `record.Execution`; one that is not in `entries.OfExecution`, to the `record.Record`."""
    messages: Callable[[E], Additions]
    """The messages and failures that it adds to the conversation of its execution."""
    model_calls: ModelCalls[E] | None
    """None where it accounts for none."""
    tool_calls: Callable[[E], Sequence[entries.ToolRun]]
    timeline: Timeline[E]


def nothing(*_: Any) -> tuple[()]:
    """Stand for a part that a kind does not have."""
    return ()


def none(*_: Any) -> None:
    """A part of which a kind says nothing."""


def of_execution(levels: nesting.Nesting, entry: Any) -> None:
    """The order of what happens in an execution: it has begun, and has not ended."""
    levels.require(nesting.execution(entry.execution))


UNSEEN: Timeline[Any] = Timeline(events=nothing, closes=none, last_text=none)
"""The timeline of a kind without events."""


def timeline_with(show: Callable[[E, timeline_events.Context], Iterable[timeline_events.Event]]) -> Timeline[E]:
    """Return the timeline of a kind that has events of its own and changes no others."""
    return Timeline(events=show, closes=none, last_text=none)

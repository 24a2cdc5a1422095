"""All kinds of entries, and what one entry means by its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tarsy.transcript import entries, messages, record
from tarsy.transcript.kinds import executions, kind, model_calls, runs, stages, tool_calls

KINDS: dict[type[Any], kind.Kind[Any]] = {
    **runs.KINDS,
    **stages.KINDS,
    **executions.KINDS,
    **model_calls.KINDS,
    **tool_calls.KINDS,
}


def _names(has_part: Callable[[kind.Kind[Any]], bool]) -> tuple[str, ...]:
    return tuple(shape.__name__ for shape, listed in KINDS.items() if has_part(listed))


WITH_MESSAGES = _names(lambda listed: listed.messages is not kind.nothing)
"""The names of the kinds that bring messages."""
WITH_MODEL_CALLS = _names(lambda listed: listed.model_calls is not None)
"""The names of the kinds that account for model calls."""
WITH_TOOL_CALLS = _names(lambda listed: listed.tool_calls is not kind.nothing)
"""The names of the kinds that tell of tool calls."""


def kind_of(entry: entries.Entry) -> kind.Kind[Any]:
    """Return the kind of an entry."""
    return KINDS[type(entry)]


def fold(snapshot: record.Snapshot, log: Iterable[entries.Entry]) -> record.Record:
    """The record that these entries add up to; an OutOfOrderError says which one cannot follow those before it."""
    folded = record.Record(snapshot=snapshot)
    for entry in log:
        apply(folded, entry)
    return folded


def check(so_far: record.Record, added: Iterable[entries.Entry]) -> None:
    """Raise an OutOfOrderError if these entries cannot follow: before they are written, not after."""
    copied = so_far.order.copied()
    for entry in added:
        kind_of(entry).order(copied, entry)


def apply(so_far: record.Record, entry: entries.Entry) -> None:
    """Add an entry to the record; an OutOfOrderError says what it lacks."""
    own = kind_of(entry)
    own.order(so_far.order, entry)
    own.effect(so_far.executions[entry.execution] if isinstance(entry, entries.OfExecution) else so_far, entry)


def add(execution: record.Execution, entry: entries.Entry) -> None:
    """Add an entry to the execution that it belongs to; one that starts it, or is of none, changes nothing."""
    if isinstance(entry, entries.OfExecution):
        kind_of(entry).effect(execution, entry)


def log_additions(entry: entries.Entry) -> kind.Additions:
    """Return the messages and failures that an entry adds to its execution's conversation."""
    return kind_of(entry).messages(entry)


def messages_of(entry: entries.Entry | entries.Unreadable) -> Sequence[messages.Message]:
    """Return the messages that an entry brings."""
    if isinstance(entry, entries.Unreadable):
        return ()
    return [message for message in log_additions(entry) if isinstance(message, messages.Message)]


def model_call(entry: entries.Entry | entries.Unreadable) -> entries.ModelCall | None:
    """Return the model call that an entry accounts for, if it does."""
    calls = None if isinstance(entry, entries.Unreadable) else kind_of(entry).model_calls
    return calls.call(entry) if calls else None


def reply(entry: entries.Entry) -> messages.Message | messages.Failure:
    """Return what the model call of an entry brought; a LookupError if it accounts for none."""
    if calls := kind_of(entry).model_calls:
        return calls.reply(entry)
    raise LookupError(type(entry).__name__)


def context_messages(entry: entries.Entry, *, before: int) -> int:
    """Return how many messages the model call of an entry sent; `before` it the conversation had so many."""
    if calls := kind_of(entry).model_calls:
        return calls.context(entry, before)
    raise LookupError(type(entry).__name__)


def tool_runs(entry: entries.Entry | entries.Unreadable) -> Sequence[entries.ToolRun]:
    """Return the tool calls of an entry, with their results."""
    return () if isinstance(entry, entries.Unreadable) else kind_of(entry).tool_calls(entry)

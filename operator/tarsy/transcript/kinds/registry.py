"""All kinds of entries, and the meaning of one entry by its kind."""

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
    return tuple(shape.__name__ for shape, its_kind in KINDS.items() if has_part(its_kind))


WITH_MESSAGES = _names(lambda listed: listed.messages is not kind.nothing)
"""The names of the kinds that have messages."""
WITH_MODEL_CALLS = _names(lambda listed: listed.model_calls is not None)
"""The names of the kinds that have model calls."""
WITH_TOOL_CALLS = _names(lambda listed: listed.tool_calls is not kind.nothing)
"""The names of the kinds that have tool calls."""


def kind_of(entry: entries.Entry) -> kind.Kind[Any]:
    """Return the kind of an entry."""
    return KINDS[type(entry)]


def fold(snapshot: record.Snapshot, log: Iterable[entries.Entry]) -> record.Record:
    """Return the record of these entries; raises OutOfOrderError if an entry cannot follow those before it."""
    folded = record.Record(snapshot=snapshot)
    for entry in log:
        apply(folded, entry)
    return folded


def check(so_far: record.Record, added: Iterable[entries.Entry]) -> None:
    """Raise OutOfOrderError if these entries cannot follow. The record stays as it is."""
    copied = so_far.order.copied()
    for entry in added:
        kind_of(entry).order(copied, entry)


def apply(so_far: record.Record, entry: entries.Entry) -> None:
    """Add an entry to the record; raises OutOfOrderError if it cannot follow."""
    its_kind = kind_of(entry)
    its_kind.order(so_far.order, entry)
    its_kind.effect(so_far.executions[entry.execution] if isinstance(entry, entries.OfExecution) else so_far, entry)


def add(execution: record.Execution, entry: entries.Entry) -> None:
    """Add an entry to its execution; an entry outside of `entries.OfExecution` changes nothing."""
    if isinstance(entry, entries.OfExecution):
        kind_of(entry).effect(execution, entry)


def log_additions(entry: entries.Entry) -> kind.Additions:
    """Return the messages and failures that an entry adds to its execution's conversation."""
    return kind_of(entry).messages(entry)


def messages_of(entry: entries.Entry | entries.Unreadable) -> Sequence[messages.Message]:
    """Return the messages of an entry."""
    if isinstance(entry, entries.Unreadable):
        return ()
    return [message for message in log_additions(entry) if isinstance(message, messages.Message)]


def model_call(entry: entries.Entry | entries.Unreadable) -> entries.ModelCall | None:
    """Return the account of the model call of an entry; None if it has none."""
    calls = None if isinstance(entry, entries.Unreadable) else kind_of(entry).model_calls
    return calls.call(entry) if calls else None


def reply(entry: entries.Entry) -> messages.Message | messages.Failure:
    """Return the reply to the model call of an entry; raises LookupError if it has none."""
    if calls := kind_of(entry).model_calls:
        return calls.reply(entry)
    raise LookupError(type(entry).__name__)


def context_messages(entry: entries.Entry, *, before: int) -> int:
    """Return the number of messages in the request of an entry's model call; raises LookupError if it has none.

    `before` is the number of messages in the conversation before the entry.
    """
    if calls := kind_of(entry).model_calls:
        return calls.context(entry, before)
    raise LookupError(type(entry).__name__)


def tool_runs(entry: entries.Entry | entries.Unreadable) -> Sequence[entries.ToolRun]:
    """Return the tool calls of an entry, with their results."""
    return () if isinstance(entry, entries.Unreadable) else kind_of(entry).tool_calls(entry)

"""The conversation of one execution, as the model is shown it.

A model call that brought no usable answer is a `Failure` in the log and no message: what is sent is exactly the
messages, so that user and assistant always take turns and the transcript equals what the provider saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tarsy.resources import chains


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call that an answer asks for."""

    id: str
    """Ours, `<turn>.<index>`: unique in its execution, whatever the model calls it."""
    name: str
    """`server.tool`."""
    arguments: str
    """JSON text, as the model gave it."""


@dataclass(frozen=True, kw_only=True)
class ProviderState:
    """The state that a provider wants back unchanged with one of its answers (signatures, encrypted reasoning)."""

    provider: str
    """The provider that gave it; to any other it is not sent."""
    data: Any
    """JSON, opaque to everybody else."""


@dataclass(frozen=True, kw_only=True)
class NativeResult:
    """The result of a provider's own tool, within an answer."""

    tool: chains.NativeTool
    content: str
    """For people: what the code printed, or the sources, a line each."""
    details: dict[str, Any] = field(default_factory=dict)
    """JSON: `code`, `language` and `outcome` of code; else `queries` and `sources` (title, url, and the problem of one
    that could not be read)."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    thinking: str = ""
    """The thoughts that the model made visible; never sent as text."""
    calls: tuple[ToolCall, ...] = ()
    native: tuple[NativeResult, ...] = ()
    """The results of the provider's own tools for this answer."""
    call_id: str = ""
    """With role tool: the call that this is the result of."""
    tool_name: str = ""
    failed: bool = False
    """With role tool: the tool answered with an error, or not at all."""
    in_doubt: bool = False
    """With role tool: the call was under way when its worker died; it may have happened and is not repeated."""
    provider_state: ProviderState | None = None


FailureKind: TypeAlias = Literal["timeout", "rejected", "fatal"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A model call that brought no usable answer."""

    kind: FailureKind
    """timeout: nothing in time. rejected: an answer that is none; asking again may help. fatal: it cannot."""
    text: str
    code: str = ""
    """The provider's name for the failure (an HTTP status, or a word such as context_overflow); "" if it has none."""


CONTEXT_OVERFLOW = "context_overflow"
"""The code of a failure that a smaller request would not have."""
EMPTY = "empty"
"""The code of answers with neither words nor calls."""
RETRIES = "retries"
"""The code of a failure that might have been none, had requests been left to repeat: no provider's fault."""

Log: TypeAlias = list[Message | Failure]
"""The events of one execution, in order."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool as the model is shown it."""

    name: str
    """`server.tool`."""
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the arguments."""
    idempotent: bool = False
    """Read-only or idempotent: a call in flight at a crash may be sent once more."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one model call, as the provider counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    total_tokens: int = 0


def conversation(log: Iterable[Message | Failure]) -> tuple[Message, ...]:
    """The messages to send: without failures, tool results behind their calls and in call order."""
    messages = [entry for entry in log if isinstance(entry, Message)]
    results = {message.call_id: message for message in messages if message.role == "tool"}
    return tuple(
        sent
        for message in messages
        if message.role != "tool"
        for sent in (message, *(results[call.id] for call in message.calls))
    )


def storable(text: str) -> str:
    """Replace what Postgres' UTF-8 cannot hold, NUL and lone surrogates, by U+FFFD.

    Done where text enters, so that what is stored and what is sent are one and the same.
    """
    return well_formed(text.replace("\x00", "\ufffd"))


def well_formed(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can hold, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable_json(value: Any) -> Any:
    """JSON of which every string, keys included, is `storable`."""
    return _changed(value, storable)


def well_formed_json(value: Any) -> Any:
    """JSON of which every string, keys included, is `well_formed`: it can be sent."""
    return _changed(value, well_formed)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {change(key): _changed(member, change) for key, member in value.items()}
        case list():
            return [_changed(member, change) for member in value]
        case _:
            return value


def is_plain_json(value: Any, *, deepest: int = 100) -> bool:
    """Whether JSON can hold `value`, nested no deeper than that: what is stored, many programs have to read."""
    match value:
        case dict() | list() if deepest == 0:
            return False
        case dict():
            items: Iterable[Any] = value.values()
            return all(map(_is_text, value)) and all(is_plain_json(member, deepest=deepest - 1) for member in items)
        case list():
            return all(is_plain_json(member, deepest=deepest - 1) for member in value)
        case float():
            return math.isfinite(value)
        case _:
            return value is None or isinstance(value, str | int)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def answers(log: Sequence[Message | Failure]) -> list[Message | Failure]:
    """The model's turns: its answers and the calls that brought none."""
    return [entry for entry in log if isinstance(entry, Failure) or entry.role == "assistant"]

"""The conversation of one execution, as its model reads it.

A model call without a usable answer is a `Failure` in the log, not a message. A request has exactly the messages, so
that user and assistant alternate, and the transcript equals the provider's requests.
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
    """`CALL_NUMBER.INDEX`, unique in its execution; the model's own id is not used."""
    name: str
    """`server.tool`."""
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, kw_only=True)
class ProviderState:
    """Signatures or encrypted reasoning that a provider needs back unchanged with one of its answers."""

    provider: str
    """The provider that gave it; no other provider gets it."""
    data: Any
    """Opaque JSON."""


@dataclass(frozen=True, kw_only=True)
class NativeResult:
    """The result of a provider's own tool, within an answer."""

    tool: chains.NativeTool
    content: str
    """For people: the output of the code, or the sources, one per line."""
    details: dict[str, Any] = field(default_factory=dict)
    """JSON: `code`, `language` and `outcome` of code; else `queries` and `sources` (title, url, and the problem of one
    that could not be read)."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    thinking: str = ""
    """The visible thoughts of the model; never sent back as text."""
    calls: tuple[ToolCall, ...] = ()
    native: tuple[NativeResult, ...] = ()
    """The results of the provider's own tools for this answer."""
    call_id: str = ""
    """With role tool: the id of the call."""
    tool_name: str = ""
    failed: bool = False
    """With role tool: the result is an error, or there was no result."""
    in_doubt: bool = False
    """With role tool: the call was under way when its worker ended. It may have happened, and is not repeated."""
    provider_state: ProviderState | None = None


FailureKind: TypeAlias = Literal["timeout", "rejected", "fatal"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A model call without a usable answer."""

    kind: FailureKind
    """timeout: no answer in time. rejected: an unusable answer; another request may help. fatal: no request can."""
    text: str
    code: str = ""
    """The provider's name for the failure (an HTTP status, or a word such as context_overflow); "" if it has none."""


CONTEXT_OVERFLOW = "context_overflow"
"""The code of a failure because the request was too large."""
EMPTY = "empty"
"""The code of an answer with neither text nor calls."""
RETRIES = "retries"
"""The code of a failure because the run may repeat no more requests; the provider did not cause it."""

BUDGET = "budget"
"""The code of a failure because a budget is used up: nothing more is asked."""
BUDGET_CONCLUDES = "budget_concludes"
"""The code of a failure because a budget is used up, of which a part is kept for a conclusion."""
BUDGET_CODES = (BUDGET, BUDGET_CONCLUDES)

Log: TypeAlias = list[Message | Failure]
"""The events of one execution, in order."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool as the model reads it."""

    name: str
    """`server.tool`."""
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the arguments."""
    idempotent: bool = False
    """Whether it is read-only or idempotent: a call that was under way at a crash may be sent once more."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one model call, as the provider counts them."""

    input_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    total_tokens: int = 0


def budget_used_up(log: Log) -> Failure | None:
    """Return the failure by which a budget first asked for a conclusion, or refused a request; None if none did."""
    return next((entry for entry in log if isinstance(entry, Failure) and entry.code in BUDGET_CODES), None)


def conversation(log: Iterable[Message | Failure]) -> tuple[Message, ...]:
    """Return the messages to send: without failures, tool results after their calls and in their order."""
    messages = [entry for entry in log if isinstance(entry, Message)]
    results = {message.call_id: message for message in messages if message.role == "tool"}
    return tuple(
        sent
        for message in messages
        if message.role != "tool"
        for sent in (message, *(results[call.id] for call in message.calls))
    )


def storable(text: str) -> str:
    """Return `text` with U+FFFD for NUL and lone surrogates, which Postgres' UTF-8 cannot hold.

    It is applied where text enters, so that stored and sent text are the same.
    """
    return well_formed(text.replace("\x00", "\ufffd"))


def well_formed(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable_json(value: Any) -> Any:
    """Return JSON with all strings, keys included, `storable`."""
    return _changed(value, storable)


def well_formed_json(value: Any) -> Any:
    """Return JSON with all strings, keys included, `well_formed`, so that it can be sent."""
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
    """Return whether JSON can hold `value`, with at most `deepest` levels, which all programs can read."""
    match value:
        case dict() | list() if deepest == 0:
            return False
        case dict():
            items: Iterable[Any] = value.items()
            return all(isinstance(key, str) and is_plain_json(member, deepest=deepest - 1) for key, member in items)
        case list():
            return all(is_plain_json(member, deepest=deepest - 1) for member in value)
        case float():
            return math.isfinite(value)
        case _:
            return value is None or isinstance(value, str | int)


def answers(log: Sequence[Message | Failure]) -> list[Message | Failure]:
    """Return the replies of the model: answers, and failures."""
    return [entry for entry in log if isinstance(entry, Failure) or entry.role == "assistant"]

"""The interface of a provider: a stream of events for one answer, and the errors that it may raise.

    ProviderError
    ├── RetryableError        the same request may work later (429, 5xx, a cut connection)
    ├── RejectedError         the answer is unusable, another may not be (malformed call, filtered, repetitive)
    └── FatalError            another request cannot help (key, model, request, blocked prompt)
        └── ContextOverflowError  the request is larger than the model takes

SDK retries are off everywhere: the only retry policy is that of `llm.limited_model`, and the transcript shows it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tarsy.resources import chains
from tarsy.transcript import messages, ports

RESPONSE_NAME_MAX = 200
"""Characters of a response's model and id, each; a longer one is cut."""
SHORTEST_KEY = 8
"""Characters of the shortest key that is removed from error texts; shorter ones are parts of many words."""


class ProviderError(Exception):
    """A request without an answer; `code` is the provider's HTTP status or word for the reason, or ""."""

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class RetryableError(ProviderError):
    """The same request may work later: `after` so many seconds, if the provider names a wait."""

    def __init__(self, text: str, *, after: float | None = None, code: str = "") -> None:
        super().__init__(text, code=code)
        self.after = after


class RejectedError(ProviderError):
    """An unusable answer; another request may bring a usable one."""


class FatalError(ProviderError):
    """Another request cannot help."""


class ContextOverflowError(FatalError):
    """The request is larger than the model takes."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code=messages.CONTEXT_OVERFLOW)


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A piece of the visible thoughts."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call: the tool's name as in the request, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CodeExecution:
    """Code that the provider ran for the model, and its output."""

    code: str
    output: str
    language: str = ""
    outcome: str = ""
    """The provider's name for the outcome."""


@dataclass(frozen=True)
class Source:
    """A web page that the provider found or read."""

    title: str
    url: str
    problem: str = ""
    """The provider's word for the reason why the page was not read; "" if it was."""


@dataclass(frozen=True)
class Grounding:
    """The web pages that the model used through a tool of its provider."""

    tool: chains.NativeTool
    sources: Sequence[Source]
    queries: Sequence[str] = ()


@dataclass(frozen=True)
class Response:
    """The model that answers and the id of its response, by the provider's own names; "" for what it does not name."""

    model: str = ""
    id: str = ""

    @classmethod
    def from_json(cls, model: object, response_id: object) -> Response:
        """Return it by two values of an answer's JSON; one that is no text counts as not named."""
        named = (value if isinstance(value, str) else "" for value in (model, response_id))
        return cls(*(messages.storable(name[:RESPONSE_NAME_MAX]) for name in named))


@dataclass(frozen=True)
class Usage:
    """Token counts so far; the last event counts."""

    usage: messages.Usage


@dataclass(frozen=True)
class Finish:
    """The end of a complete answer; `state` is JSON that the provider wants back with it."""

    state: Any


StreamEvent: TypeAlias = Text | Thinking | Call | CodeExecution | Grounding | Response | Usage | Finish


class Provider(Protocol):
    """One provider of the platform file."""

    model: str

    def stream(self, request: ports.Request) -> AsyncGenerator[StreamEvent]:
        """Stream one answer, complete only with `Finish`. Cancelling the consuming task closes the socket."""
        ...

    async def close(self) -> None:
        """Close the SDK's client."""
        ...


def without(secret: str | None, text: str) -> str:
    """Return `text` without the key, which servers may repeat in errors."""
    return text.replace(secret, "***") if secret and len(secret) >= SHORTEST_KEY else text


class UnusableError(Exception):
    """A provider cannot be used with its settings; the message says why."""


class Unusable:
    """A provider that cannot be used with its settings: each request fails with the reason."""

    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self._reason = reason

    def stream(self, request: ports.Request) -> AsyncGenerator[StreamEvent]:  # noqa: ARG002 - a `Provider` has it
        """Raise FatalError."""
        raise FatalError(f"the provider cannot be used: {self._reason}")

    async def close(self) -> None:
        """Close nothing."""

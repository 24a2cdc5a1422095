"""The interface of a provider: it streams one answer as our own events, or raises one of our own errors.

    ProviderError
    ├── RetryableError        the same request may work later (429, 5xx, a cut connection)
    ├── RejectedError         this answer is none; another may be (malformed call, cut by a filter, in circles)
    └── FatalError            asking again cannot help (key, model, request, blocked prompt)
        └── ContextOverflowError  the request is larger than the model takes

SDK retries are off, everywhere: there is one retry policy, `llm.model`'s, and the transcript shows it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tarsy.resources import chains
from tarsy.transcript import messages, ports

SHORTEST_KEY = 8
"""Characters from which a key is looked for in what is told."""


class ProviderError(Exception):
    """A request brought no answer; `code` is what the provider calls that: an HTTP status or a word, or ""."""

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class RetryableError(ProviderError):
    """The same request may work later; `after` is how many seconds the provider asks us to wait, if it does."""

    def __init__(self, text: str, *, after: float | None = None, code: str = "") -> None:
        super().__init__(text, code=code)
        self.after = after


class RejectedError(ProviderError):
    """The answer is unusable; another request may bring a usable one."""


class FatalError(ProviderError):
    """Asking again cannot help."""


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
    """A piece of the thoughts that the provider shows."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call: the tool's name as the request had it, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CodeExecution:
    """Code that the provider ran for the model, and what it printed."""

    code: str
    output: str
    language: str = ""
    outcome: str = ""
    """The provider's name for the outcome."""


@dataclass(frozen=True)
class Source:
    """Where something was found."""

    title: str
    url: str
    problem: str = ""
    """Why it was not read, in the provider's word; "" where it was."""


@dataclass(frozen=True)
class Grounding:
    """The web pages that the model read, by a tool of its provider."""

    tool: chains.NativeTool
    sources: Sequence[Source]
    queries: Sequence[str] = ()


@dataclass(frozen=True)
class Usage:
    """Token counts so far; the last one counts."""

    usage: messages.Usage


@dataclass(frozen=True)
class Finish:
    """The answer is whole; `state` is what the provider wants back with it, as JSON."""

    state: Any


StreamEvent: TypeAlias = Text | Thinking | Call | CodeExecution | Grounding | Usage | Finish


class Provider(Protocol):
    """One provider of the platform file."""

    model: str

    def stream(self, request: ports.Request) -> AsyncGenerator[StreamEvent]:
        """Stream one answer; it is whole only with `Finish`. Cancelling the consuming task closes the socket."""
        ...

    async def close(self) -> None:
        """Close the SDK's client."""
        ...


def without(secret: str | None, text: str) -> str:
    """`text` without the key, which others may repeat; what is too short for one stands in many words."""
    return text.replace(secret, "***") if secret and len(secret) >= SHORTEST_KEY else text


class UnusableError(Exception):
    """A provider cannot be used as it is configured; the message says why."""


class Unusable:
    """A provider that cannot be used as it is configured: every request fails with why."""

    def __init__(self, model: str, why: str) -> None:
        self.model = model
        self._why = why

    def stream(self, request: ports.Request) -> AsyncGenerator[StreamEvent]:  # noqa: ARG002 - `Provider`'s
        """Refuse, without a stream."""
        raise FatalError(f"the provider cannot be used: {self._why}")

    async def close(self) -> None:
        """Close nothing."""

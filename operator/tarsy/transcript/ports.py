"""All that engine and agent know of the world: models, tools and the journal. No SDK, no database, no cluster.

`process` builds the real ones into a `Runtime`; `transcript.memory` has fakes that pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias

from tarsy.config.model import platforms
from tarsy.masking import known_secrets
from tarsy.resources import chains
from tarsy.transcript import entries, messages, record


class LeaseLostError(Exception):
    """Another worker owns the investigation now: nothing more may be sent or written."""


class ModelError(Exception):
    """A model call brought no usable answer.

    `kind` as in `messages.Failure`; `call` is what it cost.
    """

    def __init__(self, text: str, *, kind: messages.FailureKind, call: entries.ModelCall, code: str = "") -> None:
        super().__init__(text)
        self.failure = messages.Failure(kind=kind, text=text, code=code)
        self.call = call


class RunbookError(Exception):
    """A runbook cannot be had; the message says why, and nothing that is secret."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a model: the whole conversation, and the tools that it may call."""

    tools: tuple[messages.ToolSpec, ...]
    messages: tuple[messages.Message, ...]
    native_tools: tuple[chains.NativeTool, ...] = ()
    """Tools of the provider's own that it may use."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a model. Its calls carry no ids yet: the commit assigns them."""

    message: messages.Message
    call: entries.ModelCall


class Stream(Protocol):
    """An answer as it arrives, and the messages of tools at work for it, for viewers.

    Nothing in it counts, and its producers never wait for it.
    """

    def text(self, piece: str) -> None:
        """The answer goes on with `piece`."""
        ...

    def thinking(self, piece: str) -> None:
        """The thoughts go on with `piece`."""
        ...

    def again(self) -> None:
        """Discard the text so far: the model is asked again."""
        ...

    def tool(self, call: str, piece: str) -> None:
        """Add `piece` to the messages of the tool during the call of that id."""
        ...


class _NullStream:
    def text(self, piece: str) -> None:
        """Forget it."""

    def thinking(self, piece: str) -> None:
        """Forget it."""

    def again(self) -> None:
        """There is nothing to forget."""

    def tool(self, call: str, piece: str) -> None:
        """Forget it."""


NULL_STREAM: Stream = _NullStream()
"""A stream without a viewer."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A request of a model call failed, and is sent again."""

    attempt: int
    """The number of the failed request within its call, from 1."""
    failed: entries.Attempt
    model: str
    seconds: float
    """The wait until it is sent again."""


async def _untold(_: Retry) -> None:
    """Ignore a notice."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The execution on whose behalf something is sent."""

    execution: str
    """Its id."""
    investigation: str = ""
    """That of its investigation; "" is none, by which no fingerprints are made."""
    ensure_lease: Callable[[], Awaitable[None]]
    """See `Journal.ensure_lease`. It is awaited last before each sending, after every other wait."""
    pause_time: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered for as long as a model waits for the calls of others to end: that is no time of the execution's."""
    has_fallback: bool = False
    """Whether another provider is asked where this one gives no answer: it is then tried less often."""
    may_retry: Callable[[], bool] = lambda: True
    """Asked before each repeated request: whether the investigation may have one more; that one is counted then."""
    on_retry: Callable[[Retry], Awaitable[None]] = _untold
    """Told of a repeated request before the wait for it, at most once in ten seconds of a call."""
    only_reads: bool = False
    """Whether a tool is called as one that may be called again: one that is none any more is not called then."""
    stream: Stream = NULL_STREAM
    """Where an answer is told as it comes in, and what tools say while they are at work."""


class Model(Protocol):
    """One provider with its limits and retries inside."""

    async def ask(self, request: Request, scope: Scope) -> Answer:
        """Ask once; a ModelError says why there is no answer. Cancelling the task closes the socket."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """The result of a tool call: its text, and whether it is an error."""

    text: str
    """Masked, and whole, up to 8 Mi characters: how much of it is shown is for who asked."""
    failed: bool = False
    length: int | None = None
    """The characters that it had, where `text` lacks some for which there was no time."""
    away: bool = False
    """Whether the call failed because its MCP server could not be reached."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A request as a throttle has counted it; given back to it once the request's tokens are known."""

    provider: str
    tokens: int
    """The estimate."""
    second: int = 0
    """When, by the throttle's clock."""
    at: float = 0.0
    """When, in this process's monotonic seconds."""


class Throttle(Protocol):
    """How fast providers may be asked, over all processes together."""

    async def take(self, provider: str, tokens: int) -> Reservation:
        """Wait until `provider` may be asked with so many tokens, by estimate; it is counted then, asked or not."""
        ...

    def correct(self, taken: Reservation, tokens: int) -> None:
        """Count so many tokens for a request instead of the estimate, from the next one that is taken on."""
        ...


ToolPredicate: TypeAlias = Callable[[str], bool]
"""Whether an execution gets the tool of a name (`server.tool`)."""


class Toolbox(Protocol):
    """The tools of one execution: opened once, by its own task and within its time."""

    async def __aenter__(self) -> Self:
        """Open it; what cannot be reached is a problem of its, not an error."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        ...

    @property
    def specs(self) -> Sequence[messages.ToolSpec]:
        """The tools that there are, in a stable order."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """The things that are missing, a sentence each: unreachable servers, unusable tools.

        The text behind a sentence's first colon is from others: it is for people, and not for prompts.
        """
        ...

    @property
    def away(self) -> Sequence[str]:
        """The names of its MCP servers that cannot be reached now."""
        ...

    async def call(self, call: messages.ToolCall, scope: Scope) -> ToolOutput:
        """Call a tool. It answers, it does not raise: what goes wrong is the output's text."""
        ...


class Journal(Protocol):
    """Where the facts of one investigation are kept, and the fence around them.

    Agents side by side share it: their commits take turns (`commit_queue.CommitQueue`).
    """

    @property
    def record(self) -> record.Record:
        """The record of everything that is committed; every commit adds to it."""
        ...

    def clock(self) -> float:
        """Seconds for which the run has been running, across takeovers; suspension stops them."""
        ...

    def suspended(self) -> bool:
        """Whether the run is to stand still: asked before each step, because what is paid for is finished."""
        ...

    async def commit(self, *added: entries.Entry) -> None:
        """Keep some facts that become true together, all or none.

        A LeaseLostError says that the investigation is another worker's. A commit whose caller is cancelled is kept
        all the same, by `settle` at the latest.
        """
        ...

    async def whole(self, execution: str, call_id: str) -> str | None:
        """All of a result that was committed with a part of it (`entries.ToolRun.whole`); None of any other."""
        ...

    async def settle(self) -> None:
        """Bring commits to their end that were cancelled under way: afterwards the record holds them."""
        ...

    async def ensure_lease(self) -> None:
        """Return while the lease is certain, wait while it is in doubt; LeaseLostError when it is gone."""
        ...


@dataclass(frozen=True, kw_only=True)
class StreamedCall:
    """One of the model calls of an execution, for which an answer is streamed."""

    investigation: str
    run: int
    stage: str
    """"" where its execution is of no stage."""
    execution: str
    number: int
    """Which of the execution's model calls, from 0."""
    result: str = ""
    """The call whose result is summed up before it, where it is that which is streamed."""
    kind: str
    strategy: str
    """The strategy of its execution; with the kind it decides what its text is to people."""


async def _no_runbook(_: str) -> str:
    raise RunbookError("runbooks are not fetched here")


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts that the engine works with, all of one platform file.

    Files change. So an execution or a run enters the runtime that is `in_force` at its start, and works with that one
    to the end.
    """

    platform: platforms.Platform
    model: Callable[[str], Model]
    """The model of a provider of the platform file."""
    toolbox: Callable[[Sequence[str], ToolPredicate], Toolbox]
    """The tools of some MCP servers of the platform file, those of the names that are admitted, to be opened."""
    open_stream: Callable[[StreamedCall], AbstractContextManager[Stream]] = lambda _: nullcontext(NULL_STREAM)
    """Entered for as long as a model is asked for a turn and the answer is not committed, and again for its calls."""
    runbook: Callable[[str], Awaitable[str]] = _no_runbook
    """The text of the runbook at an address, masked; a RunbookError says why not. Cancelling it ends the fetch."""
    is_usable: Callable[[str], bool] = lambda _: True
    """Whether a provider of the platform file can be asked, as far as that is known beforehand."""
    secrets: known_secrets.KnownSecrets = field(default_factory=known_secrets.KnownSecrets)
    """The known secrets, which no stored text has."""
    newest: Callable[[], AbstractContextManager[Runtime]] | None = None
    """Gives the one of the newest file, and keeps its parts for as long as it is entered; None: the file never changes.
    """

    def in_force(self) -> AbstractContextManager[Runtime]:
        """The one that is in force now; its parts are there for as long as it is entered."""
        return nullcontext(self) if self.newest is None else self.newest()

"""The ports of engine and agent: models, tools and the journal, without SDK, database and cluster.

`process` builds the real ones into a `Runtime`; `transcript.memory` has fakes that pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, Self, TypeAlias

from tarsy.config.model import budgets, platforms, reach
from tarsy.masking import known_secrets
from tarsy.resources import chains
from tarsy.transcript import entries, messages, record


class LeaseLostError(Exception):
    """Another worker owns the investigation: nothing more may be sent or written."""


class ModelError(Exception):
    """A model call gave no usable answer.

    `kind` is as in `messages.Failure`; `call` is its account.
    """

    def __init__(self, text: str, *, kind: messages.FailureKind, call: entries.ModelCall, code: str = "") -> None:
        super().__init__(text)
        self.failure = messages.Failure(kind=kind, text=text, code=code)
        self.call = call


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Something outside that an execution waits for."""

    reason: str
    """CamelCase, for conditions."""
    message: str
    """A sentence for people, without secrets, such as `the budget 'day' of namespace shop is spent`."""
    until: datetime
    """The time at which the execution tries again."""


class MustWaitError(Exception):
    """A model call cannot be made now, and nothing was sent: its execution waits."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.message)
        self.wait = wait


class RunbookError(Exception):
    """A runbook cannot be fetched. The message says why, without secrets."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a model: the whole conversation, and the tools that it may call."""

    tools: tuple[messages.ToolSpec, ...]
    messages: tuple[messages.Message, ...]
    native_tools: tuple[chains.NativeTool, ...] = ()
    """The provider's own tools that it may use."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a model. Its calls have no ids yet: the loop assigns them."""

    message: messages.Message
    call: entries.ModelCall


class Stream(Protocol):
    """The stream of an answer, and of the messages of tools during its calls, for viewers.

    It is never stored, and its producers never wait for it.
    """

    def text(self, piece: str) -> None:
        """Add a piece of the answer's text."""
        ...

    def thinking(self, piece: str) -> None:
        """Add a piece of the thoughts."""
        ...

    def again(self) -> None:
        """Discard the text so far: the request is sent again."""
        ...

    def tool(self, call: str, piece: str) -> None:
        """Add a piece to the messages of the tool during the call with this id."""
        ...


class _NullStream:
    def text(self, piece: str) -> None:
        """Do nothing."""

    def thinking(self, piece: str) -> None:
        """Do nothing."""

    def again(self) -> None:
        """Do nothing."""

    def tool(self, call: str, piece: str) -> None:
        """Do nothing."""


NULL_STREAM: Stream = _NullStream()
"""A stream without a viewer."""


class BudgetError(Exception):
    """A budget refuses a request; `code` is one of `messages.BUDGET_CODES`."""

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Charged:
    """The reservation of a request in the ledgers of budgets."""

    request: str = ""
    """Its id, by which the commit of the answer settles it; "" if it is charged to no budget."""
    exceeded: Collection[str] = ()
    """The names of the budgets that refuse the request; then nothing is reserved."""
    too_small: Collection[str] = ()
    """Those of them that have no room for the request from the beginning of a period."""
    may_fit_later: bool = False
    """Whether a refused request may fit once others that are under way have settled."""
    at: datetime | None = None
    """The time of the refusal."""


class Reserve(Protocol):
    """Reserves a request in the budgets."""

    async def __call__(self, provider: str, request: Request, /, *, ended: Sequence[str], may_wait: bool) -> str | None:
        """Return the id of the reservation; "" if no budget covers the request. Raises BudgetError and MustWaitError.

        `ended` are the reservations of earlier requests of the same call. With `may_wait`, return None if requests
        under way may leave room for this one, so that the caller asks again later.
        """
        ...


async def _uncharged(*_: object, **_options: object) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A failed request of a model call that is sent again."""

    attempt: int
    """The number of the failed request within its call, from 1."""
    failed: entries.Attempt
    model: str
    seconds: float
    """The wait until it is sent again."""


async def _ignore(_: Retry) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The execution that a request or a tool call belongs to, and its callbacks."""

    execution: str
    """The id of the execution."""
    investigation: str = ""
    """The id of its investigation; "" if there is none, and masking makes no fingerprints."""
    chain: str = ""
    """The name of its chain."""
    depth: int = 0
    """The number of investigations in a row that led to this one."""
    ensure_lease: Callable[[], Awaitable[None]]
    """See `Journal.ensure_lease`. It is awaited just before each request, after all other waits."""
    pause_time: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while a call waits for a slot of its provider: that time does not count as the execution's."""
    has_fallback: bool = False
    """Whether there is a fallback provider: then requests to this one are repeated less often."""
    may_retry: Callable[[], bool] = lambda: True
    """Called before each repeated request: counts it, and returns whether the run may have it."""
    on_retry: Callable[[Retry], Awaitable[None]] = _ignore
    """Called before the wait for a repeated request, at most every ten seconds of a call."""
    only_reads: bool = False
    """Whether the tool was read-only or idempotent at the start: if it no longer is, it is not called."""
    stream: Stream = NULL_STREAM
    """The stream of the answer, and of tools' messages."""
    reserve: Reserve = _uncharged
    """Awaited for each request, once it has a slot of its provider."""


class Model(Protocol):
    """One provider with its limits and retries inside."""

    async def ask(self, request: Request, scope: Scope) -> Answer:
        """Return one answer; raises ModelError if there is none, and MustWaitError if it may not be asked now.

        Cancelling the task closes the socket.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """The result of a tool call: its text, and whether it is an error."""

    text: str
    """Masked and whole, up to 8 Mi characters; the loop cuts it for its model."""
    failed: bool = False
    length: int | None = None
    """The length of the whole result, if a part was not masked in time and `text` lacks it."""
    away: bool = False
    """Whether the call failed because its MCP server could not be reached."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A request in a throttle's count, to be corrected once its tokens are known."""

    provider: str
    tokens: int
    """The estimate."""
    second: int = 0
    """The time by the throttle's clock."""
    at: float = 0.0
    """The time by this process's monotonic clock, in seconds."""


class Throttle(Protocol):
    """The rate limits of providers, over all processes together."""

    async def take(self, provider: str, tokens: int) -> Reservation:
        """Wait until `provider` may get a request of `tokens`, by estimate, and count it."""
        ...

    def correct(self, taken: Reservation, tokens: int) -> None:
        """Count `tokens` for a request instead of the estimate."""
        ...


ToolPredicate: TypeAlias = Callable[[str], bool]
"""Whether an execution gets the tool of a name (`server.tool`)."""


class Toolbox(Protocol):
    """The tools of one execution, opened once by its task, within its time."""

    async def __aenter__(self) -> Self:
        """Open it; a server that cannot be reached is one of its `problems`, not an error."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        ...

    @property
    def specs(self) -> Sequence[messages.ToolSpec]:
        """The available tools, in a stable order."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """The problems, a sentence each: unreachable servers, unusable tools.

        The text after a sentence's first colon comes from outside: it is for people, not for prompts.
        """
        ...

    @property
    def away(self) -> Sequence[str]:
        """The names of its MCP servers that cannot be reached now."""
        ...

    async def call(self, call: messages.ToolCall, scope: Scope) -> ToolOutput:
        """Call a tool. An error is the text of the output; nothing is raised."""
        ...


@dataclass(frozen=True, kw_only=True)
class JoinedAlert:
    """An alert that has joined the investigation, masked and cut."""

    alert_type: str
    severity: str
    labels: Mapping[str, str]
    """Those that identify it."""


@dataclass(frozen=True, kw_only=True)
class JoinedAlerts:
    """Alerts that have joined the investigation, numbered from 1."""

    number: int
    """The number of the last of them."""
    total: int
    types: Mapping[str, int]
    """The most frequent types, with their numbers of alerts."""
    named: Sequence[JoinedAlert]
    """The first of them."""


@dataclass(frozen=True, kw_only=True)
class Former:
    """The last full investigation of the same alert, which has ended."""

    name: str
    ended_at: datetime
    is_disputed: bool
    """Whether a person said that its result is wrong, or right only in part."""
    record: record.Record
    whole: Callable[[str, str], Awaitable[str | None]]
    """Returns the whole result of a call of which the log has a part, by execution and call; None if it is deleted."""


class Journal(Protocol):
    """The log of one investigation, and its fence.

    Agents side by side share it: their commits are queued (`commit_queue.CommitQueue`).
    """

    @property
    def record(self) -> record.Record:
        """The record of all that is committed; each commit adds to it."""
        ...

    def clock(self) -> float:
        """Return the seconds for which the run has been running, across takeovers, without suspensions."""
        ...

    def suspended(self) -> bool:
        """Return whether the run is suspended. It is checked before each step: a started step is finished."""
        ...

    @property
    def joined(self) -> int:
        """The number of the last alert that had joined the investigation at the last commit; 0 if none had."""
        ...

    async def joined_alerts(self, after: int) -> JoinedAlerts | None:
        """Return the alerts that have joined with a number above `after`; None if there are none."""
        ...

    async def former(self, within: int) -> Former | None:
        """Return the last full investigation of the same alert if it ended within that many seconds and is readable.

        One that ended with the result of another is not a full one.
        """
        ...

    @property
    def waits(self) -> dict[str, Wait]:
        """The things that executions wait for, by their ids: their loops have stopped.

        When no other execution works, the claim ends, and the run is parked; the next claim starts them again.
        """
        ...

    async def commit(self, *added: entries.Entry) -> None:
        """Commit entries, all or none.

        Raises LeaseLostError if another worker owns the investigation. A commit whose caller is cancelled is written
        all the same, by `settle` at the latest.
        """
        ...

    async def whole(self, execution: str, call_id: str) -> str | None:
        """Return the whole result of a call if the log has a part of it (`entries.ToolRun.whole`); else None."""
        ...

    async def settle(self) -> None:
        """Complete the commits of cancelled callers; afterwards the record has them."""
        ...

    async def ensure_lease(self) -> None:
        """Return once the lease is certain; raises LeaseLostError if it is lost."""
        ...

    async def reserve(self, charges: Sequence[budgets.Charge], *, ended: Sequence[str] = ()) -> Charged:
        """Reserve a request in all ledgers of its charges, or in none. The commit of its model call settles it.

        `ended` are the reservations of earlier requests of the same call, which leave no room.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StreamedCall:
    """The model call whose answer is streamed."""

    investigation: str
    run: int
    stage: str
    """"" if its execution belongs to no stage."""
    execution: str
    number: int
    """The call number, from 0."""
    result: str = ""
    """The tool call whose result is summarised before it, if the summary is streamed; else ""."""
    kind: str
    strategy: str
    """The strategy of its execution. With the kind it decides the types of events."""


async def _no_runbook(_: str) -> str:
    raise RunbookError("runbooks are not fetched here")


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The models, tools and settings of one platform file.

    Platform files change: an execution or a run enters the runtime that is `in_force` at its start, and keeps it to its
    end.
    """

    platform: platforms.Platform
    model: Callable[[str], Model]
    """Returns the model of a provider."""
    toolbox: Callable[[Sequence[str], ToolPredicate], Toolbox]
    """Returns a toolbox, not yet open, with the admitted tools of some MCP servers."""
    open_stream: Callable[[StreamedCall], AbstractContextManager[Stream]] = lambda _: nullcontext(NULL_STREAM)
    """Opens the stream of a model call until its answer is committed, and again for the tool calls of the answer."""
    runbook: Callable[[str], Awaitable[str]] = _no_runbook
    """Fetches the masked text of a runbook by its URL, or raises RunbookError."""
    is_usable: Callable[[str], bool] = lambda _: True
    """Whether a provider can be used, as far as known without a request."""
    secrets: known_secrets.KnownSecrets = field(default_factory=known_secrets.KnownSecrets)
    """The known secrets, which no stored text has."""
    newest: Callable[[], AbstractContextManager[Runtime]] | None = None
    """Returns the runtime of the newest file, which stays usable while entered; None if the file never changes."""

    def in_force(self) -> AbstractContextManager[Runtime]:
        """Return the runtime in force, which stays usable while entered."""
        return nullcontext(self) if self.newest is None else self.newest()

    def for_namespaces(self, namespaces: Collection[str], *, own: str) -> Runtime:
        """Return the runtime for what all of these namespaces may use, now and by newer files; see `reach`."""

        @contextmanager
        def newest() -> Iterator[Runtime]:
            with self.in_force() as now:
                yield now.for_namespaces(namespaces, own=own)

        return replace(
            self,
            platform=reach.platform_for(self.platform, namespaces, own=own),
            newest=None if self.newest is None else newest,
        )

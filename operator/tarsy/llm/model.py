"""A provider with its limits and retries: what `transcript.ports.Model` promises.

Retried is what costs nothing twice that was not lost anyway: refusals (429, 5xx) and broken streams, with exponential
back-off and jitter, on top of the time that the provider names, for so many attempts that an outage of half a minute
does not cost a stage, and within the iteration's time; fewer where another provider is left to ask. An answer with
neither words nor calls is asked for again, too. Each failed attempt is one that the transcript shows, and each repeat
counts against what the investigation may repeat in all.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from tarsy import slots
from tarsy.config.model import platforms, providers
from tarsy.llm import masked, native, provider, repetition
from tarsy.masking import known_secrets
from tarsy.telemetry import standing
from tarsy.transcript import entries, messages, ports, token_estimate

ATTEMPTS = 8
ATTEMPTS_BEFORE_FALLBACK = 4
"""Where another provider is left to ask."""
EMPTY_ANSWERS = 4
EMPTY_WAIT = 3.0  # seconds
MOST_TOKENS = 10**9
"""The limit for one request; a server that counts more has counted wrong."""
FIRST_BACKOFF = 0.5  # seconds; doubled with each attempt
LONGEST_BACKOFF = 20.0  # seconds
RETRIES_TOLD = 10.0
"""Seconds between two retries of one call that are told."""


@dataclass
class _Answer:
    """An answer as it comes in."""

    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[messages.ToolCall] = field(default_factory=list)
    native: list[messages.NativeResult] = field(default_factory=list)
    usage: messages.Usage = field(default_factory=messages.Usage)
    finish: provider.Finish | None = None
    size: int = 0
    text_watch: repetition.Watch = field(default_factory=repetition.Watch)
    thinking_watch: repetition.Watch = field(default_factory=repetition.Watch)

    def add(self, event: provider.StreamEvent) -> None:
        """Take what came next; a RejectedError where it shows that the model goes round in circles."""
        match event:
            case provider.Text(text):
                self.text.append(text)
                self.size += len(text)
                _refuse_circles(self.text_watch.add(text), of="answer")
            case provider.Thinking(text):
                self.thinking.append(text)
                self.size += len(text)
                _refuse_circles(self.thinking_watch.add(text), of="thoughts")
            case provider.Call(name, arguments):
                name, arguments = messages.storable(name), messages.storable(arguments)
                self.calls.append(messages.ToolCall(id="", name=name, arguments=arguments))
                self.size += len(name) + len(arguments)
            case provider.CodeExecution() | provider.Grounding():
                self.native.append(native.result(event))
                self.size += native.size(self.native[-1])
            case provider.Usage(usage):
                self.usage = _plausible(usage)
            case provider.Finish():
                self.finish = event


@dataclass
class _TimeLeft:
    """A limit of time that is used up piece by piece."""

    seconds: float

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Use it up; a TimeoutError when nothing is left."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.seconds):
                yield
        finally:
            self.seconds -= time.monotonic() - started


_NOTHING_YET = provider.Text("")
"""A sign of life before an answer begins: models may think for long without visible output."""


class _EmptyError(provider.RetryableError):
    """An answer with neither words nor calls."""

    def __init__(self) -> None:
        super().__init__("an empty answer", code=messages.EMPTY)


@dataclass(kw_only=True)
class _Tries:
    """The requests of one call."""

    name: str
    """The provider's."""
    model: str
    price: providers.Price | None
    limits: platforms.Limits
    scope: ports.Scope
    time_left: _TimeLeft
    started: float = field(default_factory=lambda: time.monotonic())
    attempts: list[entries.Attempt] = field(default_factory=list)
    retries: int = 0
    _told: float | None = None
    """The monotonic time of the last retry that was told."""

    def call(self, usage: messages.Usage) -> entries.ModelCall:
        """The call, of whose last request that is the usage."""
        spent = (usage, *(attempt.usage for attempt in self.attempts))
        return entries.ModelCall(
            provider=self.name,
            model=self.model,
            seconds=time.monotonic() - self.started,
            usage=usage,
            attempts=tuple(self.attempts),
            retries=self.retries,
            cost=None if self.price is None else sum(_cost(tokens_used, self.price) for tokens_used in spent),
        )

    def failed(
        self, text: str, *, kind: messages.FailureKind, code: str = "", usage: messages.Usage | None = None
    ) -> ports.ModelError:
        """The end of the call; `usage` is of a last request that is none of its attempts."""
        return ports.ModelError(text, kind=kind, code=_storable(code), call=self.call(usage or messages.Usage()))

    def again(self, error: provider.RetryableError, usage: messages.Usage) -> float:
        """Take note of what failed, and return in how many seconds it is asked again; a ModelError where it is not."""
        last = _message(error)
        self.attempts.append(entries.Attempt(error=last, usage=usage, provider=self.name, code=_storable(error.code)))
        alike = sum((attempt.code == messages.EMPTY) == (error.code == messages.EMPTY) for attempt in self.attempts)
        if isinstance(error, _EmptyError):
            if alike == EMPTY_ANSWERS:
                raise self.failed(f"{self.name} gave {alike} empty answers", kind="fatal", code=error.code) from error
            wait = EMPTY_WAIT
        else:
            if alike == (ATTEMPTS_BEFORE_FALLBACK if self.scope.has_fallback else ATTEMPTS):
                text = f"{self.name} gave no answer in {len(self.attempts)} attempts; the last one: {last}"
                raise self.failed(text, kind="fatal", code=error.code) from error
            wait = (error.after or 0.0) + _backoff(alike)
        if wait >= self.time_left.seconds:
            seconds = self.limits.iteration.total_seconds()
            no_time = f"no time to ask again in {wait:.3g} s: an iteration has {seconds:g} s"
            text = f"{self.name} did not answer, and there is {no_time}{_tried(self.attempts)}"
            raise self.failed(text, kind="timeout", code=error.code) from error
        if not self.scope.may_retry():
            used = f"the {self.limits.retries} retries of an investigation or a question (limits.retries) are used up"
            text = f"{self.name} did not answer, and {used}; the last error: {last}"
            raise self.failed(text, kind="fatal", code=messages.RETRIES) from error
        self.retries += 1
        return wait

    async def tell(self, wait: float) -> None:
        """Tell that the request is sent again in `wait` seconds, unless a retry was told just before."""
        now = time.monotonic()
        if self._told is not None and now - self._told < RETRIES_TOLD:
            return
        self._told = now
        retry = ports.Retry(attempt=len(self.attempts), failed=self.attempts[-1], model=self.model, seconds=wait)
        await self.scope.on_retry(retry)


class Course(standing.Standing):
    """How the calls to a provider go."""

    failure: messages.Failure | None = None
    """Why the last call failed, if it did."""


class LimitedModel:
    """One provider of the platform file, within its limits."""

    def __init__(
        self,
        name: str,
        source: provider.Provider,
        *,
        limits: platforms.Limits,
        price: providers.Price | None = None,
        throttle: ports.Throttle | None = None,
        before: LimitedModel | None = None,
    ) -> None:
        """`name` is the provider's in the platform file; without a `throttle` it may be asked as fast as it answers.

        `before` is that of an earlier file: calls by both are counted together, and go the same way where both have
        the same source.
        """
        self._name = name
        self._source = source
        self._limits = limits
        self._price = price
        self._throttle = throttle
        self.slots: slots.Slots = before.slots if before else slots.Slots(limits.provider_calls)
        """One for each call at once."""
        self.standing: Course = before.standing if before and before._source is source else Course("usable")
        """Answering or failing, by the last call to it that came to an end; usable before the first."""

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        """Ask, and ask again where that may help; a ModelError says why there is no answer."""
        try:
            answer = await self._ask(request, scope)
        except ports.ModelError as error:
            self.standing.failure = error.failure
            self.standing.be("failing")
            raise
        self.standing.failure = None
        self.standing.be("answering")
        return answer

    async def _ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        """Do the work of `ask`.

        The iteration's limit counts from the first request: waits for a slot, the throttle or the lease do not count as
        silence.
        """
        limit = self._limits.iteration.total_seconds()
        tries = _Tries(
            name=self._name,
            model=self._source.model,
            price=self._price,
            limits=self._limits,
            scope=scope,
            time_left=_TimeLeft(limit),
        )
        while True:
            answer = _Answer()
            try:
                async with self._turn(request, scope, answer), tries.time_left.running():
                    await self._receive(request, answer, scope.stream)
                message = self._answered(answer)
                if not (message.calls or message.native or message.text.strip()):
                    raise _EmptyError
            except TimeoutError as error:
                text = f"{self._name} did not answer within {limit:g} s{_tried(tries.attempts)}"
                raise tries.failed(text, kind="timeout", usage=answer.usage) from error
            except provider.RetryableError as error:
                wait = tries.again(error, answer.usage)
                scope.stream.again()
                await tries.tell(wait)
                await asyncio.sleep(wait)
                tries.time_left.seconds -= wait
            except provider.ProviderError as error:
                kind: messages.FailureKind = "rejected" if isinstance(error, provider.RejectedError) else "fatal"
                text = f"{self._name}: {_message(error)}"
                raise tries.failed(text, kind=kind, code=error.code, usage=answer.usage) from error
            else:
                return ports.Answer(message=message, call=tries.call(answer.usage))

    @asynccontextmanager
    async def _turn(self, request: ports.Request, scope: ports.Scope, answer: _Answer) -> AsyncIterator[None]:
        """Hold a slot, with leave of the throttle and a certain lease.

        Slots go to requests in their order of arrival, whichever investigation they serve. A request that waits for the
        throttle keeps its slot: every other one would have to wait, too.
        """
        with scope.pause_time():
            await self.slots.acquire()
        try:
            async with self._throttled(request, scope, answer):
                await scope.ensure_lease()
                yield
        finally:
            self.slots.release()

    @asynccontextmanager
    async def _throttled(self, request: ports.Request, scope: ports.Scope, answer: _Answer) -> AsyncIterator[None]:
        """The throttle's leave; it is told afterwards what the request had really."""
        if self._throttle is None:
            yield
            return
        with scope.pause_time():
            taken = await self._throttle.take(self._name, token_estimate.tokens(request))
        try:
            yield
        finally:
            used = answer.usage
            if counted := used.total_tokens or used.input_tokens + used.output_tokens + used.thinking_tokens:
                self._throttle.correct(taken, counted)

    async def _receive(self, request: ports.Request, answer: _Answer, stream: ports.Stream) -> None:
        silence = self._limits.first_byte
        async with aclosing(self._source.stream(request)) as events:
            while (event := await _next(events, within=silence.total_seconds())) is not None:
                answer.add(event)
                match event:
                    case provider.Text(text):
                        stream.text(text)
                    case provider.Thinking(text):
                        stream.thinking(text)
                if answer.size > self._limits.answer:
                    raise provider.RejectedError(f"the answer is longer than {self._limits.answer} characters")
                if len(answer.calls) > self._limits.answer_calls:
                    raise provider.RejectedError(
                        f"the answer asks for more than {self._limits.answer_calls} tool calls"
                    )
                if event != _NOTHING_YET:
                    silence = self._limits.idle
        if answer.finish is None:
            raise provider.RetryableError("the answer ended before it was whole")
        if not messages.is_plain_json(answer.finish.state):  # what cannot be stored could not be sent back
            raise provider.RejectedError("the answer holds what JSON cannot, or is nested too deep")

    def _answered(self, answer: _Answer) -> messages.Message:
        state = answer.finish and answer.finish.state
        answer_message = messages.Message(
            role="assistant",
            text=messages.storable("".join(answer.text)),
            thinking=messages.storable("".join(answer.thinking)),
            calls=tuple(answer.calls),
            native=tuple(answer.native),
            provider_state=messages.ProviderState(provider=self._name, data=state) if state else None,
        )
        return masked.message(answer_message)


async def _next(events: AsyncIterator[provider.StreamEvent], *, within: float) -> provider.StreamEvent | None:
    try:
        async with asyncio.timeout(within):
            return await anext(events, None)
    except TimeoutError as error:
        raise provider.RetryableError(f"the provider was silent for {within:g} s") from error


def _refuse_circles(length: int, *, of: str) -> None:
    """Refuse a stream that has come to repeat a passage of that `length`; 0 is none. The passage is not quoted."""
    if length:
        what = f"the last {repetition.TAIL} characters of its {of} are one passage of {length} over and over"
        raise provider.RejectedError(f"the model repeated itself: {what}")


def _plausible(usage: messages.Usage) -> messages.Usage:
    """Counts that can be counted with, whatever a server says."""

    def bounded(count: int) -> int:
        return min(max(count, 0), MOST_TOKENS)

    return messages.Usage(
        input_tokens=bounded(usage.input_tokens),
        output_tokens=bounded(usage.output_tokens),
        thinking_tokens=bounded(usage.thinking_tokens),
        total_tokens=bounded(usage.total_tokens),
    )


def _message(error: provider.ProviderError) -> str:
    return messages.storable(known_secrets.KNOWN.text(str(error))[:2000])


def _storable(code: str) -> str:
    return messages.storable(code[:100])


def _cost(usage: messages.Usage, price: providers.Price) -> float:
    """Return the cost of a request, by the price of a million tokens."""
    output = usage.output_tokens + usage.thinking_tokens
    return (usage.input_tokens * price.input + output * price.output) / 1e6


def _tried(attempts: Sequence[entries.Attempt]) -> str:
    """How often it was tried before, and what came of the last time; "" if it was not."""
    return f" (failed attempts: {len(attempts)}; the last one: {attempts[-1].error})" if attempts else ""


def _backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubled each time, with jitter so that a crowd does not return as one."""
    longest: float = min(FIRST_BACKOFF * 2 ** (attempt - 1), LONGEST_BACKOFF)
    return longest * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

"""A provider with limits and retries: the implementation of `transcript.ports.Model`.

A request is retried after a refusal (429, 5xx), a broken stream or an empty answer: with exponential back-off and
jitter on top of the wait that the provider names, often enough to outlast an outage of half a minute, and within the
time of the iteration. There are fewer retries if another provider is left to ask. The transcript shows each failed
attempt, and each retry counts against the retries of the whole investigation.
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
from tarsy.llm import answers, provider
from tarsy.masking import known_secrets
from tarsy.telemetry import component_states, instruments, metrics
from tarsy.transcript import entries, messages, ports, token_estimate

ATTEMPTS = 8
ATTEMPTS_BEFORE_FALLBACK = 4
"""Attempts if another provider is left to ask."""
EMPTY_ANSWERS = 4
EMPTY_WAIT = 3.0  # seconds
FIRST_BACKOFF = 0.5  # seconds; doubled with each attempt
LONGEST_BACKOFF = 20.0  # seconds
ROOM_SECONDS = 60.0
"""The longest wait of a request for room in a budget that requests under way may leave."""
ROOM_RETRY_SECONDS = 0.5
RETRIES_REPORTED = 10.0
"""Seconds between two reported retries of one call."""

_OWN_CODES = (messages.EMPTY, messages.CONTEXT_OVERFLOW)

_SIGN_OF_LIFE = provider.Text("")
"""An event without content before an answer begins: models may think for long without visible output."""


class _EmptyError(provider.RetryableError):
    """An answer with neither words nor calls."""

    def __init__(self) -> None:
        super().__init__("an empty answer", code=messages.EMPTY)


@dataclass(kw_only=True)
class _Attempts:
    """The requests of one model call."""

    name: str
    """The provider's name in the platform file."""
    model: str
    price: providers.Price | None
    limits: platforms.Limits
    secrets: known_secrets.KnownSecrets
    scope: ports.Scope
    seconds_left: float
    """The part of the iteration's time that is not used up."""
    started: float = field(default_factory=lambda: time.monotonic())
    failed: list[entries.Attempt] = field(default_factory=list)
    reserved: list[tuple[str, answers.Answer]] = field(default_factory=list)
    """The ids of the requests' reservations in budgets, each with the answer that has the request's count."""
    retries: int = 0
    _reported: float | None = None
    """The monotonic time of the last reported retry."""

    @asynccontextmanager
    async def timed(self) -> AsyncIterator[None]:
        """Use up the time that is left; raise TimeoutError at its end."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.seconds_left):
                yield
        finally:
            self.seconds_left -= time.monotonic() - started

    def call(self, answer: answers.Answer) -> entries.ModelCall:
        """Return the entry of the call; `answer` belongs to its last request."""
        usages = (answer.usage, *(attempt.usage for attempt in self.failed))
        cost = None
        if (price := self.price) is not None:  # of a million tokens
            cost = sum(
                tokens.input_tokens * price.input + (tokens.output_tokens + tokens.thinking_tokens) * price.output
                for tokens in usages
            )
            cost /= 1e6
        return entries.ModelCall(
            provider=self.name,
            model=self.model,
            seconds=time.monotonic() - self.started,
            usage=answer.usage,
            response_model=self.secrets.mask(answer.response.model),
            response_id=self.secrets.mask(answer.response.id),
            attempts=tuple(self.failed),
            retries=self.retries,
            cost=cost,
            settled=tuple(self._settlement(request, answer) for request, answer in self.reserved),
        )

    def _settlement(self, request: str, answer: answers.Answer) -> entries.Settlement:
        """Return the count of a request. Of an answer that was cut short, providers count only the beginning."""
        counted, usage = _counted(answer.usage), answer.usage
        cost = None
        if self.price is not None:
            output = usage.output_tokens + usage.thinking_tokens
            cost = self.price.cost(input_tokens=usage.input_tokens, output_tokens=output)
        is_whole = counted > 0 and answer.finish is not None
        return entries.Settlement(request=request, tokens=counted, cost=cost, is_whole=is_whole)

    def error(
        self, text: str, *, kind: messages.FailureKind, code: str = "", answer: answers.Answer | None = None
    ) -> ports.ModelError:
        """Return the error of the call; `answer` belongs to a last request that is not among the failed attempts."""
        return ports.ModelError(text, kind=kind, code=_storable(code), call=self.call(answer or answers.Answer()))

    def wait_after(self, error: provider.RetryableError, usage: messages.Usage) -> float:
        """Record a failed attempt; return the seconds until the retry, or raise ModelError if there is none."""
        last = _message(error, self.secrets)
        self.count_error(error)
        self.failed.append(entries.Attempt(error=last, usage=usage, provider=self.name, code=_storable(error.code)))
        alike = sum((attempt.code == messages.EMPTY) == (error.code == messages.EMPTY) for attempt in self.failed)
        if isinstance(error, _EmptyError):
            if alike == EMPTY_ANSWERS:
                raise self.error(f"{self.name} gave {alike} empty answers", kind="fatal", code=error.code) from error
            wait = EMPTY_WAIT
        else:
            if alike == (ATTEMPTS_BEFORE_FALLBACK if self.scope.has_fallback else ATTEMPTS):
                text = f"{self.name} gave no answer in {len(self.failed)} attempts; the last one: {last}"
                raise self.error(text, kind="fatal", code=error.code) from error
            backoff = min(FIRST_BACKOFF * 2 ** (alike - 1), LONGEST_BACKOFF)
            # Jitter, so that a crowd does not return at once.
            wait = (error.after or 0.0) + backoff * (0.5 + random.random() / 2)  # noqa: S311 - spreads load only
        if wait >= self.seconds_left:
            seconds = self.limits.iteration.total_seconds()
            no_time = f"no time to ask again in {wait:.3g} s: an iteration has {seconds:g} s"
            text = f"{self.name} did not answer, and there is {no_time}{_attempts_text(self.failed)}"
            raise self.error(text, kind="timeout", code=error.code) from error
        if not self.scope.may_retry():
            limit = f"the {self.limits.retries} retries of an investigation or a question (limits.retries) are used up"
            text = f"{self.name} did not answer, and {limit}; the last error: {last}"
            raise self.error(text, kind="fatal", code=messages.RETRIES) from error
        self.retries += 1
        metrics.MODEL_RETRIES.add(self.name, self.model)
        return wait

    def count_error(self, error: provider.ProviderError) -> None:
        """Count a failed request. Providers may send any text as a code, so few are counted by it."""
        is_status = len(error.code) == 3 and error.code.isascii() and error.code.isdecimal()
        code = error.code if is_status or error.code in _OWN_CODES else instruments.OTHER
        metrics.MODEL_ERRORS.add(self.name, self.model, code)

    async def report_retry(self, wait: float) -> None:
        """Report that the request is sent again in `wait` seconds, unless a retry was reported shortly before."""
        now = time.monotonic()
        if self._reported is None or now - self._reported >= RETRIES_REPORTED:
            self._reported = now
            retry = ports.Retry(attempt=len(self.failed), failed=self.failed[-1], model=self.model, seconds=wait)
            await self.scope.on_retry(retry)


class CallState(component_states.StateTracker):
    """The state of a provider: usable before the first call, then answering or failing as the last call ended."""

    failure: messages.Failure | None = None
    """The failure of the last call, if it failed."""


class LimitedModel:
    """One provider of the platform file, within its limits."""

    def __init__(
        self,
        name: str,
        source: provider.Provider,
        *,
        limits: platforms.Limits,
        secrets: known_secrets.KnownSecrets | None = None,
        price: providers.Price | None = None,
        throttle: ports.Throttle | None = None,
        before: LimitedModel | None = None,
    ) -> None:
        """`name` is the provider's in the platform file; without `throttle` there are no limits a minute.

        `before` is the model of an earlier file. Both share their slots, and with the same source their state.
        """
        self._name = name
        self._source = source
        self._limits = limits
        self._secrets = secrets or known_secrets.KnownSecrets()
        self._price = price
        self._throttle = throttle
        self.slots: slots.Slots = before.slots if before else slots.Slots(limits.provider_calls)
        """The limit of simultaneous calls."""
        self.state: CallState = before.state if before and before._source is source else CallState("usable")

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        """Return an answer, after retries if necessary. Raises ModelError if there is none."""
        began, outcome = time.monotonic(), "cancelled"
        for possible in metrics.MODEL_OUTCOMES:
            metrics.MODEL_CALLS.declare(self._name, self._source.model, scope.chain, possible)
        try:
            answer = await self._ask(request, scope)
            outcome = "answered"
            self._count(answer.call)
        except ports.ModelError as error:
            outcome = error.failure.kind
            self._count(error.call)
            self.state.failure = error.failure
            self.state.change("failing")
            raise
        finally:
            metrics.MODEL_CALLS.add(self._name, self._source.model, scope.chain, outcome)
            metrics.MODEL_CALL_SECONDS.observe(time.monotonic() - began, self._name, self._source.model)
        self.state.failure = None
        self.state.change("answering")
        return answer

    def _count(self, call: entries.ModelCall) -> None:
        """Count the tokens and the cost of a call, its failed requests included."""
        for usage in (call.usage, *(attempt.usage for attempt in call.attempts)):
            metrics.MODEL_TOKENS.add(call.provider, call.model, "input", amount=usage.input_tokens)
            metrics.MODEL_TOKENS.add(call.provider, call.model, "output", amount=usage.output_tokens)
            metrics.MODEL_TOKENS.add(call.provider, call.model, "thinking", amount=usage.thinking_tokens)
        if call.cost is not None:
            metrics.MODEL_COST.add(call.provider, call.model, amount=call.cost)

    async def _ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        """Do the work of `ask`.

        The iteration's limit counts from the first request, without the waits for slot, throttle, budgets and lease.
        """
        limit = self._limits.iteration.total_seconds()
        attempts = _Attempts(
            name=self._name,
            model=self._source.model,
            price=self._price,
            limits=self._limits,
            secrets=self._secrets,
            scope=scope,
            seconds_left=limit,
        )
        while True:
            answer = answers.Answer()
            try:
                async with self._slot(request, attempts, answer), attempts.timed():
                    await self._receive(request, answer, scope.stream)
                message = answer.message(self._name, secrets=self._secrets)
                if not (message.calls or message.native or message.text.strip()):
                    raise _EmptyError
            except TimeoutError as error:
                text = f"{self._name} did not answer within {limit:g} s{_attempts_text(attempts.failed)}"
                raise attempts.error(text, kind="timeout", answer=answer) from error
            except ports.BudgetError as error:
                kind: messages.FailureKind = "rejected" if error.code == messages.BUDGET_CONCLUDES else "fatal"
                raise attempts.error(str(error), kind=kind, code=error.code) from error
            except provider.RetryableError as error:
                wait = attempts.wait_after(error, answer.usage)
                scope.stream.again()
                await attempts.report_retry(wait)
                await asyncio.sleep(wait)
                attempts.seconds_left -= wait
            except provider.ProviderError as error:
                kind = "rejected" if isinstance(error, provider.RejectedError) else "fatal"
                text = f"{self._name}: {_message(error, self._secrets)}"
                attempts.count_error(error)
                raise attempts.error(text, kind=kind, code=error.code, answer=answer) from error
            else:
                return ports.Answer(message=message, call=attempts.call(answer))

    @asynccontextmanager
    async def _slot(self, request: ports.Request, attempts: _Attempts, answer: answers.Answer) -> AsyncIterator[None]:
        """Hold a slot, with a reservation in the budgets, the throttle's permission and a confirmed lease.

        A request keeps its slot while it waits for the throttle, because every other request would have to wait too.
        """
        throttle, scope = self._throttle, attempts.scope
        with scope.pause_time():
            await self._acquire(request, attempts, answer)
        try:
            if throttle is None:
                await scope.ensure_lease()
                yield
                return
            began = time.monotonic()
            with scope.pause_time():
                taken = await throttle.take(self._name, token_estimate.tokens(request))
            metrics.MODEL_RATE_WAIT.observe(time.monotonic() - began, self._name)
            try:
                await scope.ensure_lease()
                yield
            finally:
                if counted := _counted(answer.usage):
                    throttle.correct(taken, counted)
        finally:
            self.slots.release()

    async def _acquire(self, request: ports.Request, attempts: _Attempts, answer: answers.Answer) -> None:
        """Wait for a slot and for room in the budgets, and take both; at last raise what `Scope.reserve` raises.

        Slots go to requests in their order of arrival, whichever investigation they serve. A request waits for room
        without a slot, because others to the provider may have budgets with room.
        """
        ended = [reservation for reservation, _ in attempts.reserved]
        refused_at: float | None = None
        while True:
            began = time.monotonic()
            await self.slots.acquire()
            metrics.MODEL_SLOT_WAIT.observe(time.monotonic() - began, self._name)
            reserved = None
            try:
                may_wait = refused_at is None or time.monotonic() - refused_at < ROOM_SECONDS
                reserved = await attempts.scope.reserve(self._name, request, ended=ended, may_wait=may_wait)
            finally:
                if reserved is None:
                    self.slots.release()
            if reserved is not None:
                break
            refused_at = time.monotonic() if refused_at is None else refused_at
            await asyncio.sleep(ROOM_RETRY_SECONDS)
        if reserved:
            attempts.reserved.append((reserved, answer))

    async def _receive(self, request: ports.Request, answer: answers.Answer, stream: ports.Stream) -> None:
        """Receive one answer, within the limits of silence, size and calls."""
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
                if event != _SIGN_OF_LIFE and not isinstance(event, provider.Response):
                    silence = self._limits.idle
        if answer.finish is None:
            raise provider.RetryableError("the answer ended before it was whole")
        if not messages.is_plain_json(answer.finish.state):  # it could be neither stored nor sent back
            raise provider.RejectedError("the answer cannot be stored as JSON, or is nested too deep")


def _counted(usage: messages.Usage) -> int:
    """Return the tokens that the provider has counted; 0 if it has counted none."""
    return usage.total_tokens or usage.input_tokens + usage.output_tokens + usage.thinking_tokens


async def _next(events: AsyncIterator[provider.StreamEvent], *, within: float) -> provider.StreamEvent | None:
    try:
        async with asyncio.timeout(within):
            return await anext(events, None)
    except TimeoutError as error:
        raise provider.RetryableError(f"the provider was silent for {within:g} s") from error


def _message(error: provider.ProviderError, secrets: known_secrets.KnownSecrets) -> str:
    return messages.storable(secrets.mask(str(error))[:2000])


def _storable(code: str) -> str:
    return messages.storable(code[:100])


def _attempts_text(failed: Sequence[entries.Attempt]) -> str:
    """Return the number of failed attempts and the error of the last one; "" without any."""
    return f" (failed attempts: {len(failed)}; the last one: {failed[-1].error})" if failed else ""

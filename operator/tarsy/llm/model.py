"""A provider with its limits and retries: what `transcript.ports.Model` promises.

Retried is what costs nothing twice that was not lost anyway: refusals (429, 5xx) and broken streams, with exponential
back-off and jitter, on top of the time that the provider names, for so many attempts that an outage of half a minute
does not cost a stage, and within the iteration's time. Each repeat is an attempt that the transcript shows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from tarsy.config import platform
from tarsy.llm import native, provider, repetition
from tarsy.transcript import entries, messages, ports

ATTEMPTS = 8
FIRST_BACKOFF = 0.5  # seconds; doubled with each attempt
LONGEST_BACKOFF = 20.0  # seconds


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
                self.usage = usage
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


class LimitedModel:
    """One provider of the platform file, within its limits."""

    def __init__(self, name: str, source: provider.Provider, *, limits: platform.Limits) -> None:
        """`name` is the provider's in the platform file."""
        self._name = name
        self._source = source
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.provider_calls)

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        """Ask, and ask again where that may help; a ModelError says why there is no answer.

        The iteration's limit counts from the first request on: waiting for a slot or for the lease is nobody's silence.
        """
        started = time.monotonic()
        limit = self._limits.iteration.total_seconds()
        time_left = _TimeLeft(limit)
        attempts: list[entries.Attempt] = []

        def call(usage: messages.Usage) -> entries.ModelCall:
            return entries.ModelCall(
                provider=self._name,
                model=self._source.model,
                seconds=time.monotonic() - started,
                usage=usage,
                attempts=tuple(attempts),
            )

        while True:
            answer = _Answer()
            try:
                async with self._slot(scope):
                    await scope.ensure_lease()
                    async with time_left.running():
                        await self._receive(request, answer)
            except TimeoutError as error:
                text = f"{self._name} did not answer within {limit:g} s{_tried(attempts)}"
                raise ports.ModelError(text, kind="timeout", call=call(answer.usage)) from error
            except provider.RetryableError as error:
                attempts.append(entries.Attempt(error=_message(error), usage=answer.usage))
                if len(attempts) == ATTEMPTS:
                    text = f"{self._name} gave no answer in {ATTEMPTS} attempts; the last one: {_message(error)}"
                    raise ports.ModelError(text, kind="fatal", call=call(messages.Usage())) from error
                wait = (error.after or 0.0) + _backoff(len(attempts))
                if wait >= time_left.seconds:
                    no_time = f"no time to ask again in {wait:.3g} s: an iteration has {limit:g} s"
                    text = f"{self._name} did not answer, and there is {no_time}{_tried(attempts)}"
                    raise ports.ModelError(text, kind="timeout", call=call(messages.Usage())) from error
                await asyncio.sleep(wait)
                time_left.seconds -= wait
            except provider.RejectedError as error:
                raise ports.ModelError(
                    f"{self._name}: {_message(error)}", kind="rejected", call=call(answer.usage)
                ) from error
            except provider.FatalError as error:
                raise ports.ModelError(
                    f"{self._name}: {_message(error)}", kind="fatal", call=call(answer.usage)
                ) from error
            else:
                return ports.Answer(message=self._answered(answer), call=call(answer.usage))

    @asynccontextmanager
    async def _slot(self, scope: ports.Scope) -> AsyncIterator[None]:
        """One of the slots: who asked first has it first, whichever investigation he works for."""
        with scope.waiting():
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def _receive(self, request: ports.Request, answer: _Answer) -> None:
        silence = self._limits.first_byte
        async with aclosing(self._source.stream(request)) as events:
            while (event := await _next(events, within=silence.total_seconds())) is not None:
                answer.add(event)
                if answer.size > self._limits.answer:
                    raise provider.RejectedError(f"the answer is longer than {self._limits.answer} characters")
                if len(answer.calls) > self._limits.answer_calls:
                    raise provider.RejectedError(
                        f"the answer asks for more than {self._limits.answer_calls} tool calls"
                    )
                silence = self._limits.idle
        if answer.finish is None:
            raise provider.RetryableError("the answer ended before it was whole")
        if not messages.is_plain_json(answer.finish.state):  # what cannot be stored could not be sent back
            raise provider.RejectedError("the answer holds what JSON cannot, or is nested too deep")

    def _answered(self, answer: _Answer) -> messages.Message:
        state = answer.finish and answer.finish.state
        return messages.Message(
            role="assistant",
            text=messages.storable("".join(answer.text)),
            thinking=messages.storable("".join(answer.thinking)),
            calls=tuple(answer.calls),
            native=tuple(answer.native),
            provider_state=messages.ProviderState(provider=self._name, data=state) if state else None,
        )


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


def _message(error: provider.ProviderError) -> str:
    return messages.storable(str(error)[:2000])


def _tried(attempts: Sequence[entries.Attempt]) -> str:
    """How often it was tried before, and what came of the last time; "" if it was not."""
    return f" (failed attempts: {len(attempts)}; the last one: {attempts[-1].error})" if attempts else ""


def _backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubled each time, with jitter so that a crowd does not return as one."""
    longest: float = min(FIRST_BACKOFF * 2 ** (attempt - 1), LONGEST_BACKOFF)
    return longest * (0.5 + random.random() / 2)  # noqa: S311 - spreads load, guards nothing

"""A provider that streams scripted tries, and the model that limits it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support import leases
from tarsy.config.model import platforms, providers
from tarsy.llm import limited_model, provider
from tarsy.masking import known_secrets
from tarsy.transcript import entries, messages, ports, token_estimate

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text="alert"),))
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
USAGE = messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=9, total_tokens=129)
HALF = messages.Usage(input_tokens=100, output_tokens=7, total_tokens=107)
WHOLE = (provider.Text("It is "), provider.Usage(USAGE), provider.Text("memory."), provider.Finish(None))
HANG = "hang"

PRICE = providers.Price(input=2.0, output=10.0)

Step = provider.StreamEvent | provider.ProviderError | str


class Provider:
    """Streams one of its tries after the other, the last one for ever."""

    model = "fake-1"

    def __init__(self, *tries: tuple[Step, ...]) -> None:
        self._tries = tries
        self.requests = 0
        self.open = 0
        self.most_open = 0
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        assert request == REQUEST
        steps = self._tries[min(self.requests, len(self._tries) - 1)]
        self.requests += 1
        self.open += 1
        self.opened.set()
        self.most_open = max(self.most_open, self.open)
        try:
            for step in steps:
                if isinstance(step, provider.ProviderError):
                    raise step
                if isinstance(step, str):
                    await asyncio.Event().wait()
                else:
                    await asyncio.sleep(0)
                    yield step
        finally:
            self.open -= 1
            self.ended.set()

    async def close(self) -> None:
        """There is nothing to close."""


def limited(
    source: Provider,
    *,
    throttle: ports.Throttle | None = None,
    price: providers.Price | None = None,
    secrets: known_secrets.KnownSecrets | None = None,
    **limits: object,
) -> limited_model.LimitedModel:
    """A model of the provider named first, with these limits."""
    return limited_model.LimitedModel(
        "first",
        source,
        limits=platforms.Limits.model_validate(limits),
        throttle=throttle,
        price=price,
        secrets=secrets or known_secrets.KnownSecrets(),
    )


async def failure(source: Provider, *, scope: ports.Scope = SCOPE, **limits: Any) -> ports.ModelError:
    """The error of a call that brings no answer."""
    with pytest.raises(ports.ModelError) as error:
        await limited(source, **limits).ask(REQUEST, scope)
    assert source.open == 0
    return error.value


def errors(call: entries.ModelCall) -> list[str]:
    return [attempt.error for attempt in call.attempts]


class Throttle:
    """A rate limit: each request waits until it is opened; `taken` and `corrected` are its tokens by provider."""

    def __init__(self, *, opened: bool = True) -> None:
        self.opened = asyncio.Event()
        self.waits = asyncio.Event()
        self.taken: list[tuple[str, int]] = []
        self.corrected: list[tuple[str, int]] = []
        if opened:
            self.opened.set()

    async def take(self, provider: str, tokens: int) -> ports.Reservation:
        self.waits.set()
        await self.opened.wait()
        self.taken.append((provider, tokens))
        return ports.Reservation(provider=provider, tokens=tokens)

    def correct(self, taken: ports.Reservation, tokens: int) -> None:
        assert taken.tokens == ESTIMATE
        self.corrected.append((taken.provider, tokens))


ESTIMATE = token_estimate.tokens(REQUEST)

"""A model asks its throttle before each request, behind its slot and before the lease, and tells it what was spent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import pytest
from tarsy.config.model import platforms
from tarsy.llm import limited_model, provider
from tarsy.transcript import memory, messages, ports

pytestmark = pytest.mark.leaps

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text=300 * "alert"),))
USAGE = messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=9, total_tokens=129)


class Provider:
    """Is overloaded at first, and then answers."""

    model = "fake-1"

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:  # noqa: ARG002 - its port's
        self._steps.append("sent")
        if self._steps.count("sent") == 1:
            raise provider.RetryableError("503")
        yield provider.Text("It is memory.")
        yield provider.Usage(USAGE)
        yield provider.Finish(None)

    async def close(self) -> None:
        """There is nothing to close."""


class Throttle(memory.NoThrottle):
    """Has everybody wait for longer than an iteration may take."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self._steps = steps

    async def take(self, provider: str, tokens: int) -> ports.Reservation:
        await asyncio.sleep(0.15)
        self._steps.append("taken")
        return await super().take(provider, tokens)


async def test_each_request_is_counted_by_its_estimate_and_corrected_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)
    steps: list[str] = []

    async def ensure_lease() -> None:
        steps.append("lease")

    @contextmanager
    def waiting() -> Iterator[None]:
        steps.append("waits")
        yield
        steps.append("goes on")

    throttle = Throttle(steps)
    limits = platforms.Limits.model_validate({"iteration": "100ms"})
    asked = limited_model.LimitedModel("first", Provider(steps), limits=limits, throttle=throttle)
    await asked.ask(REQUEST, ports.Scope(execution="e", ensure_lease=ensure_lease, pause_time=waiting))
    # It waits for the slot and the budgets, and then for the throttle.
    once = ["waits", "goes on", "waits", "taken", "goes on", "lease", "sent"]
    assert steps == once + once
    first, second = throttle.taken
    assert first.provider == "first"
    assert 400 < first.tokens < 800, "1500 characters, and what is around them"
    assert throttle.corrected == [(second, USAGE.total_tokens)]

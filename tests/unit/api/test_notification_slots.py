"""The notifications that a process takes at once: those of a burst wait, and those of a flood are refused."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from starlette import types
from tarsy.api.alerts import concurrency
from tarsy.serve import problems, webhook_answers

pytestmark = pytest.mark.leaps

BODY = b'{"alerts": [{"startsAt": "2026-11-21T20:26:18Z"}]}'
LARGE = BODY + b" " * concurrency.LARGE


async def take(slots: concurrency.NotificationSlots, body: bytes, *, seconds: float) -> str:
    """Return whether a notification is taken, which lasts so many seconds, and how long it waited."""
    began = time.monotonic()
    outcome = "refused"
    try:
        async with slots.slot(body):
            outcome, waited = "taken", time.monotonic() - began
            await asyncio.sleep(seconds)
    except problems.Problem:
        waited = time.monotonic() - began
    return f"{outcome} after {round(waited, 3):g} s"


async def full(slots: concurrency.NotificationSlots) -> AsyncExitStack:
    held = AsyncExitStack()
    for _ in range(concurrency.ALERTS_AT_ONCE):
        await held.enter_async_context(slots.slot(BODY))
    return held


async def test_burst_of_notifications_is_accepted_in_sequence() -> None:
    slots = concurrency.NotificationSlots(clock=time.monotonic)
    rounds = 4
    count = rounds * concurrency.ALERTS_AT_ONCE
    results = await asyncio.gather(*(take(slots, BODY, seconds=0.2) for _ in range(count)))
    expected = [f"taken after {round(0.2 * number, 3):g} s" for number in range(rounds)]
    assert sorted(results) == sorted(expected * concurrency.ALERTS_AT_ONCE)


async def test_notifications_wait_to_the_end_of_a_burst_and_then_hardly() -> None:
    slots = concurrency.NotificationSlots(clock=time.monotonic)
    held = await full(slots)
    began = time.monotonic()
    await asyncio.sleep(0.4)
    waiting = asyncio.create_task(take(slots, BODY, seconds=0.0))
    assert await waiting == "refused after 1.6 s"
    assert time.monotonic() - began == pytest.approx(concurrency.BURST_SECONDS)
    for _ in range(3):
        assert await take(slots, BODY, seconds=0.0) == "refused after 0.05 s"
    await held.aclose()


async def test_a_flood_ends_once_no_notification_was_refused_for_a_while() -> None:
    slots = concurrency.NotificationSlots(clock=time.monotonic)
    held = await full(slots)
    await asyncio.sleep(concurrency.BURST_SECONDS)
    assert (await take(slots, BODY, seconds=0.0)).startswith("refused")
    await held.aclose()
    await asyncio.sleep(concurrency.CALM_SECONDS)
    held = await full(slots)
    waiting = asyncio.create_task(take(slots, BODY, seconds=0.0))
    await asyncio.sleep(0.3)
    await held.aclose()
    assert await waiting == "taken after 0.3 s"


async def test_senders_that_come_again_at_the_same_time_begin_no_other_burst() -> None:
    slots = concurrency.NotificationSlots(clock=time.monotonic)
    waves = []
    for _ in range(5):
        count = 100 * concurrency.ALERTS_AT_ONCE
        outcomes = await asyncio.gather(*(take(slots, BODY, seconds=0.1) for _ in range(count)))
        waves.append(max(float(outcome.split()[2]) for outcome in outcomes))
        await asyncio.sleep(1.0)  # when the last one has ended, no notification is there
    assert waves == [concurrency.BURST_SECONDS, *[concurrency.WAIT_SECONDS] * 4]


async def test_large_notifications_of_a_pair_are_accepted_in_sequence() -> None:
    slots = concurrency.NotificationSlots(clock=time.monotonic)
    pair = await asyncio.gather(*(take(slots, LARGE, seconds=0.6) for _ in range(2)))
    assert pair == ["taken after 0 s", "taken after 0.6 s"]


async def statuses(app: types.ASGIApp, *paths: str) -> list[tuple[int, bytes]]:
    """Return the statuses of requests to the paths, whose bodies must not be read, and their Retry-After."""
    answers = []

    async def receive() -> types.Message:
        raise AssertionError("the body is read")

    async def send(message: types.Message) -> None:
        if message["type"] == "http.response.start":
            answers.append((message["status"], dict(message["headers"]).get(b"retry-after", b"")))

    for path in paths:
        await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)
    return answers


async def test_one_notification_of_a_flood_waits_and_others_are_refused_without_reading() -> None:
    slots = concurrency.NotificationSlots(clock=time.monotonic)
    served = []

    async def serve(scope: types.Scope, _receive: types.Receive, send: types.Send) -> None:
        served.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = concurrency.EarlyRefusals(serve, slots=slots)
    webhook, other = f"{webhook_answers.PREFIX}alertmanager", "/api/v1/investigations"
    held = await full(slots)
    burst = asyncio.create_task(take(slots, BODY, seconds=0.0))
    await asyncio.sleep(0.1)
    assert await statuses(app, webhook) == [(200, b"")], "in a burst they wait"
    assert await burst == "refused after 2 s"
    assert await statuses(app, webhook) == [(200, b"")], "none waits"
    waiting = asyncio.create_task(take(slots, BODY, seconds=0.0))
    await asyncio.sleep(0.01)
    assert await statuses(app, webhook, other, webhook) == [(503, b"1"), (200, b""), (503, b"1")]
    assert served == [webhook, webhook, other]
    await held.aclose()
    assert await waiting == "taken after 0.01 s"
    assert await statuses(app, webhook) == [(200, b"")]

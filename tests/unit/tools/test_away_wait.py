"""For how long an execution waits for servers that are away."""

from __future__ import annotations

import asyncio

import pytest
from tarsy.tools.servers import health

pytestmark = pytest.mark.leaps


async def away() -> str:
    await asyncio.Event().wait()
    return "never"


async def there() -> str:
    return "there"


async def test_who_is_away_is_waited_for_once_whoever_asks_and_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 0.2)
    execution, clock = health.AwayWait(), asyncio.get_running_loop().time
    began = clock()
    assert await asyncio.gather(*(execution.wait("a", away) for _ in range(8)), execution.wait("b", away)) == [None] * 9
    assert clock() - began == pytest.approx(0.2), "one after the other it would be 1.8"
    began = clock()
    assert [await execution.wait(name, away) for name in "abababab"] == [None] * 8
    assert clock() == began, "each time it would be 1.6"
    assert await execution.wait("a", there) == "there", "one that is back is used all the same"
    assert await health.AwayWait().wait("a", there) == "there"


async def test_what_was_waited_is_taken_from_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 0.3)
    execution, clock = health.AwayWait(), asyncio.get_running_loop().time
    began = clock()

    async def back_soon() -> str:
        await asyncio.sleep(0.2)
        return "back"

    assert await execution.wait("a", back_soon) == "back"
    assert await execution.wait("a", back_soon) is None
    assert clock() - began == pytest.approx(0.3)


async def test_a_cancellation_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 60.0)
    waiting = asyncio.create_task(health.AwayWait().wait("a", away))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

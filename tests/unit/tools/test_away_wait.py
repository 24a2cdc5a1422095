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


async def test_unreachable_server_is_waited_for_once_by_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_waited_time_is_subtracted_from_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 0.3)
    execution, clock = health.AwayWait(), asyncio.get_running_loop().time
    began = clock()

    async def back_soon() -> str:
        await asyncio.sleep(0.2)
        return "back"

    assert await execution.wait("a", back_soon) == "back"
    assert await execution.wait("a", back_soon) is None
    assert clock() - began == pytest.approx(0.3)

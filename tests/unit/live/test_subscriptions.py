"""Checks of subscribers' permissions, again and again, and what happens if no authority can answer."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus

import pytest
from tarsy.live import subscriptions
from tarsy.serve import problems

pytestmark = pytest.mark.leaps


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "CHECKED_EVERY", (0.01, 0.02))
    monkeypatch.setattr(subscriptions, "UNCHECKED_SECONDS", 0.3)
    monkeypatch.setattr(subscriptions, "RETRY_SECONDS", 0.02)


class Cluster:
    """An API server that is there, or away."""

    def __init__(self) -> None:
        self.is_away = True
        self.asked = 0

    async def check(self) -> None:
        self.asked += 1
        if self.is_away:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the API server is away")


def attended(cluster: Cluster) -> subscriptions.Subscription:
    return subscriptions.Subscription(feed=lambda _: contextlib.nullcontext(), check=cluster.check)


async def test_subscription_ends_if_it_cannot_be_checked_for_long() -> None:
    cluster = Cluster()
    with pytest.raises(subscriptions.EndedError, match="the API server is away"):
        async with asyncio.timeout(60):
            await subscriptions._check(attended(cluster))
    assert cluster.asked > 10, "and it is asked again until then"


async def test_subscription_survives_a_short_outage_of_the_api_server() -> None:
    cluster = Cluster()
    guard = asyncio.create_task(subscriptions._check(attended(cluster)))
    await asyncio.sleep(0.2)
    assert cluster.asked > 2
    cluster.is_away = False
    await asyncio.sleep(1)
    assert cluster.asked > 30
    assert not guard.done()
    guard.cancel()

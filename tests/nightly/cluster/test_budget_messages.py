"""Messages about thresholds of budgets: real receivers on loopback, and a real Postgres."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from support import queue, receivers, slack, waiting
from tarsy.config.model import budgets, platforms
from tarsy.controller import budget_events, delivery_queues
from tarsy.deliveries import slack as slack_receiver
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import ledgers
from tarsy_dev import patience

LIMIT = 100
BUDGET = budgets.Budget(scope="namespace", per="month", model_calls=LIMIT)
STATES = "SELECT receiver, threshold, attempts, problem FROM budget_messages WHERE next_at IS NULL ORDER BY 1, 2"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pauses be short: the tests wait for states."""
    monkeypatch.setattr(delivery_queues, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(delivery_queues, "GIVE_UP_SECONDS", 0.02)
    monkeypatch.setattr(delivery_queues, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(delivery_queues, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(slack_receiver, "PACE_SECONDS", 0.0)


@pytest.fixture
async def receiver() -> AsyncIterator[receivers.Receiver]:
    async with receivers.started() as receiver:
        yield receiver


class Controller:
    """The duties of one process that are about budgets and messages."""

    def __init__(self, cluster: client.Cluster, database: databases.Database, **named: dict[str, Any]) -> None:
        made = {
            name: {"events": ["budget"], "allowed_namespaces": ["shop"], **fields} for name, fields in named.items()
        }
        self.platform = platforms.Platform.model_validate({"budgets": {"team": BUDGET}, "deliveries": made})
        self.database = database
        self.events = budget_events.BudgetEvents(
            cluster=cluster, database=database, deployment=None, platform=lambda: self.platform
        )
        self._cluster = cluster

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send, as a process does that has just begun to lead."""
        queues = delivery_queues.DeliveryQueues(
            cluster=self._cluster,
            database=self.database,
            platform=lambda: self.platform,
            leads_until=lambda: math.inf,
            environment={"SLACK_TOKEN": slack.TOKEN},
        )
        async with patience.limit(), asyncio.TaskGroup() as group:
            task = group.create_task(queues.run())
            yield
            task.cancel()

    async def spend(self, amount: int, *, namespace: str = "shop") -> None:
        """Spend of the budget for good, and look what is due; each replica that leads does that."""
        charge = budgets.Charge(
            budget="team",
            unit="model_calls",
            subject=namespace,
            per="month",
            amount=Decimal(amount),
            most=Decimal(LIMIT),
            at_limit="Conclude",
        )
        token = uuid.uuid4()
        assert await ledgers.reserve(self.database, [charge], request=token, investigation=token, token=token) is None
        await self.events.post()

    async def settled(self, count: int = 1) -> list[tuple[Any, ...]]:
        """Wait until `count` messages are neither due nor to be retried."""

        async def are_settled() -> bool:
            return len(await queue.rows(self.database, STATES)) >= count

        await waiting.seen(are_settled)
        return await queue.rows(self.database, STATES)


def hook(url: str, **settings: Any) -> dict[str, Any]:
    return {"type": "webhook", "url": url, **settings}


async def test_each_budget_threshold_is_reported_once_per_period_across_processes(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    first, other = (Controller(cluster, database, hook=hook(receiver.url)) for _ in range(2))
    await first.spend(49)
    await first.spend(100, namespace="bank")
    assert await queue.rows(database, "SELECT 1 FROM budget_messages") == [], "it may not hear of bank"
    for number, (amount, process) in enumerate([(1, first), (30, other), (20, first)], 1):
        await process.spend(amount)
        await other.events.post()
        async with process.sending():
            assert len(await receiver.has(number)) == number
            await process.settled()
    assert await first.settled() == [("hook", 100, 0, "")]
    bodies = [json.loads(request.body) for request in receiver.requests]
    assert [body["budget"]["threshold"] for body in bodies] == [50, 80, 100]
    ((period,),) = await queue.rows(database, "SELECT DISTINCT period FROM budget_ledgers")
    renewal = budgets.renewal("month", period)
    assert renewal is not None
    assert bodies[1] == {
        "version": "tarsy.dev/v1",
        "kind": "budget",
        "id": receiver.requests[1].headers["ce-id"],
        "event": "budget",
        "receiver": "hook",
        "title": "Budget team of shop: 80 % of 100 model calls",
        "text": f"80 % are spent or reserved in {period} (UTC). It renews at {renewal:%Y-%m-%d %H:%M} UTC. "
        "At the limit, investigations conclude early.",
        "budget": {
            "name": "team",
            "subject": "shop",
            "unit": "model_calls",
            "limit": 100.0,
            "threshold": 80,
            "per": "month",
            "period": period,
            "renews_at": f"{renewal:%Y-%m-%dT%H:%M:%SZ}",
            "at_limit": "Conclude",
        },
    }
    assert receiver.requests[1].headers["ce-type"] == "dev.tarsy.budget.threshold.v1"
    assert len({body["id"] for body in bodies}) == 3
    for table in ("budget_ledgers", "budget_messages"):
        await queue.execute(database, f"UPDATE {table} SET period = '2001-01'")  # noqa: S608 - a table's name
    await first.spend(50)
    async with first.sending():
        await receiver.has(4)
        await first.settled(2)

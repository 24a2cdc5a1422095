"""Receivers, channels and the duty that sends, over a real Postgres."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from support import grafana, pagerduty, queue, slack, stories, waiting
from tarsy.config.model import deliveries, platforms
from tarsy.controller import delivery_queues
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import patience

KEY = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()

ENVIRONMENT = {
    "HOOK_SECRET": f"whsec_{KEY}",
    "SLACK_TOKEN": slack.TOKEN,
    "GRAFANA_TOKEN": grafana.TOKEN,
    "PD_KEY": pagerduty.TOKEN,
}


def webhook(url: str, namespace: str = "tarsy", **settings: Any) -> deliveries.Receiver:
    return deliveries.Webhook.model_validate(
        {"type": "webhook", "url": url, "allowed_namespaces": [namespace], **settings}
    )


def channel(url: str, **settings: Any) -> deliveries.Receiver:
    fields = {"type": "slack", "channel": slack.CHANNEL, "token_env": "SLACK_TOKEN", "base_url": f"{url}/api"}
    return deliveries.Slack.model_validate(fields | {"allowed_namespaces": ["tarsy"]} | settings)


class Duty:
    """The duty of one process, whose platform file and leadership a test changes."""

    def __init__(self, cluster: client.Cluster, database: databases.Database, **named: deliveries.Receiver) -> None:
        self.platform = platforms.Platform(deliveries=named, api=platforms.API(public_url="https://tarsy.example"))
        self.leads_until = math.inf
        self.queues = delivery_queues.DeliveryQueues(
            cluster=cluster,
            database=database,
            platform=lambda: self.platform,
            leads_until=lambda: self.leads_until,
            environment=ENVIRONMENT,
        )
        self._database = database

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the block ends; changes after its beginning are read."""
        async with patience.limit(), asyncio.TaskGroup() as group:
            task = group.create_task(self.queues.run())
            if self.platform.deliveries:
                await until(self._database, "SELECT 1 FROM delivery_positions")
            yield
            task.cancel()


async def ended(database: databases.Database, name: str = "web-crash", alert_data: str = "web-0", **chain: Any) -> UUID:
    """An investigation that has just ended."""
    subject = queue.subject(name, severity="critical", alertData=alert_data)
    identity = await queue.admit(database, subject, chain=queue.chain(**chain))
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.run_ended(final_analysis="web-0 is out of memory. Raise its limit."))
    return identity


async def until(database: databases.Database, statement: str, *, rows: int = 1) -> None:
    """Wait until a statement returns this many rows or more."""

    async def are_there() -> bool:
        return len(await queue.rows(database, statement)) >= rows

    await waiting.seen(are_there)


async def settled(database: databases.Database, count: int = 1) -> list[tuple[Any, ...]]:
    """Wait until `count` messages are neither due nor to be retried; return their rows."""
    rows = (
        "SELECT receiver, event, attempts, gave_up_at IS NOT NULL FROM deliveries WHERE next_at IS NULL ORDER BY 1, 2"
    )
    await until(database, rows, rows=count)
    return await queue.rows(database, rows)

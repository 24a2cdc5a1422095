"""What the bench does to an operator: it posts alerts, and waits until nothing is left to do for them."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import asyncpg

from bench import asked, rig, sql

_PACE = 0.003  # seconds between two looks at whether something has ended
_AGAIN_SECONDS = 0.5  # before a notification is sent again: Alertmanager's first pause


@dataclass(frozen=True, kw_only=True)
class Posted:
    """An investigation that was asked for."""

    name: str
    """namespace/name."""
    at: float
    """When its notification was posted (`time.time`)."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of a running operator."""

    parts: rig.Rig
    http: aiohttp.ClientSession
    database: asyncpg.Connection
    """To the operator's database; the bench's only one."""
    conclusions: asked.Conclusions

    async def post(self, alert_type: str, *, api: str = "") -> Posted:
        """Post a notification of one new alert, to the rig's operator or to another one's `api`, again after a 503."""
        body, headers = _notification(alert_type), {"Authorization": f"Bearer {self.parts.token}"}
        url = f"{api or self.parts.api}/api/v1/webhooks/alertmanager"
        at = time.time()
        while True:
            async with self.http.post(url, json=body, headers=headers) as response:
                if response.status not in (200, 503):
                    raise asked.BenchError(f"the webhook was answered {response.status}: {await response.text()}")
                answer = await response.json()
            if response.status == 200:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        (outcome,) = answer["alerts"]
        if outcome["outcome"] != "created":
            raise asked.BenchError(f"the alert was not taken: {outcome}")
        return Posted(name=f"{outcome['namespace']}/{outcome['name']}", at=at)

    async def ended(self, *posted: Posted, within: float) -> None:
        """Wait until these have ended and nothing is left to do for any, its status included; `within` seconds."""
        names = {one.name for one in posted}
        deadline = time.monotonic() + within
        while not await self._ended(names):
            self.parts.operator.check()
            if time.monotonic() > deadline:
                missing = len(names - self.conclusions.so_far())
                raise asked.BenchError(
                    f"{len(names)} investigations took over {within:g} s, {missing} are not concluded; "
                    + self.parts.operator.story()
                )
            await asyncio.sleep(_PACE)

    def check(self, *posted: Posted) -> None:
        """Raise a BenchError unless the cluster shows each of these as completed."""
        listed = json.loads(self.parts.plane.kubectl("get", "alertinvestigations", "-A", "-o", "json"))
        phases = {
            f"{item['metadata']['namespace']}/{item['metadata']['name']}": item.get("status", {}).get("phase")
            for item in listed["items"]
        }
        for one in posted:
            if phases.get(one.name) != "Completed":
                raise asked.BenchError(f"{one.name} is {phases.get(one.name)}, not Completed")

    async def _ended(self, names: Collection[str]) -> bool:
        """The model's log is looked at first: it costs the database nothing."""
        return self.conclusions.so_far().issuperset(names) and not await self.database.fetchval(sql.UNFINISHED)


@asynccontextmanager
async def connected(parts: rig.Rig) -> AsyncIterator[Client]:
    """A client of the operator of `parts`."""
    with closing(asked.Conclusions(parts.model_log)) as conclusions:
        # The server closes idle connections after 5 s; a busy client would notice that only once it has sent a request.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(keepalive_timeout=1)) as http:
            database = await asyncpg.connect(parts.database_url)
            try:
                yield Client(parts=parts, http=http, database=database, conclusions=conclusions)
            finally:
                await database.close()


def _notification(alert_type: str) -> dict[str, Any]:
    alert = {
        "status": "firing",
        "labels": {"alertname": alert_type, "namespace": "shop", "pod": "web-0", "severity": "critical"},
        "annotations": {"summary": "a pod restarts every minute"},
        "startsAt": datetime.now(UTC).isoformat(),
        "fingerprint": uuid.uuid4().hex[:16],
    }
    return {"version": "4", "receiver": "bench", "status": "firing", "groupKey": "{}", "alerts": [alert]}

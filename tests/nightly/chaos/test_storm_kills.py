"""Storms of alerts on two operators that are killed meanwhile: one cause is one investigation, and limits hold."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import asyncpg
import pytest
from support import manifests
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = pytest.mark.timeout(600)

SEED = 20261128
LEASE = timedelta(seconds=3)
CAUSES, ALERTS = 8, 320
"""The causes of a storm, and its alerts: as many of each."""
LIMIT, RUNS = 2, 12
RUNNING = "SELECT count(*) FROM work, pg_sleep(0.02) WHERE state = 'running'"


def alert(number: int, status: str = "firing") -> dict[str, Any]:
    """Return an alert of a deployment or of a node."""
    cause = number % CAUSES
    about = {"node": f"n{cause}"} if cause % 2 else {"namespace": "shop", "deployment": f"d{cause}"}
    return {
        "status": status,
        "labels": {"alertname": f"Type{number % 3}", "cause": f"c{cause}", **about},
        "annotations": {},
        "startsAt": "2026-11-21T20:26:18Z",
        "endsAt": "2026-11-21T20:36:18Z" if status == "resolved" else "0001-01-01T00:00:00Z",
        "fingerprint": f"{number:016x}",
    }


def has_seen(number: int, seen: Sequence[object]) -> bool | None:
    return len(seen) >= number or None


class Pair:
    """Two operators that are killed while both Alertmanagers send each notification until one accepts it."""

    def __init__(self, operator: Operator, chance: random.Random, **start: Any) -> None:
        """`start` is what each operator is started with."""
        self._operator = operator
        self._chance = chance
        self._start = start
        self._operators: list[Process] = []
        self._accepted: list[dict[str, Any]] = []
        self._progress = asyncio.Condition()

    async def start(self) -> None:
        self._operators = [await self._operator.start(**self._start), await self._operator.start(**self._start)]

    async def storm(self, notifications: Sequence[tuple[str, Sequence[dict[str, Any]]]], *, kills: int) -> set[str]:
        """Send each notification, a group's key and its alerts, and kill an operator so often; the outcomes."""
        self._accepted.clear()
        alerts = 2 * sum(len(alerts) for _, alerts in notifications)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(self._send(self._chance.sample(notifications, len(notifications))))
            group.create_task(self._kill(sorted(self._chance.sample(range(1, alerts * 4 // 5), kills))))
        return {result["outcome"] for result in self._accepted}

    async def end(self) -> None:
        for process in self._operators:
            await process.kill()

    async def _send(self, notifications: Sequence[tuple[str, Sequence[dict[str, Any]]]]) -> None:
        for key, alerts in notifications:
            sent = {"groupKey": key, "alerts": alerts}
            body = json.dumps(json.loads(manifests.notification()) | sent).encode()
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    process = self._operators[self._chance.randrange(2)]
                    status, receipt = await process.request("POST", "/api/v1/webhooks/alertmanager", body=body)
                    if status < 300:
                        break
                    assert status == 503, receipt
                await asyncio.sleep(0.05)
            async with self._progress:
                self._accepted.extend(receipt["alerts"])
                self._progress.notify_all()

    async def _kill(self, thresholds: Sequence[int]) -> None:
        for threshold in thresholds:
            async with self._progress:
                await self._progress.wait_for(functools.partial(has_seen, threshold, self._accepted))
            victim = self._chance.randrange(2)
            await self._operators[victim].kill()
            self._operators[victim] = await self._operator.start(**self._start)


@contextlib.asynccontextmanager
async def watched(database_url: str) -> AsyncIterator[list[int]]:
    """Count the running runs all the time; the counts."""
    counts: list[int] = []

    async def watch() -> None:
        database = await asyncpg.connect(database_url)
        try:
            while True:
                counts.append(await database.fetchval(RUNNING))
        finally:
            await database.close()

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(watch())
        yield counts
        watcher.cancel()


@pytest.mark.parametrize(
    "grouping",
    [{"by": "Labels", "labels": ["cause"]}, {"by": "Owner"}, {"by": "Notification"}],
    ids=lambda grouping: grouping["by"],
)
async def test_ha_pair_storm_makes_one_investigation_per_cause_despite_operator_kills(
    operator: Operator, llm: model.Server, grouping: dict[str, Any]
) -> None:
    """Both Alertmanagers send each notification until it is accepted, to either operator; then all is resolved."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)  # noqa: S311 - an order
    is_over = asyncio.Event()

    async def script(_: model.Turn) -> model.Answer:
        await is_over.wait()  # what comes after an end may be a new investigation
        return model.Answer(text="root cause: no disk")

    llm.script = script
    await operator.apply(manifests.chain(grouping=grouping))
    pair = Pair(operator, chance, lease=LEASE)
    await pair.start()

    def notifications(status: str) -> list[tuple[str, list[dict[str, Any]]]]:
        """Each is of one cause."""
        parts = []
        for cause in range(CAUSES):
            numbers = chance.sample(range(cause, ALERTS, CAUSES), ALERTS // CAUSES)
            for first in range(0, len(numbers), 5):
                alerts = [alert(number, status) for number in numbers[first : first + 5]]
                parts.append((f'{{}}:{{cause="c{cause}"}}', alerts))
        return parts

    assert await pair.storm(notifications("firing"), kills=4) <= {"created", "joined", "repeated"}
    assert await pair.storm(notifications("resolved"), kills=2) <= {"resolved", "repeated"}
    is_over.set()
    objects = await operator.finished()
    database = await asyncpg.connect(operator.database_url)
    rows = await database.fetch("SELECT fingerprint, investigation FROM identities")
    await database.close()

    assert len(objects) == CAUSES, sorted(objects)
    assert {request.key.investigation for request in llm.requests} == {
        f"{operator.namespace}/{name}" for name in objects
    }
    assert sorted(row["fingerprint"] for row in rows) == [f"{number:016x}" for number in range(ALERTS)]
    causes = {(int(row["fingerprint"], 16) % CAUSES, row["investigation"]) for row in rows}
    assert len(causes) == CAUSES
    assert {str(investigation) for _, investigation in causes} == {
        manifest["metadata"]["uid"] for manifest in objects.values()
    }
    assert {manifest["status"]["alertStatus"] for manifest in objects.values()} == {"resolved"}


async def test_runs_of_a_chain_stay_within_its_limit_although_operators_are_killed(
    operator: Operator, llm: model.Server
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)  # noqa: S311 - an order
    is_full = asyncio.Event()

    async def script(_: model.Turn) -> model.Answer:
        await is_full.wait()
        return model.Answer(text="root cause: no disk", delay=0.5)

    llm.script = script
    await operator.apply(manifests.chain(maxRunning=LIMIT))
    operators: list[Process] = [await operator.start(lease=LEASE), await operator.start(lease=LEASE)]
    names = [f"web-{number}" for number in range(RUNS)]
    async with watched(operator.database_url) as counts:
        await operator.apply(*map(manifests.investigation, names))
        async with patience.limit():
            while LIMIT not in counts:  # noqa: ASYNC110 - the database tells nobody
                await asyncio.sleep(0.05)
        is_full.set()
        for number in (3, 5, 8, 11):
            await llm.wait_for(functools.partial(has_seen, number))
            victim = chance.randrange(2)
            await operators[victim].kill()
            operators[victim] = await operator.start(lease=LEASE)
        objects = await operator.finished(*names)
    assert max(counts) == LIMIT
    assert {manifest["status"]["phase"] for manifest in objects.values()} == {"Completed"}

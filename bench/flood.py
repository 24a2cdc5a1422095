"""A flood: notifications of ten new alerts at a steady pace, beside the bare loop's objects and rows at the same pace.

Each notification is a group of its own, posted at its time, whether those before it are answered or not. After a 503 it
is sent again as Alertmanager does: after half a second, then after 1.5 times as long each time, up to a minute, each
wait half as long to half longer at random. The bare loop takes the same notifications: for each alert it creates an
object of the same size at the API server and commits a row, eight at once, and does nothing else. At the end every
alert that was answered 2xx has its row, and nothing is left to do.

With causes, there is one more flood of as many alerts, of a chain that groups them by a label: when each cause has its
investigation, all of them join one, and what such an alert takes stands beside an alert of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import ssl
import time
import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from tarsy_dev import world

from bench import asked, meter, model, rig, sql

ALERTS = 10
"""Alerts of a notification."""
AT_ONCE = 8
"""Alerts of a notification that the bare loop takes at once, as the operator does."""
AGAIN_SECONDS, AGAIN_GROWTH, AGAIN_SPREAD, AGAIN_MAX = 0.5, 1.5, 0.5, 60.0
"""The waits before a notification is sent again: the first, what the next one is a multiple by, its random part, and
the longest. Source: Alertmanager's notify/notify.go, which uses `NewExponentialBackOff` of github.com/cenkalti/backoff.
"""
_DRAINED_SECONDS = 1800.0
_OBJECTS = f"/apis/tarsy.dev/v1alpha1/namespaces/{world.NAMESPACE}/alertinvestigations"


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one side takes."""

    answers: meter.Times
    """From the post of a notification to its answer, those with 503 included."""
    taken: meter.Times
    """Those with 200 alone."""
    cpu: float
    """Milliseconds of processor time an alert: of the operator, its investigations included, or of the bare loop."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """What one alert takes: of the operator and of Postgres, its investigation included."""

    cpu: float
    """Milliseconds of processor time of the operator."""
    postgres: float
    """The same of Postgres' processes."""
    transactions: float
    """Transactions that wrote."""
    wal: float
    """KiB of it."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured."""

    alerts: int
    seconds: float
    """The time in which they were posted first."""
    statuses: dict[int, int]
    """The answers by status; each notification was answered 200 once."""
    tarsy: Side
    bare: Side
    taken_seconds: float
    """From the first post until all notifications were answered 200."""
    drained_seconds: float
    """From then until nothing was left to do."""
    own: Alert
    """An alert with an investigation of its own."""
    joined: Alert | None
    """An alert that joins one of the causes' investigations."""


@dataclass(kw_only=True)
class _Answers:
    seconds: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    """The seconds of those with 200."""
    statuses: Counter[int] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    """The investigations of alerts that were answered 200."""


async def figures(parts: rig.Rig, *, alerts: int, seconds: float, causes: int = 0) -> Figures:
    """Post `alerts` within so many seconds, wait until nothing is left to do, and have the bare loop take as many.

    With `causes`, post as many alerts of so many causes, too.
    """
    notifications = [_notification() for _ in range(alerts // ALERTS)]
    answers, joining = _Answers(), _Answers()
    database = await asyncpg.connect(parts.database_url)
    try:
        watched = meter.Meter(database=database, postmaster=parts.database.pid)
        spent, spent_joining = meter.Spent(), meter.Spent()
        async with watched.adding(spent, process=parts.operator.pid):
            began = time.monotonic()
            await _flood(parts, notifications, answers, seconds=seconds)
            answered = time.monotonic()
            await _drained(parts, answers.names)
            drained = time.monotonic() - answered
        if causes:
            await _flood(parts, [_notification([f"cause-{number}" for number in range(causes)])], joining, seconds=1)
            await _drained(parts, [*answers.names, *joining.names])
            async with watched.adding(spent_joining, process=parts.operator.pid):
                of_causes = (f"cause-{number % causes}" for number in itertools.count())
                bodies = [_notification(list(itertools.islice(of_causes, ALERTS))) for _ in notifications]
                await _flood(parts, bodies, joining, seconds=seconds)
                await _drained(parts, [*answers.names, *dict.fromkeys(joining.names)])
    finally:
        await database.close()
    bare_seconds: list[float] = []
    async with _bare(parts) as take:
        bare_cpu = meter.processor(os.getpid())

        async def timed(body: dict[str, Any]) -> None:
            at = time.perf_counter()
            await take(body)
            bare_seconds.append(time.perf_counter() - at)

        await _paced([_notification() for _ in notifications], timed, seconds=seconds)
        bare_cpu = meter.processor(os.getpid()) - bare_cpu
    taken = len(notifications) * ALERTS
    return Figures(
        alerts=taken,
        seconds=seconds,
        statuses=dict(answers.statuses),
        tarsy=Side(
            answers=meter.times(answers.seconds), taken=meter.times(answers.taken), cpu=spent.cpu / taken * 1000
        ),
        bare=Side(answers=meter.times(bare_seconds), taken=meter.times(bare_seconds), cpu=bare_cpu / taken * 1000),
        taken_seconds=answered - began,
        drained_seconds=drained,
        own=_each(spent, taken),
        joined=_each(spent_joining, taken) if causes else None,
    )


def _each(spent: meter.Spent, alerts: int) -> Alert:
    return Alert(
        cpu=spent.cpu / alerts * 1000,
        postgres=spent.postgres / alerts * 1000,
        transactions=spent.transactions / alerts,
        wal=spent.wal / alerts / 1024,
    )


async def _flood(parts: rig.Rig, notifications: list[dict[str, Any]], answers: _Answers, *, seconds: float) -> None:
    """Post notifications within so many seconds, each until it is taken."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=1)) as http:

        async def post(body: dict[str, Any]) -> None:
            wait = AGAIN_SECONDS
            while not await _post(parts, http, body, answers):
                await asyncio.sleep(wait * random.uniform(1 - AGAIN_SPREAD, 1 + AGAIN_SPREAD))  # noqa: S311 - no secret
                wait = min(wait * AGAIN_GROWTH, AGAIN_MAX)

        await _paced(notifications, post, seconds=seconds)


async def _paced(
    notifications: list[dict[str, Any]], take: Callable[[dict[str, Any]], Coroutine[Any, Any, None]], *, seconds: float
) -> None:
    """Begin to take each notification at its time."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, body in enumerate(notifications):
            await asyncio.sleep(began + seconds * number / len(notifications) - time.monotonic())
            tasks.create_task(take(body))


async def _post(parts: rig.Rig, http: aiohttp.ClientSession, body: dict[str, Any], answers: _Answers) -> bool:
    """Post a notification; return whether it was taken. Raises BenchError for an answer that is neither 200 nor 503."""
    at = time.perf_counter()
    headers = {"Authorization": f"Bearer {parts.token}"}
    async with http.post(f"{parts.api}/api/v1/webhooks/alertmanager", json=body, headers=headers) as response:
        receipt = await response.json()
    answers.seconds.append(time.perf_counter() - at)
    answers.statuses[response.status] += 1
    if response.status not in (200, 503):
        raise asked.BenchError(f"the webhook was answered {response.status}: {receipt}")
    if response.status == 200:
        answers.taken.append(answers.seconds[-1])
        answers.names += [outcome["name"] for outcome in receipt["alerts"]]
    return response.status == 200


async def _drained(parts: rig.Rig, names: list[str]) -> None:
    """Wait until nothing is left to do. Raises BenchError if an alert that was taken has no row of its own."""
    database = await asyncpg.connect(parts.database_url)
    try:
        rows = [row["name"] for row in await database.fetch(sql.NAMES)]
        if sorted(rows) != sorted(names):
            raise asked.BenchError(f"{len(names)} alerts were taken, and there are {len(rows)} rows")
        async with asyncio.timeout(_DRAINED_SECONDS):
            while await database.fetchval(sql.UNFINISHED):
                parts.operator.check()
                await asyncio.sleep(0.5)
    finally:
        await database.close()


@asynccontextmanager
async def _bare(parts: rig.Rig) -> AsyncIterator[Callable[[dict[str, Any]], Coroutine[Any, Any, None]]]:
    """What takes a notification without TARSy: an object and a committed row for each alert."""
    server, context = _administrator(parts.plane.kubeconfig(namespace=world.NAMESPACE))
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    async with (
        asyncpg.create_pool(parts.bare_database_url, min_size=AT_ONCE, max_size=15) as pool,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        await pool.execute("CREATE TABLE IF NOT EXISTS taken (name text PRIMARY KEY, alert json NOT NULL)")

        async def take(body: dict[str, Any]) -> None:
            slots = asyncio.Semaphore(AT_ONCE)

            async def keep(alert: dict[str, Any]) -> None:
                async with slots:
                    written = json.dumps(alert)
                    name = f"bare-{alert['fingerprint']}"
                    made = {
                        "apiVersion": "tarsy.dev/v1alpha1",
                        "kind": "AlertInvestigation",
                        "metadata": {"name": name},
                        # suspended: the operator admits it, and does not run it
                        "spec": {"alertType": "bare", "alertData": written, "suspend": True},
                    }
                    async with http.post(f"{server}{_OBJECTS}", json=made) as response:
                        if response.status != 201:
                            raise asked.BenchError(f"the API server answered {response.status}")
                        await response.read()
                    await pool.execute("INSERT INTO taken (name, alert) VALUES ($1, $2)", name, written)

            await asyncio.gather(*map(keep, body["alerts"]))

        yield take


def _administrator(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """The API server's address, and the administrator's credentials."""
    config = json.loads(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=b64decode(cluster["certificate-authority-data"]).decode())
    pem = kubeconfig.with_suffix(".pem")
    pem.touch(mode=0o600)
    pem.write_bytes(b64decode(user["client-certificate-data"]) + b64decode(user["client-key-data"]))
    context.load_cert_chain(pem)
    return cluster["server"], context


def _notification(causes: Sequence[str] = ("",) * ALERTS) -> dict[str, Any]:
    """A notification of an alert for each of `causes`; those without one are investigated alone."""
    alerts = [
        {
            "status": "firing",
            "labels": {
                "alertname": rig.GROUPED if cause else model.ARRIVAL,
                "namespace": "shop",
                "pod": f"web-{number}",
                "severity": "critical",
            }
            | ({rig.CAUSE: cause} if cause else {}),
            "annotations": {"summary": "a pod restarts every minute"},
            "startsAt": datetime.now(UTC).isoformat(),
            "fingerprint": uuid.uuid4().hex[:16],
        }
        for number, cause in enumerate(causes)
    ]
    return {"version": "4", "receiver": "bench", "status": "firing", "groupKey": "{}", "alerts": alerts}

"""The measurements. Times between two requests are the model's; a webhook's start is ours, on the same clock.

Machines are noisy, so these are medians, over many repetitions, and TARSy and the bare loop take turns: what disturbs
one disturbs the other, and their ratio says more than either figure.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from tarsy_dev import errors, oracle

from bench import bare, model, rig

WARM_UP = 3  # notifications and conversations that are not counted: connections, imports, plans
_IDLE_SECONDS = 30.0  # that one investigation may take, its status included
_BUSY = "SELECT 1 FROM work WHERE state <> 'ended' OR projected_seq < seq LIMIT 1"


class BenchError(errors.Error):
    """Something did not go as it must for its time to mean anything."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Some times, in milliseconds."""

    median: float
    p95: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """The iterations of TARSy, or of the bare loop."""

    added: Times
    """From the last byte of an answer to the next request."""
    cpu: float
    """Milliseconds of processor time an iteration, answer and tools included; of their process alone."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured."""

    arrival: Times
    """From a webhook's post to the model's first request."""
    tarsy: Side
    bare: Side


@dataclass(frozen=True, kw_only=True)
class _Posted:
    """An investigation that ran to its end."""

    name: str
    """namespace/name."""
    at: float
    """When its notification was posted (`time.time`)."""
    cpu: float
    """Seconds of the operator's processor time that it took."""


async def figures(parts: rig.Rig, *, notifications: int, conversations: int) -> Figures:
    """Measure: `notifications` one after another, then `conversations` of each side in turns."""
    connecting = bare.connected(
        model_url=parts.model_url, tools_url=parts.tools_url, database_url=parts.bare_database_url
    )
    async with aiohttp.ClientSession() as http, connecting as loop:
        database = await asyncpg.connect(parts.database_url)
        try:
            arrivals = [
                await _investigate(parts, http, database, alert_type=model.ARRIVAL)
                for _ in range(WARM_UP + notifications)
            ]
            iterated, bare_cpu = [], []
            for number in range(WARM_UP + conversations):
                iterated.append(await _investigate(parts, http, database, alert_type=model.ITERATIONS))
                started = time.process_time()
                await loop.converse(str(number))
                bare_cpu.append(time.process_time() - started)
        finally:
            await database.close()
    asked = _asked(parts.model_log)
    rest = statistics.mean(posted.cpu for posted in arrivals[WARM_UP:])
    cpu = statistics.mean(posted.cpu for posted in iterated[WARM_UP:]) - rest
    counted = range(WARM_UP, WARM_UP + conversations)
    return Figures(
        arrival=_times([asked[posted.name][0]["arrived"] - posted.at for posted in arrivals[WARM_UP:]]),
        tarsy=Side(
            added=_times([gap for number in counted for gap in _gaps(asked[iterated[number].name])]),
            cpu=cpu / model.LENGTH * 1000,
        ),
        bare=Side(
            added=_times([gap for number in counted for gap in _gaps(asked[f"bare/{number}"])]),
            cpu=statistics.mean(bare_cpu[WARM_UP:]) / (model.LENGTH + 1) * 1000,
        ),
    )


async def _investigate(
    parts: rig.Rig, http: aiohttp.ClientSession, database: asyncpg.Connection, *, alert_type: str
) -> _Posted:
    """Post one new alert and wait until nothing is left to do for it, its status included."""
    body = _notification(alert_type)
    cpu, at = _cpu(parts.operator.pid), time.time()
    headers = {"Authorization": f"Bearer {parts.token}"}
    async with http.post(f"{parts.api}/api/v1/webhooks/alertmanager", json=body, headers=headers) as response:
        if response.status != 200:
            raise BenchError(f"the webhook was answered {response.status}: {await response.text()}")
        (outcome,) = (await response.json())["alerts"]
    if outcome["outcome"] != "created":
        raise BenchError(f"the alert was not taken: {outcome}")
    deadline = time.monotonic() + _IDLE_SECONDS
    while await database.fetchval(_BUSY):
        parts.operator.check()
        if time.monotonic() > deadline:
            raise BenchError(f"{outcome['investigation']} took over {_IDLE_SECONDS:g} s; {parts.operator.story()}")
        await asyncio.sleep(0.02)  # the pace of polling
    return _Posted(name=outcome["investigation"], at=at, cpu=_cpu(parts.operator.pid) - cpu)


def _notification(alert_type: str) -> dict[str, Any]:
    alert = {
        "status": "firing",
        "labels": {"alertname": alert_type, "namespace": "shop", "pod": "web-0", "severity": "critical"},
        "annotations": {"summary": "a pod restarts every minute"},
        "startsAt": datetime.now(UTC).isoformat(),
        "fingerprint": uuid.uuid4().hex[:16],
    }
    return {"version": "4", "receiver": "bench", "status": "firing", "groupKey": "{}", "alerts": [alert]}


def _asked(log: Path) -> dict[str, list[dict[str, Any]]]:
    """The model's requests, by investigation (namespace/name), in the order of their arrival."""
    found = defaultdict(list)
    for request in oracle.read(log):
        investigation, _, _ = request["key"]
        found[investigation].append(request)
    return found


def _gaps(asked: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds from the last byte of each answer to the next request of the conversation."""
    if [request["iteration"] for request in asked] != list(range(model.LENGTH + 1)):
        raise BenchError(f"a conversation of {model.LENGTH + 1} requests was expected, not {len(asked)}")
    return [after["arrived"] - before["ended"] for before, after in itertools.pairwise(asked)]


def _times(seconds: Sequence[float]) -> Times:
    return Times(
        median=statistics.median(seconds) * 1000, p95=statistics.quantiles(seconds, n=20)[-1] * 1000, n=len(seconds)
    )


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has taken. Source: proc(5), fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

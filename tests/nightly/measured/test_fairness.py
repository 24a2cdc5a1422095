"""Many agents and few slots: an agent that waits loses no time of its own, and all other callers are served as ever."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import asyncpg
import pytest
from kubernetes.aio import client as kubernetes
from support import manifests, pace
from tarsy.resources import investigations
from tarsy_dev import model

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from support.operators import Operator
    from tarsy.kube import client
    from tarsy_dev import mcp_server


INVESTIGATIONS, AGENTS, CALLS = 50, 10, 3
SLOTS = 20
"""The slots of the provider: 25 agents share one, and each waits for 10 s before each of its calls."""
ANSWER_SECONDS = 0.4
STAGE_SECONDS, ITERATION = 20, "5s"
"""Less than any agent waits for its slots."""
LEASE, BEAT = timedelta(seconds=5), timedelta(seconds=1)
SERVED_SECONDS = 0.1
BUSY = 3
"""So much longer one call in twenty may take where others use the machine."""
STATUS_SECONDS, POLLED_SECONDS = 5.0, 0.5
"""The seconds that a status may be behind, and those that a look at it takes on a busy machine."""
WEBHOOK = "/api/v1/webhooks/alertmanager"


def script(model_call: model.Turn) -> model.Answer:
    """A tool call in each turn but the last."""
    calls = (
        [model.Call(name="tools__lookup", args={"name": "web-0"})]
        if model_call.tools and model_call.iteration < CALLS - 1
        else []
    )
    return model.Answer(text="I see.", calls=model.keyed(model_call, calls), delay=ANSWER_SECONDS)


def notification(*alerts: int) -> bytes:
    """A notification of these alerts, by number."""
    read = [json.loads(manifests.notification(fingerprint=f"{number:016x}"))["alerts"][0] for number in alerts]
    return json.dumps({"version": "4", "receiver": "hook", "status": "firing", "alerts": read}).encode()


class Seen:
    """An operator under load, as seen from outside."""

    def __init__(self, *, api: aiohttp.ClientSession, database: asyncpg.Connection, cluster: client.Cluster) -> None:
        self.served: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """The requests, by path: when (`time.time`), and seconds until the answer."""
        self.behind: list[float] = []
        """Seconds that the status is behind the store which is furthest behind."""
        self.late: list[float] = []
        """Seconds that the renewal of a lease came late, its statement included."""
        self._api = api
        self._database = database
        self._cluster = cluster
        self._revisions: dict[str, dict[int, float]] = defaultdict(dict)
        """When each was first seen, by investigation."""

    async def ask(self, method: str, path: str, body: bytes | None = None) -> None:
        """Ask the operator's API."""
        at, began = time.time(), time.perf_counter()
        status = 503
        while status == 503:  # as Alertmanager does while other notifications are being taken
            async with self._api.request(method, path, data=body) as response:
                status = response.status
                assert status == 200 or (status == 503 and path == WEBHOOK), await response.text()
        self.served[path].append((at, time.perf_counter() - began))

    async def keep_asking(self) -> None:
        """Ten times a second: for health, and with an alert that is known."""
        async with asyncio.TaskGroup() as asking:
            for number in itertools.count():
                asking.create_task(self.ask("GET", "/healthz"))
                asking.create_task(self.ask("GET", "/readyz"))
                asking.create_task(self.ask("POST", WEBHOOK, notification(number % INVESTIGATIONS)))
                await asyncio.sleep(0.1)

    async def watch_store(self) -> None:
        """Look at revisions and leases, all the time."""
        leases: dict[UUID, datetime] = {}
        while True:
            for uid, revision, lease in await self._database.fetch(
                "SELECT investigation, revision, lease_until FROM work"
            ):
                self._revisions[str(uid)].setdefault(revision, time.monotonic())
                if lease and lease != leases.setdefault(uid, lease):
                    self.late.append((lease - leases[uid] - BEAT).total_seconds())
                    leases[uid] = lease
            await asyncio.sleep(0.05)

    async def watch_statuses(self) -> None:
        """Twice a second: for how long the store has had what a status does not show."""
        while True:
            sequences = await self._sequences()
            now = time.monotonic()
            newer = [
                at
                for uid, last in sequences.items()
                for revision_number, at in self._revisions[uid].items()
                if revision_number > last
            ]
            self.behind.append(now - min(newer, default=now))
            await asyncio.sleep(0.5)

    async def _sequences(self) -> dict[str, int]:
        listed: Any = await kubernetes.CustomObjectsApi(self._cluster.api).list_namespaced_custom_object(
            group="tarsy.dev", version="v1alpha1", namespace=self._cluster.served.own, plural=investigations.PLURAL
        )
        return {
            manifest["metadata"]["uid"]: manifest.get("status", {}).get("sequence", 0) for manifest in listed["items"]
        }


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The collector of the test's own process, which holds all that the model was asked, stops no other."""
    gc.disable()
    yield
    gc.enable()


def print_summary(what: str, seconds: Sequence[float]) -> tuple[float, float]:
    """Show how long something took; its median, and what nineteen of twenty took at most."""
    ordered = sorted(seconds)
    most, longest = ordered[len(ordered) * 19 // 20], ordered[-1]
    middle = ordered[len(ordered) // 2]
    print(f"{what}: {len(ordered)} times; median {middle:.3f} s, p95 {most:.3f} s, at most {longest:.3f} s")
    return middle, most


@pytest.mark.usefixtures("uncollected")
async def test_fifty_investigations_of_ten_agents_share_twenty_slots_without_other_delays(
    operator: Operator,
    llm: model.Server,
    toolbox: mcp_server.Server,
    cluster: client.Cluster,
) -> None:
    llm.script = script
    stage = manifests.stage("analysis", replicas=AGENTS, timeoutSeconds=STAGE_SECONDS)
    await operator.apply(manifests.chain(stages=[stage]))
    limits = {"provider_calls": SLOTS, "iteration": ITERATION, "server_calls": 2 * SLOTS}
    process = await operator.start(lease=LEASE, queue={"slots": INVESTIGATIONS}, limits=limits)
    await process.logged("action=mcp_connected")
    headers = {"Authorization": f"Bearer {process.editor}", "Content-Type": "application/json"}
    database = await asyncpg.connect(operator.database_url)
    async with aiohttp.ClientSession(process.url, headers=headers) as api:
        seen = Seen(api=api, database=database, cluster=cluster)
        await seen.ask("POST", WEBHOOK, notification(*range(INVESTIGATIONS)))
        watching = [asyncio.create_task(watch()) for watch in (seen.keep_asking, seen.watch_store, seen.watch_statuses)]
        by_name = await operator.finished()
        for task in watching:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.wait(watching)
    begun = await database.fetchval("SELECT max(started_at) FROM executions")
    outcomes = await database.fetch("SELECT outcome, count(*) FROM executions GROUP BY outcome")
    await database.close()

    assert Counter(manifest["status"]["phase"] for manifest in by_name.values()) == {"Completed": INVESTIGATIONS}
    assert [tuple(row) for row in outcomes] == [("Completed", INVESTIGATIONS * (AGENTS + 1))], "agents and syntheses"
    assert {request.end for request in llm.requests} == {"completed"}
    assert len(llm.requests) == INVESTIGATIONS * (AGENTS * CALLS + 1), "none was asked twice"
    changes = sorted([(sent.arrived, 1) for sent in llm.requests] + [(sent.ended or 0.0, -1) for sent in llm.requests])
    open_calls = list(itertools.accumulate(change for _, change in changes))
    assert max(open_calls) == SLOTS
    last = max(at for (at, _), calls in zip(changes, open_calls, strict=True) if calls == SLOTS)
    print(f"all slots worked for {last - changes[0][0]:.1f} s")

    # Other programs on the same processors delay some answers, and are not in `slowness`: one in twenty may be later.
    at_most = SERVED_SECONDS * max(1.0, pace.slowness())
    for path, times in seen.served.items():
        middle, most = print_summary(path, [took for at, took in times if begun.timestamp() < at < last])
        assert middle < at_most
        assert most < BUSY * at_most
    middle, most = print_summary("heartbeats, late by", seen.late)
    assert middle < at_most
    assert most < BUSY * at_most
    print_summary("statuses, behind by", seen.behind)
    assert max(seen.behind) < (STATUS_SECONDS + POLLED_SECONDS) * max(1.0, pace.slowness())
    await process.stop()

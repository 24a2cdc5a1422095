"""The API server, etcd or Postgres goes away under a running operator, and comes back.

Nothing is restarted but what was killed. The model's answers are held back while a part is away, so that a run is known
to be in the middle; the oracles are the logs of the model and of the tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import database, manifests, waiting
from tarsy_dev import mcp_server, model, patience, proxy
from tarsy_dev import postgres as launcher

if TYPE_CHECKING:
    from support.operators import Operator, Process
    from tarsy_dev.controlplane import ControlPlane

pytestmark = pytest.mark.slow

LEASE = timedelta(seconds=3)
WEBHOOK = "/api/v1/webhooks/alertmanager"
WATCH = "the watch (controller)"
"""What is missing a few seconds after the API server."""
STAGES = ("collect", "analysis")
CHAIN = manifests.chain(stages=[manifests.stage(name) for name in STAGES])


class Held:
    """A script of two stages, each of two reads, a write and a conclusion; it waits until it is told to `go` on."""

    def __init__(self) -> None:
        self._going = asyncio.Event()

    def go(self) -> None:
        self._going.set()

    async def __call__(self, turn: model.Turn) -> model.Answer:
        await self._going.wait()
        calls = {
            0: [model.Call(name="tools__lookup", args={"name": name}) for name in ("a", "b")],
            1: [model.Call(name="tools__restart", args={"name": "web"})],
        }.get(turn.iteration, [])
        text = "" if calls else f"Findings of {turn.key.stage}."
        return model.Answer(text=text, calls=model.keyed(turn, calls))


@contextlib.asynccontextmanager
async def without(plane: ControlPlane, component: str) -> AsyncIterator[None]:
    """A component of the control plane is killed, and started again in the end."""
    await asyncio.to_thread(plane.kill, component)
    try:
        yield
    finally:
        await asyncio.to_thread(plane.start_component, component)


async def readiness(process: Process) -> str:
    """What is missing, "" for nothing."""
    status, answer = await process.request("GET", "/readyz", token="")
    assert (status, answer["status"]) in ((200, "ready"), (503, 503))
    return str(answer.get("detail", ""))


async def reads(process: Process, *missing: str, or_also: str = "") -> None:
    """Wait until this, and nothing else but `or_also`, is said to be missing.

    A watch that gets no answer is asked for anew after 70 s.
    """
    wanted = f"not ready: {'; '.join(missing)}" if missing else ""
    found = None

    async def look() -> bool:
        nonlocal found
        found = await readiness(process)
        return found in (wanted, f"{wanted}; {or_also}")

    try:
        await waiting.seen(look)
    except patience.TooLong as error:
        raise patience.TooLong(f"{error}: /readyz says {found!r}, not {wanted!r}") from None


async def alert(process: Process) -> tuple[int, str]:
    """Post the notification; the status, and the problem where it is one."""
    status, answer = await process.request("POST", WEBHOOK, body=manifests.notification())
    return status, answer.get("detail", "")


def check_calls(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, *, names: Collection[str], again: int = 0
) -> None:
    """Hold the logs of model and tools against what had to be sent: each once, but for the `again` in flight."""
    wanted = {(f"{operator.namespace}/{name}", stage, turn) for name in names for stage in STAGES for turn in range(3)}
    asked = Counter((entry.key.investigation, entry.key.stage, entry.iteration) for entry in llm.requests)
    assert set(asked) == wanted
    called = Counter(call.key for call in toolbox.calls)
    assert len(called) == len(names) * len(STAGES) * 3
    assert asked.total() - len(asked) + called.total() - len(called) <= again
    assert toolbox.restarts == {"web": len(names) * len(STAGES)}
    assert "run_broke" not in operator.log


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
async def test_without_the_api_server_runs_go_on_alerts_are_refused_and_afterwards_all_is_right(
    component: str, operator: Operator, plane: ControlPlane, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    await operator.apply(CHAIN)
    process = await operator.start()
    await reads(process)
    await operator.apply(manifests.investigation("during"))
    await llm.wait_for(lambda requests: len(requests) >= 1)

    async with without(plane, component):
        await reads(process, "the API server (api, controller)", or_also=WATCH)
        status, problem = await alert(process)
        assert (status, problem.endswith("; send it again")) == (503, True)
        script.go()
        await process.logged("ending=Completed")
        if component == "kube-apiserver":
            await reads(process, "the API server (api, controller)", WATCH)

    async def taken() -> bool:
        status, problem = await alert(process)
        assert status == 200 or (status, problem.endswith("; send it again")) == (503, True)
        return status == 200

    await waiting.seen(taken)
    await reads(process)
    await operator.apply(manifests.investigation("after"))
    after = f"{operator.namespace}/after"
    await llm.wait_for(lambda requests: any(one.key.investigation == after for one in requests))
    found = await operator.finished()
    assert len(found) == 3
    for one in found.values():
        assert (one["status"]["phase"], one["status"]["progress"], one["status"]["attempts"]) == ("Completed", "2/2", 1)
        assert one["status"]["finalAnalysis"] == "Findings of analysis."
    check_calls(operator, llm, toolbox, names=found)
    await process.stop()


async def test_an_operator_that_starts_without_an_api_server_works_once_there_is_one(
    operator: Operator, plane: ControlPlane, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    await operator.apply(CHAIN)
    await operator.accounts.kubeconfig("all")  # while there is somebody to ask for it
    async with without(plane, "kube-apiserver"):
        process = await operator.start()
        await reads(process, "the API server (api, controller)", WATCH)
    await reads(process)
    await operator.apply(manifests.investigation())
    found = await operator.finished("web-crash")
    assert found["web-crash"]["status"]["phase"] == "Completed"
    await process.stop()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[launcher.Server]:
    """A server of the test's own, instead of the run's: to be killed."""
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        yield server


@pytest.fixture
def migrated_url(postgres: launcher.Server) -> str:
    """A database on that server."""
    return database.create_migrated(postgres, "outages")


async def begun(operator: Operator, llm: model.Server, **options: Any) -> Process:
    """A process that is ready, with an investigation whose first question waits for its answer."""
    await operator.apply(CHAIN)
    process = await operator.start(**options)
    await reads(process)
    await operator.apply(manifests.investigation())
    await llm.wait_for(lambda requests: len(requests) >= 1)
    return process


async def check_outage(process: Process) -> None:
    """Without its database a process says so, takes nothing, and tells nothing."""
    await reads(process, "the database (api, controller, worker)")
    status, problem = await alert(process)
    assert (status, problem.endswith("; send it again")) == (503, True)
    assert (await process.request("GET", f"/api/v1/investigations/{uuid.uuid4()}"))[0] == 503
    assert (await process.request("GET", "/healthz"))[0] == 200


async def check_afterwards(operator: Operator, process: Process) -> dict[str, Any]:
    """Once it is back the alert is taken, what was under way ends well, and it is the same process."""
    await reads(process)
    status, _ = await alert(process)
    assert status == 200
    found = await operator.finished()
    assert [one["status"]["phase"] for one in found.values()] == ["Completed", "Completed"]
    await process.stop()
    return found


async def test_a_short_end_of_the_database_repeats_nothing(
    operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    process = await begun(operator, llm, lease=timedelta(minutes=10))
    await asyncio.to_thread(postgres.stop)
    await check_outage(process)
    script.go()
    await process.logged("action=commit_waits")
    assert len(llm.requests) == 1
    await asyncio.to_thread(postgres.start)
    found = await check_afterwards(operator, process)
    assert found["web-crash"]["status"]["attempts"] == 1
    check_calls(operator, llm, toolbox, names=found)


@pytest.mark.parametrize("under_way", ["a model call", "a call of a tool that writes"])
async def test_a_crash_of_the_database_that_outlasts_the_lease_repeats_nothing_committed(
    under_way: str, operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    process = await begun(operator, llm, lease=LEASE)
    released = asyncio.Event()

    async def hold(call: mcp_server.Call) -> None:
        if call.tool == "restart":
            await released.wait()

    if under_way != "a model call":
        toolbox.hold = hold
        script.go()
        await toolbox.wait_for(lambda _: toolbox.of(tool="restart"))
    await asyncio.to_thread(postgres.kill)
    await process.logged("action=heartbeat_failed")
    passed = time.monotonic() + 2 * LEASE.total_seconds()
    await check_outage(process)
    script.go()
    released.set()
    await process.logged("action=commit_waits")
    sent = len(llm.requests), len(toolbox.calls)

    async def over() -> bool:
        assert sent == (len(llm.requests), len(toolbox.calls))
        return time.monotonic() > passed

    await waiting.seen(over)
    await asyncio.to_thread(postgres.start)
    found = await check_afterwards(operator, process)
    check_calls(operator, llm, toolbox, names=found, again=1)


async def check_successor(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, script: Held, *, attempts: int
) -> None:
    """The model's socket was closed, and another process goes on."""
    (request,) = llm.requests
    assert await llm.wait_for(lambda _: request.end) == "client closed"
    script.go()
    await operator.start(lease=LEASE)
    found = await operator.finished()
    status = found["web-crash"]["status"]
    assert (status["phase"], status["attempts"]) == ("Completed", attempts)
    check_calls(operator, llm, toolbox, names=found, again=1)


async def test_an_operator_that_stops_without_an_api_server_gives_its_run_back(
    operator: Operator, plane: ControlPlane, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    process = await begun(operator, llm, lease=timedelta(minutes=10))
    async with without(plane, "kube-apiserver"):
        await reads(process, "the API server (api, controller)", or_also=WATCH)
        await process.stop()
    assert "action=released" in process.log
    await check_successor(operator, llm, toolbox, script, attempts=1)


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_an_operator_that_stops_without_a_database_ends_well_and_its_lease_passes(
    how: str, operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        url = operator.database_url.replace(f":{postgres.port}/", f":{between.port}/")
        process = await begun(operator, llm, lease=LEASE, env={"DATABASE_URL": url})
        if how == "gone":
            between.refuse()
            between.cut()
        else:
            between.blackhole()
        await reads(process, "the database (api, controller, worker)")
        await process.stop()
    assert "action=release_failed" in process.log
    await check_successor(operator, llm, toolbox, script, attempts=2)

"""An operator with a run in its hands while a part of its surroundings is away, and what has to be true of it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Any

from support import manifests, waiting
from tarsy_dev import mcp_server, model, patience
from tarsy_dev import postgres as launcher

if TYPE_CHECKING:
    from support.operators import Operator, Process
    from tarsy_dev.controlplane import ControlPlane

WATCH = "the watch (controller)"
"""The part that is missing a few seconds after the API server."""
WEBHOOK = "/api/v1/webhooks/alertmanager"
STAGES = ("collect", "analysis")
CHAIN = manifests.chain(stages=[manifests.stage(name) for name in STAGES])


class Held:
    """A script of two stages, each of two reads, a write and a conclusion; it waits until it is told to `go` on."""

    def __init__(self) -> None:
        self._going = asyncio.Event()

    def go(self) -> None:
        self._going.set()

    async def __call__(self, request: model.Turn) -> model.Answer:
        await self._going.wait()
        calls = {
            0: [model.Call(name="tools__lookup", args={"name": name}) for name in ("a", "b")],
            1: [model.Call(name="tools__restart", args={"name": "web"})],
        }.get(request.iteration, [])
        text = "" if calls else f"Findings of {request.key.stage}."
        return model.Answer(text=text, calls=model.keyed(request, calls))


@contextlib.asynccontextmanager
async def without(plane: ControlPlane, component: str) -> AsyncIterator[None]:
    """A component of the control plane is killed, and started again in the end."""
    await asyncio.to_thread(plane.kill, component)
    try:
        yield
    finally:
        await asyncio.to_thread(plane.start_component, component)


async def readiness(process: Process) -> str:
    """Return the parts that are missing, "" for none."""
    status, answer = await process.request("GET", "/readyz", token="")
    assert (status, answer["status"]) in ((200, "ready"), (503, 503))
    return str(answer.get("detail", ""))


async def reads(process: Process, *missing: str, or_also: str = "") -> None:
    """Wait until this, and nothing else but `or_also`, is said to be missing.

    A watch that gets no answer is asked for anew after 70 s.
    """
    wanted = f"not ready: {'; '.join(missing)}" if missing else ""
    detail = None

    async def matches() -> bool:
        nonlocal detail
        detail = await readiness(process)
        return detail in (wanted, f"{wanted}; {or_also}")

    try:
        await waiting.seen(matches)
    except patience.TooLong as error:
        raise patience.TooLong(f"{error}: /readyz says {detail!r}, not {wanted!r}") from None


async def alert(process: Process) -> tuple[int, str]:
    """Post the notification; the status, and the problem where it is one."""
    status, answer = await process.request("POST", WEBHOOK, body=manifests.notification())
    return status, answer.get("detail", "")


def check_calls(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, *, names: Collection[str], again: int = 0
) -> None:
    """Hold the logs of model and tools against what had to be sent: each once, but for the `again` in flight."""
    wanted = {(f"{operator.namespace}/{name}", stage, step) for name in names for stage in STAGES for step in range(3)}
    asked = Counter((entry.key.investigation, entry.key.stage, entry.iteration) for entry in llm.requests)
    assert set(asked) == wanted
    called = Counter(call.key for call in toolbox.calls)
    assert len(called) == len(names) * len(STAGES) * 3
    assert asked.total() - len(asked) + called.total() - len(called) <= again
    assert toolbox.restarts == {"web": len(names) * len(STAGES)}
    assert "run_broke" not in operator.log


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
    by_name = await operator.finished()
    assert [doc["status"]["phase"] for doc in by_name.values()] == ["Completed", "Completed"]
    await process.stop()
    return by_name


async def outlast_api_server(
    operator: Operator, plane: ControlPlane, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    """Take the API server from an operator with a run, and check what is refused and goes on."""
    llm.script = script = Held()
    await operator.apply(CHAIN)
    process = await operator.start()
    await reads(process)
    await operator.apply(manifests.investigation("during"))
    await llm.wait_for(lambda requests: len(requests) >= 1)

    async with without(plane, "kube-apiserver"):
        await reads(process, "the API server (api, controller)", or_also=WATCH)
        status, problem = await alert(process)
        assert (status, problem.endswith("; send it again")) == (503, True)
        script.go()
        await process.logged("ending=Completed")
        await reads(process, "the API server (api, controller)", WATCH)

    async def is_taken() -> bool:
        status, problem = await alert(process)
        assert status == 200 or (status, problem.endswith("; send it again")) == (503, True)
        return status == 200

    await waiting.seen(is_taken)
    await reads(process)
    await operator.apply(manifests.investigation("after"))
    after = f"{operator.namespace}/after"
    await llm.wait_for(lambda requests: any(request.key.investigation == after for request in requests))
    by_name = await operator.finished()
    assert len(by_name) == 3
    for doc in by_name.values():
        assert (doc["status"]["phase"], doc["status"]["progress"], doc["status"]["attempts"]) == ("Completed", "2/2", 1)
        assert doc["status"]["finalAnalysis"] == "Findings of analysis."
    check_calls(operator, llm, toolbox, names=by_name)
    await process.stop()


async def outlast_database(
    operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    """Let Postgres crash and the leases pass during a call of a tool that writes; nothing committed is repeated.

    With one slot, which its run has, so that it does not take its own run over.
    """
    llm.script = script = Held()
    process = await begun(operator, llm, queue={"slots": 1})
    released = asyncio.Event()

    async def hold(call: mcp_server.Call) -> None:
        if call.tool == "restart":
            await released.wait()

    toolbox.hold = hold
    script.go()
    await toolbox.wait_for(lambda _: toolbox.calls_of(tool="restart"))
    await operator.let_leases_pass()
    await asyncio.to_thread(postgres.kill)
    await check_outage(process)
    released.set()
    await process.logged("action=commit_waits")
    await asyncio.to_thread(postgres.start)
    by_name = await check_afterwards(operator, process)
    check_calls(operator, llm, toolbox, names=by_name, again=1)

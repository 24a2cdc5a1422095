"""Controls in the spec of an investigation: suspend it, hurry it, choose its chain, let it expire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import asyncpg
from support import manifests
from tarsy_dev import mcp_server, model, patience

if TYPE_CHECKING:
    from support.operators import Operator


async def patch(operator: Operator, name: str, **spec: Any) -> None:
    await operator.kubectl("patch", "inv", name, "--type=merge", "--patch", json.dumps({"spec": spec}))


async def status(operator: Operator, name: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The object's status, as soon as it is as `wanted`."""
    async with patience.limit():
        while True:
            object_status = json.loads(await operator.kubectl("get", "inv", name, "-o", "json")).get("status", {})
            if wanted(object_status):
                return dict(object_status)


async def heartbeats(operator: Operator, count: int) -> None:
    """Wait for that many heartbeats of the one run: what the first tells its worker is known before the second."""
    connection = await asyncpg.connect(operator.database_url)
    try:
        leases = set[Any]()
        async with patience.limit():
            while len(leases) <= count:
                leases.add(await connection.fetchval("SELECT lease_until FROM work"))
    finally:
        await connection.close()


async def test_a_suspended_run_stops_after_its_commit_and_goes_on_in_the_same_conversation(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    suspended = asyncio.Event()

    async def script(model_call: model.Turn) -> model.Answer:
        if len(model_call.messages) > 2:
            return model.Answer(text="root cause")
        await suspended.wait()
        return model.Answer(text="Looking.", calls=model.keyed(model_call, [model.Call(name="tools__lookup", args={})]))

    llm.script = script
    process = await operator.start(queue={"heartbeat": "1s"})
    await operator.apply(manifests.chain(), manifests.investigation())
    await llm.wait_for(lambda requests: len(requests) >= 1)
    await patch(operator, "web-crash", suspend=True)
    await status(operator, "web-crash", lambda reported: reported.get("observedGeneration") == 2)
    await heartbeats(operator, 2)
    suspended.set()
    held = await status(operator, "web-crash", lambda reported: reported["phase"] == "Suspended")
    assert (held["usage"]["llmCalls"], len(llm.requests), toolbox.calls) == (1, 1, []), "its answer is kept, no more"
    assert held["attempts"] == 0

    await patch(operator, "web-crash", suspend=False)
    ((_, manifest),) = (await operator.finished()).items()
    assert (manifest["status"]["phase"], manifest["status"]["finalAnalysis"]) == ("Completed", "root cause")
    assert (len(llm.requests), len(toolbox.calls)) == (2, 1)
    assert "broke" not in process.log


async def test_investigation_suspended_in_the_queue_is_never_sent_and_can_be_cancelled(
    operator: Operator, llm: model.Server
) -> None:
    await operator.start()
    await operator.apply(manifests.chain(), manifests.investigation(suspend=True))
    await status(operator, "web-crash", lambda reported: reported.get("phase") == "Suspended")
    await patch(operator, "web-crash", cancel=True)
    ((_, manifest),) = (await operator.finished()).items()
    assert manifest["status"]["phase"] == "Cancelled"
    assert llm.requests == []


async def test_a_chain_may_be_chosen_by_name(operator: Operator, llm: model.Server) -> None:
    llm.script = model.answers("root cause")
    await operator.start()
    await operator.apply(manifests.chain(), manifests.chain("something else", name="special"))
    await operator.apply(manifests.investigation("by-name", chainRef={"name": "special"}))
    await operator.apply(manifests.investigation("by-type"))
    by_name = await operator.finished()
    assert {name: manifest["status"]["chain"]["name"] for name, manifest in by_name.items()} == {
        "by-name": "special",
        "by-type": "kubernetes",
    }


async def test_ended_object_is_deleted_after_its_time_to_live_and_keeps_its_transcript(
    operator: Operator, llm: model.Server
) -> None:
    is_known = asyncio.Event()

    async def script(_: model.Turn) -> model.Answer:
        await is_known.wait()  # an object that is gone tells no uid
        return model.Answer(text="root cause")

    llm.script = script
    process = await operator.start()
    await operator.apply(manifests.chain(ttlSecondsAfterFinished=0))
    await operator.apply(
        manifests.investigation("kept", ttlSecondsAfterFinished=3600), manifests.investigation("brief")
    )
    uid = json.loads(await operator.kubectl("get", "inv", "brief", "-o", "json"))["metadata"]["uid"]
    is_known.set()
    await operator.kubectl("wait", "--for=delete", "inv/brief", "--timeout=60s")
    remaining = json.loads(await operator.kubectl("get", "inv", "-o", "json"))["items"]
    assert [manifest["metadata"]["name"] for manifest in remaining] == ["kept"]
    _, read = await process.request("GET", f"/api/v1/investigations/{uid}/export")
    assert read["ending"] == "Completed", "to expire is no cancel"
    assert read["messages"][-1]["text"] == "root cause"


async def test_its_chain_has_a_run_cancelled_when_its_alert_resolves(operator: Operator, llm: model.Server) -> None:
    llm.script = lambda _call: model.Hang()
    process = await operator.start()
    await operator.apply(manifests.chain(onResolved="Cancel"))
    await process.request("POST", "/api/v1/webhooks/alertmanager", body=manifests.notification("firing"))
    await llm.wait_for(lambda requests: len(requests) >= 1)
    await process.request("POST", "/api/v1/webhooks/alertmanager", body=manifests.notification("resolved"))
    ((_, manifest),) = (await operator.finished()).items()
    assert (manifest["status"]["phase"], manifest["status"]["alertStatus"]) == ("Cancelled", "resolved")
    (why,) = {condition["reason"] for condition in manifest["status"]["conditions"] if condition["type"] == "Cancelled"}
    assert why == "AlertResolved"

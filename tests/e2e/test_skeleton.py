"""Actions of and on one alert: repeats, cancel, delete, limits, large data, broken chains."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from support import manifests
from tarsy_dev import mcp_server, model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

WEBHOOK = "/api/v1/webhooks/alertmanager"
ALERTS = "/api/v1/alerts"
LOOK = model.Answer(calls=(model.Call(name="tools__lookup"),))


async def objects(operator: Operator) -> dict[str, Any]:
    items = json.loads(await operator.kubectl("get", "inv", "-o", "json"))["items"]
    return {manifest["metadata"]["name"]: manifest for manifest in items}


async def closed(llm: model.Server) -> float:
    """Seconds until the model's first request was closed by its client, from now."""
    started = time.time()
    request = await llm.wait_for(lambda requests: next((r for r in requests if r.ended), None))
    assert request.end == "client closed"
    assert request.ended is not None
    return request.ended - started


async def test_ten_concurrent_equal_notifications_make_one_run_and_none_after_deletion(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers(LOOK, "root cause")
    process = await operator.start()
    await operator.apply(manifests.chain())
    body = manifests.notification(annotations={"token": "Authorization: Bearer abcdefghijklmnop0123456789"})
    receipts = await asyncio.gather(*(process.notify(body) for _ in range(10)))
    outcomes = sorted(alert["outcome"] for receipt in receipts for alert in receipt["alerts"])
    assert outcomes == ["created"] + ["repeated"] * 9
    ((name, manifest),) = (await operator.finished()).items()
    assert len(llm.requests) == 2
    assert name.startswith("kubepodcrashlooping-6eb8c03418906421-")
    assert "abcdefghijklmnop" not in json.dumps(manifest)
    assert "abcdefghijklmnop" not in json.dumps(llm.requests[0].body)

    await operator.kubectl("delete", "inv", name)
    _, receipt = await process.request("POST", WEBHOOK, body=body)
    assert [alert["outcome"] for alert in receipt["alerts"]] == ["repeated"]
    assert await objects(operator) == {}
    assert len(llm.requests) == 2


async def test_repeats_and_resolution_are_shown_on_the_object(operator: Operator, llm: model.Server) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await operator.apply(manifests.chain())
    await process.request("POST", WEBHOOK, body=manifests.notification())
    await process.request("POST", WEBHOOK, body=manifests.notification())
    status, receipt = await process.request("POST", WEBHOOK, body=manifests.notification("resolved"))
    assert (status, receipt["alerts"][0]["outcome"]) == (200, "resolved")
    async with patience.limit():
        while True:
            (manifest,) = (await objects(operator)).values()
            reported = manifest.get("status", {})
            if (reported.get("duplicates"), reported.get("alertStatus")) == (1, "resolved"):
                break


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_cancel_and_delete_close_a_hanging_models_socket_within_a_second(
    operator: Operator, llm: model.Server, how: str
) -> None:
    llm.script = lambda _call: model.Hang()
    process = await operator.start(env={"TARSY_LOG_FORMAT": "json"})
    await operator.apply(manifests.chain(), manifests.investigation())
    await llm.wait_for(lambda requests: len(requests) >= 1)
    (manifest,) = (await objects(operator)).values()
    if how == "cancel":
        await operator.kubectl("patch", "inv", "web-crash", "--type=merge", "--patch", '{"spec":{"cancel":true}}')
    else:
        await operator.kubectl("delete", "inv", "web-crash")
    assert await closed(llm) < 20, "of 120"
    await process.logged('"ending": "Cancelled"')
    logged = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    log_lines = [line for line in logged if line.get("uid") == manifest["metadata"]["uid"]]
    assert {line["investigation"] for line in log_lines} == {f"{operator.namespace}/web-crash"}
    assert [line["action"] for line in log_lines] == ["run_started", "stage_started", "execution_started", "run_ended"]
    _, read = await process.request("GET", f"/api/v1/investigations/{manifest['metadata']['uid']}")
    assert (read["ending"], read["cancel"]) == (
        "Cancelled",
        "user" if how == "cancel" else "deleted",
    )
    if how == "cancel":
        ((_, ended),) = (await operator.finished()).items()
        conditions = {condition["type"]: condition["status"] for condition in ended["status"]["conditions"]}
        assert conditions == {"Accepted": "True", "Finished": "True", "Cancelled": "True"}
        assert ended["status"]["observedGeneration"] == ended["metadata"]["generation"] == 2
    assert len(llm.requests) == 1


async def test_chain_edit_does_not_change_a_running_investigation(operator: Operator, llm: model.Server) -> None:
    edited = asyncio.Event()

    async def script(model_call: model.Turn) -> model.Answer:
        await edited.wait()
        return model.Answer(text=f"analysis of {model_call.key.stage}")

    llm.script = script
    await operator.start()
    await operator.apply(manifests.chain(), manifests.investigation())
    await llm.wait_for(lambda requests: len(requests) >= 1)
    await operator.apply(manifests.chain(stages=[manifests.stage("other")]))
    edited.set()
    ((_, manifest),) = (await operator.finished()).items()
    assert [stage["name"] for stage in manifest["status"]["stages"]] == ["analysis"]
    assert manifest["status"]["chain"]["generation"] == 1


async def test_broken_chain_and_its_refused_investigation_show_the_problem(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    await operator.start()
    broken = manifests.chain("broken", name="broken", stages=[manifests.stage("look", agent="Nobody")])
    await operator.apply(manifests.chain(), manifests.chain("kubernetes", "other", name="rival"), broken)
    items = json.loads(await operator.kubectl("get", "chains", "-o", "json"))["items"]
    claimants = [manifest["metadata"] for manifest in items if manifest["metadata"]["name"] != "broken"]
    older, younger = sorted(claimants, key=lambda metadata: (metadata["creationTimestamp"], metadata["name"]))
    wanted = {older["name"]: ("True", "Ready"), younger["name"]: ("False", "AlertTypeConflict")}
    wanted["broken"] = ("False", "ReferenceNotFound")
    async with patience.limit():
        while True:
            items = json.loads(await operator.kubectl("get", "chains", "-o", "json"))["items"]
            ready = {
                manifest["metadata"]["name"]: (condition["status"], condition["reason"])
                for manifest in items
                for condition in manifest.get("status", {}).get("conditions", [])
                if condition["type"] == "Ready"
            }
            if ready == wanted:
                break
    message = (
        "Chain 'broken' stage 'look' references unknown agent 'Nobody'. "
        "Available agents: ChatAgent, KubernetesAgent, SynthesisAgent"
    )
    assert message in await operator.kubectl("describe", "chain", "broken")
    await operator.apply(manifests.investigation(alertType="broken"))
    ((_, manifest),) = (await operator.finished()).items()
    assert manifest["status"]["phase"] == "Failed"
    assert message in manifest["status"]["message"]
    assert (await operator.event("web-crash", "Failed"))["type"] == "Warning"
    assert llm.requests == []


async def test_chain_defines_its_agents_filters_their_tools_and_stops_on_stage_failure(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    def script(model_call: model.Turn) -> model.Reply:
        if model_call.iteration:
            return model.HttpError(status=400, message="no more")
        calls = [model.Call(name=f"tools__{name}", args={"name": "web-0"}) for name in ("lookup", "restart")]
        return model.Answer(calls=model.keyed(model_call, calls))

    llm.script = script
    await operator.start()
    agents = [{"name": "Own", "mcpServers": ["tools"], "customInstructions": "Look at disks first."}]
    looks = manifests.stage("look", agent="Own", tools={"allow": ["tools.*"], "deny": ["*.restart"]})
    stages = [looks, manifests.stage("act")]
    await operator.apply(manifests.chain(agents=agents, stages=stages, failurePolicy="Stop"), manifests.investigation())
    ((_, manifest),) = (await operator.finished()).items()
    status = manifest["status"]
    assert (status["phase"], status["progress"]) == ("Failed", "1/2")
    assert [stage["phase"] for stage in status["stages"]] == ["Failed", "Skipped"]
    assert "skipped by failurePolicy Stop: stage 'look' failed" in status["stages"][1]["message"]
    assert {request.key.stage for request in llm.requests} == {"look"}
    assert "Look at disks first." in llm.requests[0].body["systemInstruction"]["parts"][0]["text"]
    assert [call.tool for call in toolbox.calls] == ["lookup"]
    assert "There is no tool 'tools.restart'" in json.dumps(llm.requests[1].body)


async def test_posted_alerts_are_accepted_completely_or_refused_with_the_reason(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()

    async def post(body: Any) -> tuple[int, Any]:
        return await process.request(
            "POST", ALERTS, body=body if isinstance(body, bytes) else json.dumps(body).encode()
        )

    no_chain = "No chain found for alert type 'nothing'. Available alert types: none"
    assert await post({"alert_type": "nothing", "data": "x"}) == (
        400,
        {
            "type": "about:blank",
            "status": 400,
            "title": "Bad Request",
            "detail": no_chain,
            "errors": [{"place": "alert_type", "message": no_chain}],
        },
    )
    await operator.apply(manifests.chain())
    large = "größer 🚨 " * 40_000
    status, taken = await post({"alert_type": "kubernetes", "data": large, "severity": "critical"})
    assert (status, taken["status"], taken["message"]) == (202, "queued", "Alert queued for processing")
    ((_, manifest),) = (await operator.finished()).items()
    assert manifest["metadata"]["uid"] == taken["alert_id"]
    assert (taken["namespace"], taken["name"]) == (operator.namespace, manifest["metadata"]["name"])
    assert "alertDataRef" in manifest["spec"]
    assert large.strip() in llm.requests[0].body["contents"][0]["parts"][0]["text"]

    status, taken = await post({"alert_type": "nothing", "data": "x"})
    assert (status, taken["message"]) == (
        202,
        "Alert queued for processing as 'kubernetes': no chain takes 'nothing'",
    )
    status, problem = await post({"alert_type": "kubernetes", "data": "x" * (1024 * 1024 + 1)})
    assert (status, problem["detail"]) == (413, "alert data exceeds maximum size of 1048576 bytes")
    assert (await post({"alert_type": "kubernetes", "data": "x", "more": 1}))[0] == 422
    assert (await post(b"{"))[0] == 400
    assert (await post(b'{"alert_type": "kubernetes", "data": "\\u0000 \\ud800 \\u0007"}'))[0] == 202
    assert (await process.request("POST", ALERTS, body=b"{}", token="wrong"))[0] == 401
    await operator.finished()


async def test_idempotency_key_is_valid_for_one_alert(operator: Operator, llm: model.Server) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await operator.apply(manifests.chain("kubernetes", "other"))

    async def post(alert_data: str, alert_type: str = "kubernetes") -> tuple[int, Any]:
        body = json.dumps({"alert_type": alert_type, "data": alert_data}).encode()
        return await process.request("POST", ALERTS, body=body, headers={"Idempotency-Key": "deploy-17"})

    first, again = await post("web-0 restarts"), await post("web-0 restarts")
    assert first == again
    assert first[0] == 202
    for status, problem in (await post("web-1 restarts"), await post("web-0 restarts", "other")):
        assert (status, problem["detail"]) == (
            422,
            "header.Idempotency-Key: it was used for another alert; use one key for each alert",
        )
    assert len(await operator.finished()) == 1


async def test_a_full_queue_is_to_be_tried_again(operator: Operator, llm: model.Server) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start(role="api", queue={"max_queued": 1})
    await operator.apply(manifests.chain())
    assert (await process.request("POST", WEBHOOK, body=manifests.notification()))[0] == 200
    later = manifests.notification(fingerprint="19da250ce641f6cc")
    status, problem = await process.request("POST", WEBHOOK, body=later)
    assert (status, "queued already" in problem["detail"]) == (503, True)
    for news in (manifests.notification(), manifests.notification("resolved")):
        assert (await process.request("POST", WEBHOOK, body=news))[0] == 200, "a repeat and a resolve need no room"
    await operator.start(role="worker")
    await operator.start(role="controller")
    await operator.finished()
    assert (await process.request("POST", WEBHOOK, body=later))[0] == 200


async def test_bodies_that_are_no_notification_or_too_large_are_refused(operator: Operator) -> None:
    process: Process = await operator.start(role="api")
    assert (await process.request("POST", WEBHOOK, body=b"alert"))[0] == 400
    assert (await process.request("POST", WEBHOOK, body=b'{"version": "3"}'))[0] == 400
    try:
        status, _ = await process.request("POST", WEBHOOK, body=b" " * (10 * 1024 * 1024 + 1))
        assert status == 413
    except aiohttp.ClientOSError:
        pytest.fail("the connection was closed before the answer could be read")

"""The roles in processes of their own, of which workers alone have the keys of LLM providers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import asyncpg
from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

KEYLESS = {"MODEL_KEY": ""}
WEBHOOK = "/api/v1/webhooks/alertmanager"
CHAIN = manifests.chain("KubePodCrashLooping")


async def condition(operator: Operator, kind: str, status: str) -> dict[str, Any]:
    """The condition of the chain `kubernetes`, once it has that status."""
    await operator.kubectl("wait", "chain/kubernetes", f"--for=condition={kind}={status}", "--timeout=60s")
    chain = json.loads(await operator.kubectl("get", "chain", "kubernetes", "-o", "json"))
    (matching,) = [candidate for candidate in chain["status"]["conditions"] if candidate["type"] == kind]
    return dict(matching)


async def test_alerts_wait_for_a_worker_and_are_refused_only_while_no_worker_can_ask_the_model(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = lambda _call: model.Answer(text="root cause")
    api = await operator.start(role="api", env=KEYLESS)
    await operator.start(role="controller", env=KEYLESS)
    await operator.apply(CHAIN)
    usable = await condition(operator, "ProvidersUsable", "Unknown")
    assert usable["reason"] == "NoWorker"
    await condition(operator, "Ready", "True")
    alert = json.dumps({"alert_type": "KubePodCrashLooping", "data": "web-0 restarts"}).encode()
    status, posted = await api.request("POST", "/api/v1/alerts", body=alert)
    assert status == 202, posted
    status, notified = await api.request("POST", WEBHOOK, body=manifests.notification())
    assert status == 200, notified
    await operator.apply(manifests.investigation("by-hand", alertType="KubePodCrashLooping"))
    await operator.kubectl("wait", "inv", "--all", "--for=condition=Accepted", "--timeout=60s")

    keyless = await operator.start(role="worker", env=KEYLESS)
    why = "environment variable MODEL_KEY is not set"
    usable = await condition(operator, "ProvidersUsable", "False")
    assert (usable["reason"], usable["message"]) == (
        "ProviderUnusable", f"LLM provider 'scripted' cannot be used: {why}"
    )  # fmt: skip
    assert (await condition(operator, "Ready", "False"))["reason"] == "ProviderUnusable"
    status, refused = await api.request("POST", "/api/v1/alerts", body=alert)
    assert status == 400
    assert why in refused["detail"]
    phases = await operator.kubectl("get", "inv", "-o", "jsonpath={.items[*].status.phase}")
    assert phases.split() == ["Queued"] * 3, "what was accepted waits for a worker with the key"

    await operator.start(role="worker")
    by_name = await operator.finished()
    assert [manifest["status"]["phase"] for manifest in by_name.values()] == ["Completed"] * 3
    await condition(operator, "Ready", "True")
    assert "(in 1 of 2 workers)" in (await condition(operator, "ProvidersUsable", "False"))["message"]
    await keyless.stop()
    await condition(operator, "ProvidersUsable", "True")


async def test_investigation_that_no_worker_can_run_for_ten_minutes_fails_with_advice(operator: Operator) -> None:
    await operator.apply(CHAIN)
    await operator.start(role="controller", env=KEYLESS)
    await operator.apply(manifests.investigation("waits", alertType="KubePodCrashLooping"))
    await operator.kubectl("wait", "inv/waits", "--for=condition=Accepted", "--timeout=60s")
    await operator.start(role="worker", env=KEYLESS)
    connection = await asyncpg.connect(operator.database_url)
    while not await connection.fetchval(
        "UPDATE work SET passed_over_since = passed_over_since - interval '10 min' "
        "WHERE passed_over_since IS NOT NULL RETURNING true"
    ):
        pass  # the statement itself gives way to the others
    await connection.close()
    status = (await operator.finished("waits"))["waits"]["status"]
    (failed,) = [candidate for candidate in status["conditions"] if candidate["type"] == "Failed"]
    assert (status["phase"], failed["reason"]) == ("Failed", "ProviderUnusable")
    assert "LLM provider 'scripted' cannot be used: environment variable MODEL_KEY is not set" in failed["message"]
    assert "Give the workers what is missing" in failed["message"]

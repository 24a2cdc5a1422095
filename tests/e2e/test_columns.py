"""Columns of investigations in kubectl: servers that were away, and a provider that is asked again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

WEBHOOK = "/api/v1/webhooks/alertmanager"
LABELS = {"alertname": "KubePodCrashLooping", "namespace": "shop", "pod": "web-0", "severity": "critical"}


async def test_kubectl_shows_that_the_servers_of_an_investigation_were_away(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("# Analysis\n\nThe memory limit of **web-0** is too low.")
    operator.configure(mcp_servers={"tools": {"transport": {"type": "http", "url": "http://127.0.0.1:1/mcp"}}})
    process = await operator.start()
    await operator.apply(manifests.chain(executiveSummary={"enabled": True}))
    status, _ = await process.request("POST", WEBHOOK, body=manifests.notification(labels=LABELS))
    assert status == 200
    ((name, manifest),) = (await operator.finished()).items()
    missing = "Could not be looked at: MCP server tools could not be reached (stage analysis)."
    message = "KubernetesAgent: none of its MCP servers could be reached: tools"
    reported = manifest["status"]
    assert reported["message"] == f"stage 'analysis' completed with errors: {message}"
    assert reported["summary"].startswith(f"{missing}\n")
    assert reported["finalAnalysis"].startswith(f"{missing}\n\n# Analysis")
    assert (reported["headline"], reported["target"]) == (missing, "shop/web-0")
    assert [(stage_status["phase"], stage_status["agents"]) for stage_status in reported["stages"]] == [
        ("CompletedWithErrors", "1/1")
    ]
    assert manifest["spec"]["alertType"] == "kubernetes", "the default chain took it"
    assert manifest["metadata"]["labels"] == {
        "tarsy.dev/alertname": "KubePodCrashLooping",
        "tarsy.dev/namespace": "shop",
        "tarsy.dev/severity": "critical",
        "tarsy.dev/workload": "web-0",
    }

    columns, row = (await operator.kubectl("get", "inv")).splitlines()
    assert columns.split() == ["NAME", "ALERT", "CHAIN", "PHASE", "GROUNDED", "PROGRESS", "SUMMARY", "AGE"]
    assert row.split()[:6] == [name, "kubernetes", "kubernetes", "CompletedWithErrors", "False", "1/1"]
    assert missing in row
    columns, row = (await operator.kubectl("get", "inv", "-o", "wide")).splitlines()
    assert columns.split()[8:] == ["ALERTNAME", "TARGET", "ALERTS", "STAGE", "REASON", "DURATION", "TOKENS"]
    assert row.split()[-5:] == [
        "KubePodCrashLooping",
        "shop/web-0",
        "StagesFailed",
        reported["duration"],
        str(reported["usage"]["totalTokens"]),
    ], "it has ended: there is no stage"
    by_label = await operator.kubectl("get", "inv", "-l", "tarsy.dev/workload=web-0", "-o", "name")
    assert by_label.strip() == f"alertinvestigation.tarsy.dev/{name}"

    event = await operator.event(name, "ToolsUnavailable", telling=message)
    assert event["type"] == "Warning"
    await process.stop()


async def test_retry_is_seen_by_kubectl_and_in_the_timeline_while_it_is_waited_for(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = lambda _: model.HttpError(status=429, message="slow down", retry_after=100)
    process = await operator.start()
    await operator.apply(manifests.chain(), manifests.investigation())
    # The provider asks for longer than the test takes: what is seen here is seen while it lasts.
    await operator.kubectl("wait", "inv/web-crash", "--for=jsonpath={.status.message}", "--timeout=60s")
    manifest = json.loads(await operator.kubectl("get", "inv", "web-crash", "-o", "json"))
    reported = manifest["status"]
    assert (reported["phase"], reported["message"][:10]) == ("Running", "scripted: ")
    assert "slow down" in reported["message"]
    (condition,) = [candidate for candidate in reported["conditions"] if candidate["type"] == "Reconciling"]
    assert condition["message"].startswith("as of 20")
    assert condition["message"].endswith(f"; {reported['message']}")
    _, page = await process.request("GET", f"/api/v1/investigations/{manifest['metadata']['uid']}/timeline")
    (event,) = [event for event in page["events"] if event["type"] == "model_retry"]
    assert (event["metadata"]["provider"], event["metadata"]["code"]) == ("scripted", "429")
    assert f"{event['metadata']['again_at'][:19]}Z" in reported["message"]
    assert "action=model_retry" in operator.log
    await operator.kubectl("patch", "inv", "web-crash", "--type=merge", "-p", '{"spec":{"cancel":true}}')
    ended = (await operator.finished("web-crash"))["web-crash"]["status"]
    assert (ended["phase"], ended["message"]) == ("Cancelled", "cancelled by request")
    await process.stop()

"""A night of one crash loop: one investigation, and the rest finds the cluster as it was, through the real tools."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from support import manifests, scrapes
from tarsy.resources import naming
from tarsy_dev import model, tools

if TYPE_CHECKING:
    from support.operators import Operator
    from tarsy_dev.controlplane import Administrator

WEBHOOK = "/api/v1/webhooks/alertmanager"
CHAIN = manifests.chain("KubePodCrashLooping", recurrence={"mode": "Recheck"})
START = datetime(2026, 1, 9, 20, tzinfo=UTC)
FINGERPRINT = "6eb8c03418906421"
ROUNDS = 2
"""Rounds of the crash loop that change nothing: each is as the next one."""
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0"},
    # No scheduler gives it a node, where it would become another one while the first investigation looks at it.
    "spec": {"containers": [{"name": "app", "image": "web:1"}], "schedulerName": "nobody"},
}


def event(namespace: str) -> dict[str, Any]:
    """The event of a pod's back-off."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web-0.1"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "namespace": namespace},
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off restarting failed container app",
        "count": 12,
        "firstTimestamp": START.isoformat(),
        "lastTimestamp": START.isoformat(),
        "source": {"component": "kubelet"},
    }


async def crash(operator: Operator, *, restarts: int) -> None:
    """Let the pod's container end again."""
    ended = (START + timedelta(minutes=10 * restarts)).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = {"exitCode": 1, "reason": "Error", "startedAt": ended, "finishedAt": ended}
    container = {
        "name": "app",
        "image": "web:1",
        "imageID": "sha256:c27506184d3cfd1a50246670ac39d829b874d43cef3ce5dd3ef923695cbfb239",
        "ready": False,
        "restartCount": restarts,
        "containerID": f"containerd://{restarts:064x}",
        "state": {
            "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=app"}
        },
        "lastState": {"terminated": state | {"containerID": f"containerd://{restarts:064x}"}},
    }
    status = {"status": {"phase": "Running", "containerStatuses": [container]}}
    await operator.kubectl("patch", "pod", "web-0", "--subresource=status", "--type=merge", "-p", json.dumps(status))


async def test_one_crash_loop_is_investigated_once_until_its_image_changes(
    operator: Operator, llm: model.Server, plane: Administrator
) -> None:
    here = {"namespace": operator.namespace}
    calls = (
        model.Call(name="k8s__pods_list_in_namespace", args=here),
        model.Call(name="k8s__pods_get", args=here | {"name": "web-0"}),
        model.Call(name="k8s__events_list", args=here | {"fieldSelector": "involvedObject.name=web-0"}),
    )
    analysis = "It lacks its configuration [tool 0.1]."
    llm.script = lambda model_call: model.Answer(text=analysis) if model_call.iteration else model.Answer(calls=calls)
    arguments = ["--read-only", "--toolsets", "core", "--disable-multi-cluster", "--kubeconfig"]
    kubeconfig = str(plane.kubeconfig(namespace=operator.namespace))
    transport = {"type": "stdio", "command": str(tools.kubernetes_mcp_server()), "args": [*arguments, kubeconfig]}
    operator.configure(
        ingest={"cooldown": "0s"},
        mcp_servers={"k8s": {"transport": transport}},
        agents={"KubernetesAgent": {"mcp_servers": ["k8s"]}},
    )
    process = await operator.start()
    await operator.apply(CHAIN)
    await operator.kubectl("wait", "chain/kubernetes", "--for=condition=Ready", "--timeout=60s")
    for made in (POD, event(operator.namespace)):
        await operator.kubectl("create", "-f", "-", input=json.dumps(made))

    async def comes(number: int) -> dict[str, Any]:
        """The alert fires again after ten minutes, and the investigation of it."""
        await crash(operator, restarts=100 + number)
        starts_at = START + timedelta(minutes=10 * number)
        body = manifests.notification(startsAt=starts_at.isoformat(), fingerprint=FINGERPRINT)
        status, answer = await process.request("POST", WEBHOOK, body=body)
        assert status == 200, answer
        name = naming.for_alert(alertname="KubePodCrashLooping", fingerprint=FINGERPRINT, starts_at=starts_at)
        manifest: dict[str, Any] = (await operator.finished(name))[name]
        return manifest

    def reason(manifest: dict[str, Any]) -> str:
        (complete,) = [each for each in manifest["status"]["conditions"] if each["type"] == "Complete"]
        return str(complete["reason"])

    full = await comes(0)
    asked = len(llm.requests)
    assert (reason(full), asked) == ("StagesCompleted", 2), full["status"]
    for number in range(1, 1 + ROUNDS):
        manifest = await comes(number)
        status = manifest["status"]
        assert (reason(manifest), len(llm.requests)) == ("Unchanged", asked), status
        assert status["previous"]["name"] == full["metadata"]["name"]
        assert status["finalAnalysis"].endswith(full["status"]["finalAnalysis"])
        assert status["usage"]["llmCalls"] == 0
        assert status["usage"]["toolCalls"] == 3

    await operator.kubectl(
        "patch", "pod", "web-0", "-p", json.dumps({"spec": {"containers": [{"name": "app", "image": "web:2"}]}})
    )
    changed = await comes(1 + ROUNDS)
    assert (reason(changed), len(llm.requests)) == ("StagesCompleted", asked + 2)
    task = json.dumps(llm.requests[-1].body)
    assert "What differs from the last investigation" in task
    assert "spec.containers[app].image: 'web:1' -> 'web:2'" in task
    assert scrapes.total(await process.scrape(), "tarsy_rechecks_total", outcome="unchanged") == ROUNDS

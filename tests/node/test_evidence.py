"""Evidence of real failures that reaches the model, by the chain that is built in.

Each failure has a namespace and an alert of its own, in the words of kube-prometheus's rules. With TARSY_RECORD=1 the
answers of kubernetes-mcp-server are written to `tests/captures/kubernetes-mcp-server`, for tests that need no node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.installation import NAMESPACE, Installation
from tarsy_dev import controlplane
from tarsy_dev.node import addresses, builds, machine

pytestmark = pytest.mark.timeout(1200)

POD = "app-0"
ROOM = 4 * 1024**3
"""The bytes of the disk that are taken before it counts as full; others may free or take less meanwhile."""
CAPTURES = Path(__file__).parents[1] / "captures" / "kubernetes-mcp-server"
ALERTS = {
    "KubePodCrashLooping": (
        'Pod {namespace}/{pod} (app) is in waiting state (reason: "CrashLoopBackOff") on cluster .',
        "Pod is crash looping.",
    ),
    "KubePodNotReady": (
        "Pod {namespace}/{pod} has been in a non-ready state for longer than 15 minutes on cluster .",
        "Pod has been in a non-ready state for more than 15 minutes.",
    ),
    "KubeContainerWaiting": (
        "pod/{pod} in namespace {namespace} on container app has been in waiting state for longer than 1 hour.",
        "Pod container waiting longer than 1 hour",
    ),
}
"""The alerts, with their descriptions and summaries."""


@dataclass(frozen=True)
class Failure:
    """A pod that fails."""

    alert: str
    pod: dict[str, Any]
    symptom: str
    """A pattern of the pod as JSON, or of its events, once it has failed."""
    evidence: tuple[str, ...]
    """Patterns of the text that the model has to get."""
    beside: list[dict[str, Any]] = field(default_factory=list)
    """Objects that are created before it."""


def pod(*arguments: str, spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    """The spec of a pod with one container, and more of its `spec`."""
    base_container = {
        "name": "app",
        "image": "localhost/peer:1",
        "imagePullPolicy": "IfNotPresent",
        "args": list(arguments),
    }
    return {"terminationGracePeriodSeconds": 0, "containers": [base_container | container], **(spec or {})}


def connecting(host: str) -> dict[str, Any]:
    """The spec of a pod that ends with an error when it cannot connect to a host's port 5432."""
    code = f"""
import socket, sys
try:
    socket.create_connection(("{host}", 5432), timeout=2)
except OSError as error:
    sys.exit(f"fatal: cannot connect to {host}:5432: {{error}}")
"""
    return pod(image=builds.TARSY, imagePullPolicy="Never", command=["python3", "-c", code])


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "settings"}, "stringData": {"url": "x"}}
POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "store-is-for-billing"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "store"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "billing"}}}]}],
    },
}

FAILURES = {
    "crash": Failure(
        "KubePodCrashLooping", pod("exit", "3"), "CrashLoopBackOff", ("ends with status 3", "exitCode: 3")
    ),
    "memory": Failure(
        "KubePodCrashLooping",
        pod("memory", resources={"limits": {"memory": "48Mi"}}),
        "OOMKilled",
        ("OOMKilled", "exitCode: 137"),
    ),
    "probe": Failure(
        "KubePodNotReady",
        pod("http", "8080", "503", readinessProbe={"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}),
        "Unhealthy",
        ("Readiness probe failed", "503"),
    ),
    "image": Failure(
        "KubeContainerWaiting",
        pod(image="registry.invalid/shop/web:9"),
        "ImagePullBackOff",
        ("ImagePullBackOff|ErrImagePull", "registry.invalid/shop/web:9"),
    ),
    "command": Failure(
        "KubeContainerWaiting",
        pod(command=["/no-such-program"]),
        "no such file or directory",
        ("no-such-program", "no such file or directory"),
    ),
    "size": Failure(
        "KubePodNotReady", pod(resources={"requests": {"cpu": "500"}}), "Insufficient cpu", ("Insufficient cpu",)
    ),
    "selector": Failure(
        "KubePodNotReady",
        pod(spec={"nodeSelector": {"disk": "fast"}}),
        "didn't match Pod's node affinity/selector",
        ("didn'+t match Pod'+s node affinity/selector",),  # in YAML, quotes may stand twice
    ),
    "volume": Failure(
        "KubePodNotReady",
        pod(spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}),
        "storageclass.*not found",
        ("(?i)persistentvolumeclaim", "(?i)storageclass"),
        beside=[claim("data")],
    ),
    "secret": Failure(
        "KubeContainerWaiting",
        pod(env=[{"name": "URL", "valueFrom": {"secretKeyRef": {"name": "settings", "key": "uri"}}}]),
        "CreateContainerConfigError",
        ("CreateContainerConfigError", "find key uri in Secret"),
        beside=[SECRET],
    ),
    "init": Failure(
        "KubePodNotReady",
        pod(spec={"initContainers": [{"name": "wait", "image": "localhost/peer:1", "args": ["sleep"]}]}),
        '"started": true',
        ("ContainersNotInitialized|PodInitializing", "wait"),
    ),
    "dns": Failure(
        "KubePodCrashLooping",
        connecting("store.billing.svc"),
        "CrashLoopBackOff",
        ("cannot connect to store.billing.svc:5432", "Name or service not known"),
        beside=[POLICY],
    ),
}
TAINTED = Failure("KubePodNotReady", pod("sleep"), "untolerated taint", ("untolerated taint",))
"""The scheduler does not name the taint: an agent finds it at the node."""


@pytest.fixture(scope="module")
def installation(
    node: machine.Machine, images: object, helm: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A release for the whole module, and the failures that need no change of the node."""
    around = Installation(node, mode="single", folder=tmp_path_factory.mktemp("evidence"))
    around.surround()
    around.install()
    for name, failure in FAILURES.items():
        fail(around, name, failure)
    yield around
    around.shell(f"helm uninstall tarsy --namespace {NAMESPACE} --wait; kubectl delete namespace {NAMESPACE}")
    node.kubectl(
        "delete",
        "namespace",
        "--wait=false",
        "--ignore-not-found",
        *(namespace_of(name) for name in (*FAILURES, "taint", "disk")),
    )


def namespace_of(name: str) -> str:
    return f"evidence-{name}"


def fail(installation: Installation, name: str, failure: Failure) -> None:
    """Create the pod of a failure, and what stands beside it."""
    installation.node.create_namespace(namespace_of(name))
    failing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": failure.pod}
    made = {"apiVersion": "v1", "kind": "List", "items": [*failure.beside, failing]}
    installation.node.kubectl("create", "-f", "-", input=json.dumps(made), namespace=namespace_of(name))


@pytest.mark.parametrize("name", FAILURES)
def test_cause_of_a_failure_reaches_the_model(installation: Installation, name: str) -> None:
    check(installation, name, FAILURES[name])


def test_model_may_read_network_policies(installation: Installation) -> None:
    """The logs show only that nothing answers: the cause is an object, which the built-in agent's tools can list."""
    kind = {name: POLICY[name] for name in ("apiVersion", "kind")}
    arguments = {"resources_list": kind | {"namespace": namespace_of("dns")}}
    assert POLICY["metadata"]["name"] in ask_server(installation, arguments)["resources_list"]


def test_taint_that_keeps_a_pod_pending_reaches_the_model(installation: Installation) -> None:
    installation.node.kubectl("taint", "node", addresses.NODE, "dedicated=gpu:NoSchedule")
    try:
        fail(installation, "taint", TAINTED)
        check(installation, "taint", TAINTED)
        assert "key: dedicated" in read_node(installation)
    finally:
        installation.node.kubectl("taint", "node", addresses.NODE, "dedicated-")


def test_disk_pressure_of_a_node_reaches_the_model(installation: Installation, node: machine.Machine) -> None:
    """By the alert of a pod that stays pending, and by the node's own. With a soft limit nothing is evicted."""
    free = shutil.disk_usage(node.folder).free
    if free < 4 * ROOM:
        pytest.skip("the disk of this machine is nearly full")
    # Its pods are admitted before there is pressure.
    soft = {
        "evictionSoft": {"nodefs.available": str(free - ROOM)},
        "evictionSoftGracePeriod": {"nodefs.available": "1h"},
    }
    node.restart("kubelet", **soft)
    wait_until_pods_are_known(node)
    filling = node.folder / "filling"
    try:
        with filling.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 3 * ROOM)
        node.kubectl("wait", f"node/{addresses.NODE}", "--for=condition=DiskPressure", "--timeout=90s")
        fail(installation, "disk", TAINTED)
        check(installation, "disk", TAINTED)
        assert "node.kubernetes.io/disk-pressure" in read_node(installation)
        labels = {"alertname": "KubeNodePressure", "node": addresses.NODE, "condition": "DiskPressure"}
        description = (
            f"{addresses.NODE} on cluster  has active Condition DiskPressure. This is caused by resource usage "
            "exceeding eviction thresholds."
        )
        transcript = investigate(installation, "pressure", labels, description, "Node has as active Condition.")
        assert "NodeHasDiskPressure" in transcript
    finally:
        filling.unlink()
        node.restart("kubelet")
        node.kubectl("wait", f"node/{addresses.NODE}", "--for=condition=DiskPressure=false", "--timeout=90s")


def check(installation: Installation, name: str, failure: Failure) -> None:
    """Wait until the pod has failed, have its alert investigated, and look for the evidence in the model's requests."""
    namespace = namespace_of(name)
    wait_until_failed(installation, namespace, failure.symptom)
    labels = {
        "alertname": failure.alert,
        "namespace": namespace,
        "pod": POD,
        "container": "app",
        "severity": "warning",
    }
    description, summary = ALERTS[failure.alert]
    transcript = investigate(installation, name, labels, description.format(namespace=namespace, pod=POD), summary)
    record(installation, name)
    missing = [pattern for pattern in failure.evidence if not re.search(pattern, transcript)]
    assert not missing, transcript


def investigate(installation: Installation, name: str, labels: dict[str, str], description: str, summary: str) -> str:
    """Have an alert investigated; return the texts of all requests to the model, a line each."""
    alert = {"labels": labels, "annotations": {"description": description, "summary": summary}}
    made = {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AlertInvestigation",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"alertType": "kubernetes", "alertData": json.dumps(alert)},
    }
    installation.node.kubectl("create", "-f", "-", input=json.dumps(made))
    installation.kubectl("wait", f"inv/{name}", "--for=condition=Complete", "--timeout=180s", timeout=190)
    path = "/api/v1/namespaces/model/services/model:8080/proxy/log"
    requests = json.loads(installation.node.kubectl("get", "--raw", path))
    bodies = [request["body"] for request in requests if request["key"][0] == f"{NAMESPACE}/{name}"]
    assert bodies, "the model was asked nothing"
    return "\n".join(text for body in bodies for text in texts(body["contents"]))


def texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def record(installation: Installation, name: str) -> None:
    """Write what kubernetes-mcp-server says of a failure, before it is masked; only if that is asked for."""
    if not os.environ.get("TARSY_RECORD"):
        return
    namespace = namespace_of(name)
    asked: dict[str, dict[str, Any]] = {
        "pods_list_in_namespace": {"namespace": namespace},
        "events_list": {"namespace": namespace},
        "pods_get": {"namespace": namespace, "name": POD},
        "pods_log": {"namespace": namespace, "name": POD, "tail": 50},
    }
    CAPTURES.mkdir(exist_ok=True)
    answers = ask_server(installation, asked)
    (CAPTURES / f"{name}.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def ask_server(installation: Installation, calls: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the answers of kubernetes-mcp-server to calls of tools, by their names."""
    code = f"""
        import asyncio, json, mcp
        async def main():
            async with mcp.Client("http://tarsy-mcp:8080/mcp") as client:
                results = {{name: await client.call_tool(name, arguments) for name, arguments in {calls!r}.items()}}
            print(json.dumps({{name: result.content[0].text for name, result in results.items()}}))
        asyncio.run(main())
    """
    answers: dict[str, str] = json.loads(installation.run("deployment/tarsy", code).splitlines()[-1])
    return answers


def read_node(installation: Installation) -> str:
    """Return the node as an agent can read it."""
    arguments = {"apiVersion": "v1", "kind": "Node", "name": addresses.NODE}
    return ask_server(installation, {"resources_get": arguments})["resources_get"]


def wait_until_pods_are_known(node: machine.Machine) -> None:
    """Wait until the kubelet, which was restarted, answers for a pod of before."""
    deadline = time.monotonic() + 60
    while True:
        try:
            node.kubectl("exec", "deployment/model", "--", "python3", "--version", namespace="model")
        except controlplane.KubectlError:
            assert time.monotonic() < deadline
        else:
            return


def wait_until_failed(installation: Installation, namespace: str, symptom: str) -> None:
    deadline = time.monotonic() + 240
    while True:
        seen = installation.kubectl("get", "pod", POD, "-o", "json", namespace=namespace)
        seen += installation.kubectl("get", "events", "-o", "json", namespace=namespace)
        if re.search(symptom, seen):
            return
        assert time.monotonic() < deadline, seen

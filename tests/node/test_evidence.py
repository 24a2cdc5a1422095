"""What reaches the model of pods that fail for real, each in a way of its own, by the chain that is built in.

All fail at once, each with the alert that kube-prometheus fires for it; then each is investigated.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.installation import NAMESPACE, Installation
from tarsy_dev.node import machine

pytestmark = [pytest.mark.node, pytest.mark.nightly, pytest.mark.timeout(1200)]

PLACE = "evidence"


@dataclass(frozen=True)
class Failure:
    """A pod that fails, how its status shows that, and what of it the model has to be told."""

    alert: str
    pod: dict[str, Any]
    shows: str
    """Text of the pod as JSON, or of its events, once it has failed."""
    evidence: tuple[str, ...]
    beside: list[dict[str, Any]] = field(default_factory=list)
    """Objects that have to be there before it."""


def pod(*arguments: str, beside: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    """The spec of a pod with one container, and what stands `beside` its containers."""
    whole = {"name": "app", "image": "localhost/peer:1", "imagePullPolicy": "IfNotPresent", "args": list(arguments)}
    return {"terminationGracePeriodSeconds": 0, "containers": [whole | container], **(beside or {})}


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "settings"}, "stringData": {"url": "x"}}
FAILURES = {
    "crash": Failure(
        "KubePodCrashLooping", pod("exit", "3"), "CrashLoopBackOff", ("exitCode: 3|exit code 3|status 3",)
    ),
    "memory": Failure(
        "KubePodCrashLooping",
        pod("memory", resources={"limits": {"memory": "48Mi"}}),
        "OOMKilled",
        ("OOMKilled", "137"),
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
        "KubePodNotReady",
        pod(resources={"requests": {"cpu": "500"}}),
        "Insufficient cpu",
        ("Insufficient cpu",),
    ),
    "selector": Failure(
        "KubePodNotReady",
        pod(beside={"nodeSelector": {"disk": "fast"}}),
        "didn't match Pod's node affinity/selector",
        ("didn't match Pod's node affinity/selector",),
    ),
    "volume": Failure(
        "KubePodNotReady",
        pod(beside={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}),
        "unbound immediate PersistentVolumeClaims|storageclass.*not found",
        ("PersistentVolumeClaim|persistentvolumeclaim",),
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
        pod(beside={"initContainers": [{"name": "wait", "image": "localhost/peer:1", "args": ["sleep"]}]}),
        '"started": true',
        ("ContainersNotInitialized|PodInitializing",),
    ),
}


@pytest.fixture(scope="module")
def installation(
    node: machine.Machine, images: object, helm: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A release for the whole module, and every failure at work."""
    around = Installation(node, mode="single", folder=tmp_path_factory.mktemp("evidence"))
    around.surround()
    around.install()
    node.create_namespace(PLACE)
    items = []
    for name, failure in FAILURES.items():
        items += failure.beside
        items.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": failure.pod})
    made = {"apiVersion": "v1", "kind": "List", "items": items}
    node.kubectl("create", "-f", "-", input=json.dumps(made), namespace=PLACE)
    yield around
    around.shell(f"helm uninstall tarsy --namespace {NAMESPACE} --wait; kubectl delete namespace {NAMESPACE} {PLACE}")


@pytest.mark.parametrize("name", FAILURES)
def test_cause_of_a_failure_reaches_the_model(installation: Installation, name: str) -> None:
    failure = FAILURES[name]
    wait_until_shown(installation, name, failure.shows)
    alert = {
        "labels": {
            "alertname": failure.alert,
            "namespace": PLACE,
            "pod": name,
            "container": "app",
            "severity": "warning",
        },
        "annotations": {"description": f"Pod {PLACE}/{name} has a problem", "summary": failure.alert},
    }
    made = {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AlertInvestigation",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"alertType": "kubernetes", "alertData": json.dumps(alert)},
    }
    installation.node.kubectl("create", "-f", "-", input=json.dumps(made))
    installation.kubectl("wait", f"inv/{name}", "--for=condition=Complete", "--timeout=180s", timeout=190)
    path = "/api/v1/namespaces/model/services/model:8080/proxy/log"
    asked = [json.dumps(each) for each in json.loads(installation.node.kubectl("get", "--raw", path))]
    told = [each for each in asked if f"{PLACE}/{name} has a problem" in each]
    assert told, "the model was asked about it"
    missing = [each for each in failure.evidence if not any(one in told[-1] for one in each.split("|"))]
    assert not missing, told[-1]


def wait_until_shown(installation: Installation, name: str, text: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        chosen = ["--field-selector", f"involvedObject.name={name}"]
        seen = installation.kubectl("get", "pod", name, "-o", "json", namespace=PLACE)
        seen += installation.kubectl("get", "events", *chosen, "-o", "json", namespace=PLACE)
        if re.search(text, seen):
            return
        assert time.monotonic() < deadline, seen

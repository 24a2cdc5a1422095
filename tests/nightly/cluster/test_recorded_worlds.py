"""Recorded worlds behind the real kubernetes-mcp-server, held to the cluster that they were recorded from."""

from __future__ import annotations

import contextlib
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import waiting
from tarsy.config.model import platforms
from tarsy.evaluation import recording, world_platform, world_server, worlds
from tarsy.kube import client
from tarsy.process import agent_tools
from tarsy_dev import tools
from tarsy_dev.controlplane import ControlPlane
from tarsy_dev.scenarios import cluster as recorded_cluster

_AGE = re.compile(r"\b(?:\d+[smhd])+\b|<invalid>")
"""Ages go on between a call to the cluster and the same call to its recording."""

OBJECTS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web, tier: front}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {dev.tarsy.dev/log: "one\\ntwo\\nthree\\n"}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: app, image: web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pair, labels: {app: pair}}
spec: {containers: [{name: a, image: web}, {name: b, image: web}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
"""

EVENTS = {"ScalingReplicaSet": 1, "SuccessfulCreate": 2, "Scheduled": 3, "Pulled": 3, "Started": 3}
"""The reasons of all events that follow from them."""


def calls(namespace: str, pod: str) -> list[tuple[str, dict[str, Any]]]:
    here = {"namespace": namespace}
    listed = [
        ("v1", "Pod"), ("v1", "Service"), ("v1", "ConfigMap"), ("apps/v1", "Deployment"), ("apps/v1", "ReplicaSet"),
        ("batch/v1", "Job"), ("autoscaling/v1", "HorizontalPodAutoscaler"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("discovery.k8s.io/v1", "EndpointSlice"), ("events.k8s.io/v1", "Event"), ("policy/v1", "PodDisruptionBudget"),
    ]  # fmt: skip
    return [
        *(("resources_list", {"apiVersion": version, "kind": kind, **here}) for version, kind in listed),
        ("namespaces_list", {"fieldSelector": f"metadata.name={namespace}"}),
        ("pods_list", {"labelSelector": "app in (web, pair)", "fieldSelector": f"metadata.namespace={namespace}"}),
        ("pods_list_in_namespace", {**here, "labelSelector": "app=web,!tier"}),
        ("pods_list_in_namespace", {**here, "fieldSelector": "status.phase=Running"}),
        ("pods_list_in_namespace", {**here, "fieldSelector": "spec.image=web"}),
        ("pods_get", {**here, "name": pod}),
        ("pods_get", {**here, "name": "absent"}),
        ("pods_log", {**here, "name": pod}),
        ("pods_log", {**here, "name": pod, "tail": 2}),
        ("pods_log", {**here, "name": pod, "previous": True}),
        ("pods_log", {**here, "name": pod, "container": "other"}),
        ("pods_log", {**here, "name": "pair"}),
        ("pods_log", {**here, "name": "absent"}),
        ("events_list", here),
        ("events_list", {**here, "fieldSelector": "involvedObject.kind=ReplicaSet"}),
        ("resources_get", {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", **here}),
        ("resources_get", {"apiVersion": "apps/v1", "kind": "Deployment", "name": "absent", **here}),
        ("resources_get", {"apiVersion": "v1", "kind": "Node", "name": "sim-0"}),
        ("resources_list", {"apiVersion": "example.com/v1", "kind": "Widget"}),
        ("resources_list", {"apiVersion": "v1", "kind": "Secret", **here}),
        ("pods_top", {}),
        ("nodes_top", {}),
    ]


@contextlib.contextmanager
def without_heartbeats(plane: ControlPlane) -> Iterator[None]:
    """Stop the simulated kubelet, which writes the times of its node's conditions anew every five minutes."""
    plane.send("kwok", signal.SIGSTOP)
    try:
        yield
    finally:
        plane.send("kwok", signal.SIGCONT)


@contextlib.asynccontextmanager
async def reading(kubeconfig: Path) -> AsyncIterator[agent_tools.Call]:
    command = str(tools.kubernetes_mcp_server())
    content = world_platform.for_world(None, kubeconfig=kubeconfig, command=command)
    async with agent_tools.calls_to(platforms.Platform.model_validate(content), "kubernetes-server") as call:
        yield call


@pytest.mark.usefixtures("own_plane")
async def test_every_answer_of_a_world_is_that_of_the_cluster(
    plane: ControlPlane, cluster: client.Cluster, tmp_path: Path
) -> None:
    namespace = cluster.served.own
    plane.kubectl("create", "-f", "-", input=OBJECTS, namespace=namespace)

    def read_values(kind: str, path: str) -> list[str]:
        return plane.kubectl("get", kind, f"-o=jsonpath={{{path}}}", namespace=namespace).split()

    def is_settled() -> bool:
        """Whether nothing that follows from the objects is still on its way."""
        return (
            Counter(read_values("events", ".items[*].reason")) == EVENTS
            and read_values("deployments", ".items[*].status.availableReplicas") == ["2"]
            and read_values("endpointslices", ".items[*].endpoints[*].conditions.ready") == ["true", "true"]
            and read_values("configmaps", ".items[*].metadata.name") == ["kube-root-ca.crt"]
        )

    await waiting.until(is_settled)
    pod = next(name for name in read_values("pods", ".items[*].metadata.name") if name.startswith("web"))
    api = recorded_cluster.Cluster(url=plane.url, pki=plane.folder / "pki", etcd=plane.etcd_url)
    now = datetime.now(UTC).replace(microsecond=0)
    differing = []
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(without_heartbeats(plane))
        worlds.write(tmp_path / "world", recording.record(api.read, now=now, namespaces=None, mask=None))
        world = worlds.load(tmp_path / "world", now=now)
        server = await stack.enter_async_context(world_server.serve(world, kubeconfig=tmp_path / "kubeconfig"))
        ask_cluster = await stack.enter_async_context(reading(plane.kubeconfig(namespace="default")))
        ask_world = await stack.enter_async_context(reading(tmp_path / "kubeconfig"))
        for tool, arguments in calls(namespace, pod):
            real, recorded = await ask_cluster(tool, arguments), await ask_world(tool, arguments)
            if _AGE.sub("AGE", " ".join(real.split())) != _AGE.sub("AGE", " ".join(recorded.split())):
                differing.append(f"{tool} {arguments}\nCLUSTER\n{real}\nWORLD\n{recorded}")
        assert not differing, "\n".join(differing)
        assert not server.misses
        assert worlds.MISS.search(await ask_world("nodes_stats_summary", {"name": "sim-0"}))

"""Pods that answer each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tarsy_dev.node import machine

PLACES = ("tcp:80", "tcp:81", "udp:80")


def pod(name: str, namespace: str, *, labels: Mapping[str, str]) -> dict[str, Any]:
    """A pod that serves PLACES; the ports are called `web`, `admin` and `names`."""
    ports = [
        {"name": "web", "containerPort": 80},
        {"name": "admin", "containerPort": 81},
        {"name": "names", "containerPort": 80, "protocol": "UDP"},
    ]
    container = {"name": "peer", "image": "localhost/peer:1", "args": ["serve", *PLACES], "ports": ports}
    sysctls = [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"sysctls": sysctls},
            "containers": [container | {"imagePullPolicy": "Never"}],
        },
    }


class Peers:
    """Running pods, by their names: `NAMESPACE/POD`, with the namespace's short name."""

    def __init__(self, node: machine.Machine, pods: Mapping[str, dict[str, Any]]) -> None:
        self._node = node
        self._pods = pods

    def start(self) -> None:
        """Make the pods, and return when all of them answer."""
        made = {"apiVersion": "v1", "kind": "List", "items": list(self._pods.values())}
        self._node.kubectl("create", "-f", "-", input=json.dumps(made))
        for pod in self._pods.values():
            namespace = pod["metadata"]["namespace"]
            path = f"pod/{pod['metadata']['name']}"
            self._node.kubectl("wait", path, "--for=condition=Ready", "--timeout=60s", namespace=namespace)

    def dial(self, caller: str, *called: str) -> list[str]:
        """Return the answers that a pod gets, in order; peer's own words where there are none."""
        pod = self._pods[caller]["metadata"]
        command = ("exec", pod["name"], "--", "/peer", "dial", *called)
        return self._node.kubectl(*command, namespace=pod["namespace"]).splitlines()

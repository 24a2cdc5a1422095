"""Pods that answer each other, and what of their connections comes through."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tarsy_dev.node import addresses, machine

Flow = tuple[str, str, str]
"""Who calls, who is called, and where: `tcp:80`, `tcp:81` or `udp:80`."""
PLACES = ("tcp:80", "tcp:81", "udp:80")
OUTSIDE = "outside"
"""An address outside the cluster, as one that is called."""


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
        self._addresses: dict[str, str] = {OUTSIDE: addresses.OUTSIDE}

    def start(self) -> None:
        """Make the pods, and return when all of them answer."""
        made = {"apiVersion": "v1", "kind": "List", "items": list(self._pods.values())}
        self._node.kubectl("create", "-f", "-", input=json.dumps(made))
        for name, pod in self._pods.items():
            namespace = pod["metadata"]["namespace"]
            path = f"pod/{pod['metadata']['name']}"
            self._node.kubectl("wait", path, "--for=condition=Ready", "--timeout=60s", namespace=namespace)
            address = self._node.kubectl("get", path, "-o", "jsonpath={.status.podIP}", namespace=namespace)
            self._addresses[name] = address

    def flows(self) -> set[Flow]:
        """Return the flows that come through, of all that there can be."""
        with concurrent.futures.ThreadPoolExecutor() as threads:
            return set().union(*threads.map(self._flows_from, self._pods))

    def dial(self, caller: str, *called: str) -> list[str]:
        """Return the answers that a pod gets, in order; peer's own words where there are none."""
        pod = self._pods[caller]["metadata"]
        command = ("exec", pod["name"], "--", "/peer", "dial", *called)
        return self._node.kubectl(*command, namespace=pod["namespace"]).splitlines()

    def every(self, allowed: Callable[[Flow], bool]) -> set[Flow]:
        """Return the flows of all that there can be for which `allowed` is true, and those of a pod to itself."""
        possible = {(caller, called, place) for caller in self._pods for called in self._addresses for place in PLACES}
        return {flow for flow in possible if flow[0] == flow[1] or allowed(flow)}

    def wait_for(self, expected: set[Flow]) -> None:
        """Wait until exactly these flows come through: policies take effect a little later than they are made."""
        deadline = time.monotonic() + 15
        while (found := self.flows()) != expected:
            wrong = f"refused: {sorted(expected - found)}\nlet through: {sorted(found - expected)}"
            assert time.monotonic() < deadline, wrong

    def _flows_from(self, caller: str) -> set[Flow]:
        called = {(name, place): self._at(name, place) for name in self._addresses for place in PLACES}
        answers = self.dial(caller, *called.values())
        silent = {"timeout", "refused"}
        return {(caller, *key) for key, answer in zip(called, answers, strict=True) if answer not in silent}

    def _at(self, name: str, place: str) -> str:
        network, _, port = place.partition(":")
        return f"{network}:{self._addresses[name]}:{port}"

"""Simulated kubelets: the nodes of a seed, the statuses of their pods, and the logs of their containers."""

from __future__ import annotations

import hashlib
import http.server
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tarsy_dev.scenarios import cluster, seeds

_HEALTHY = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


class Kubelets:
    """The kubelets of all nodes of a seed. `port` is that of their logs."""

    def __init__(self, api: cluster.Cluster, seed: seeds.Seed, *, now: datetime, port: int) -> None:
        self._api, self._seed, self._now, self._port = api, seed, now, port
        self.logs: dict[tuple[str, str, str, bool], str] = {}
        """The logs by namespace, pod, container, and whether it is the previous life's."""
        self.waiting: dict[tuple[str, str, str], str] = {}
        """Why a container has not started, as the answer to a request for its log says it."""
        self._applied: dict[str, str] = {}

    def add_nodes(self) -> None:
        """Register the nodes, and write their statuses."""
        for number, node in enumerate(self._seed.nodes, 10):
            name = node["name"]
            labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
            labels |= {"topology.kubernetes.io/zone": node.get("zone", "zone-a"), **node.get("labels", {})}
            spec = {"podCIDR": f"10.244.{number}.0/24", "taints": node.get("taints", [])}
            metadata = {"name": name, "labels": labels}
            self._api.post("/api/v1/nodes", {"metadata": metadata, "spec": spec})
            stored = self._api.get(f"/api/v1/nodes/{name}")
            capacity = {"cpu": node["cpu"], "memory": node["memory"], "pods": "110", "ephemeral-storage": "100Gi"}
            since = seeds.stamp(self._now - seeds.duration(node.get("since", "41d")))
            conditions = _HEALTHY | {kind: tuple(state) for kind, state in node.get("conditions", {}).items()}
            stored["status"] = {
                "capacity": capacity,
                "allocatable": capacity | node.get("allocatable", {}),
                "addresses": [
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "Hostname", "address": name},
                ],
                "conditions": [
                    {
                        "type": kind,
                        "status": status,
                        "reason": reason,
                        "message": message,
                        "lastHeartbeatTime": seeds.stamp(self._now),
                        "lastTransitionTime": since,
                    }
                    for kind, (status, reason, message) in conditions.items()
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": _uuid(f"boot {name}"),
                    "containerRuntimeVersion": "containerd://2.1.4",
                    "kernelVersion": "6.12.41",
                    "kubeProxyVersion": "",
                    "kubeletVersion": "v1.36.3",
                    "machineID": _uuid(f"machine {name}").replace("-", ""),
                    "operatingSystem": "linux",
                    "osImage": "Debian GNU/Linux 13 (trixie)",
                    "systemUUID": _uuid(f"system {name}"),
                },
            }
            self._api.put(f"/api/v1/nodes/{name}/status", stored)

    def report(self) -> bool:
        """Write the statuses of all scheduled pods that have none yet; return whether any was written."""
        has_written = False
        for number, pod in enumerate(self._api.get("/api/v1/pods")["items"], 2):
            uid = pod["metadata"]["uid"]
            if (
                pod["spec"].get("nodeName")
                and uid not in self._applied
                and not pod["metadata"].get("deletionTimestamp")
            ):
                pod["status"] = self._status(pod, number)
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                self._api.put(f"{path}/status", pod)
                self._applied[uid] = path
                has_written = True
        return has_written

    def _status(self, pod: dict[str, Any], number: int) -> dict[str, Any]:
        metadata, spec = pod["metadata"], pod["spec"]
        wanted = seeds.timed(self._wanted(metadata), self._now)
        age = next(
            (
                text
                for prefix, text in sorted(self._seed.ages.items(), key=lambda each: -len(each[0]))
                if f"Pod/{metadata['name']}".startswith(prefix)
            ),
            self._seed.age,
        )
        started = seeds.stamp(self._now - seeds.duration(wanted.get("started", age)))
        statuses = {
            field: [
                self._container(pod, each, wanted.get("containers", {}).get(each["name"], {}), started)
                for each in spec.get(source, ())
            ]
            for field, source in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"))
        }
        is_ready = all(each["ready"] for each in statuses["containerStatuses"])
        unready = [each["name"] for each in statuses["containerStatuses"] if not each["ready"]]
        condition = {"lastProbeTime": None, "lastTransitionTime": wanted.get("changed", started)}
        lacks = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(unready)}]"}
        readiness = {"status": "True"} if is_ready else {"status": "False", **lacks}
        address = f"10.244.{_digest(spec['nodeName'])[0] % 200}.{number}"
        return {
            "phase": wanted.get("phase", "Running"),
            "startTime": started,
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "qosClass": pod["status"].get("qosClass"),
            "conditions": [
                *(
                    {**condition, "type": kind, "status": "True"}
                    for kind in ("PodReadyToStartContainers", "Initialized")
                ),
                {**condition, "type": "Ready", **readiness},
                {**condition, "type": "ContainersReady", **readiness},
                {**condition, "type": "PodScheduled", "status": "True", "lastTransitionTime": started},
            ],
            **{field: states for field, states in statuses.items() if states},
            **wanted.get("status", {}),
        }

    def _wanted(self, metadata: dict[str, Any]) -> dict[str, Any]:
        for wanted in self._seed.pods:
            if metadata["name"].startswith(wanted["pod"]) and wanted["namespace"] == metadata["namespace"]:
                labels = metadata.get("labels") or {}
                if all(labels.get(key) == value for key, value in wanted.get("labels", {}).items()):
                    return wanted
        return {}

    def _container(
        self, pod: dict[str, Any], container: dict[str, Any], wanted: dict[str, Any], started: str
    ) -> dict[str, Any]:
        metadata = pod["metadata"]
        for is_previous, text in ((False, seeds.log(wanted, self._now)), (True, wanted.get("previous"))):
            if text is not None:
                self.logs[metadata["namespace"], metadata["name"], container["name"], is_previous] = text
        state = wanted.get("state", {"running": {"startedAt": started}})
        if reason := state.get("waiting", {}).get("reason"):
            waiting_reason = "trying and failing to pull image" if reason == "ImagePullBackOff" else reason
            self.waiting[metadata["namespace"], metadata["name"], container["name"]] = waiting_reason
        is_running = "running" in state
        identity = hashlib.sha256(f"{metadata['uid']}{container['name']}".encode()).hexdigest()
        image = _digest(container["image"]).hex()
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"{container['image'].partition(':')[0]}@sha256:{image}"
            if is_running or "restarts" in wanted
            else "",
            "containerID": f"containerd://{identity}" if is_running or "restarts" in wanted else "",
            "ready": wanted.get("ready", is_running),
            "started": wanted.get("started", is_running),
            "restartCount": wanted.get("restarts", 0),
            "state": state,
            "lastState": wanted.get("last", {}),
        }


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _uuid(text: str) -> str:
    digits = _digest(text).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


@contextmanager
def serving(kubelets: Kubelets, *, port: int, pki: Path) -> Iterator[None]:
    """Answer the API server's requests for logs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parsed = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(parsed.query))
            _, kind, namespace, pod, container = parsed.path.split("/")
            is_previous = query.get("previous") == "true"
            text = kubelets.logs.get((namespace, pod, container, is_previous))
            if kind != "containerLogs" or text is None:
                what = f'previous terminated container "{container}" in pod "{pod}" not found'
                reason = kubelets.waiting.get((namespace, pod, container), "ContainerCreating")
                waits = f'container "{container}" in pod "{pod}" is waiting to start: {reason}'
                self._send(400, what if is_previous else waits)
                return
            self._send(200, text)

        def _send(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A node without containers: the pods of our image, run as processes of this machine.

What a kubelet does with them is done: volumes and tokens are brought, probes are asked, what ends is told or started
again, and what is deleted gets its SIGTERM. Volumes follow their ConfigMaps and Secrets. A container's paths and its
address are put where they are here, and Services are found without DNS; images are not looked at, and resources, users
and networks are nobody's concern.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib import parse

from kubernetes.aio import client as kubernetes
from support import accounts
from tarsy.kube import calls, client
from tarsy_dev import children, tools
from tarsy_dev.controlplane import ControlPlane

PORT = 8080
_EVERY_SECONDS = 0.1
_BRING_SECONDS = 1.0
_MERGE = "application/merge-patch+json"
_PROGRAMS = {"tarsy": str(Path(sys.executable).with_name("tarsy")), "python3": sys.executable}

Pod = dict[str, Any]


@dataclass(kw_only=True)
class _Life:
    """A pod that was started."""

    address: str
    command: list[str]
    env: dict[str, str]
    child: children.Child
    bring: Callable[[], Awaitable[None]]
    """Brings its volumes as their ConfigMaps and Secrets are now."""
    brought: float
    """The monotonic time at which it was last done."""
    is_ready: bool = False
    restarts: int = 0


class Kubelet:
    """The node of some namespaces."""

    def __init__(self, plane: ControlPlane, admin: client.Cluster, *, folder: Path) -> None:
        """`admin` may do everything; logs and volumes are below `folder`."""
        self.plane = plane
        self._admin = admin
        self._folder = folder
        self._lives: dict[str, _Life] = {}
        self._started = 0
        self.namespaces: set[str] = set()
        """Where pods are run."""

    async def run(self) -> None:
        """Run what is scheduled, until cancelled; then end it all."""
        try:
            while True:
                for namespace in sorted(self.namespaces):
                    listed = await calls.request(self._admin, "GET", f"/api/v1/namespaces/{namespace}/pods")
                    for pod in listed["items"]:
                        await self._tend(pod)
                await asyncio.sleep(_EVERY_SECONDS)
        finally:
            for life in self._lives.values():
                life.child.end(signal.SIGKILL)

    def log(self, name: str) -> str:
        """What the pod of that name has said."""
        path = self._folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    async def _tend(self, pod: Pod) -> None:
        uid = pod["metadata"]["uid"]
        life = self._lives.get(uid)
        if pod["metadata"].get("deletionTimestamp"):
            if life is not None:
                await asyncio.to_thread(life.child.end, signal.SIGTERM, timeout=60)
                del self._lives[uid]
            await self._gone(pod)
        elif pod["status"].get("phase") in ("Succeeded", "Failed") or "nodeName" not in pod["spec"]:
            return
        elif life is None:
            self._lives[uid] = life = await self._start(pod)
            await self._tell(pod, life, phase="Running")
        elif (status := life.child.process.poll()) is not None:
            await self._ended(pod, life, status)
        elif time.monotonic() - life.brought >= _BRING_SECONDS:
            try:
                await life.bring()
            except kubernetes.ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:  # what was deleted before the pod stays as it is there
                    raise
            life.brought = time.monotonic()
        elif (is_ready := await _ready(pod, life)) != life.is_ready:
            life.is_ready = is_ready
            await self._tell(pod, life, phase="Running")

    async def _ended(self, pod: Pod, life: _Life, status: int) -> None:
        again = pod["spec"].get("restartPolicy", "Always")
        if again == "Always" or (status != 0 and again == "OnFailure"):
            life.restarts += 1
            life.is_ready = False
            life.child = self._spawn(pod, life.command, life.env)
            await self._tell(pod, life, phase="Running")
        else:
            life.is_ready = False
            await self._tell(pod, life, phase="Failed" if status else "Succeeded", exit_code=status)

    async def _start(self, pod: Pod) -> _Life:
        (container,) = pod["spec"]["containers"]
        self._started += 1
        address = f"127.1.0.{self._started}"
        root = self._folder / pod["metadata"]["uid"]
        here = {"0.0.0.0": address} | {  # noqa: S104 - it is replaced
            mount["mountPath"]: str(root / mount["name"])
            for mount in container.get("volumeMounts", ())
            if mount["mountPath"] != "/tmp"  # noqa: S108 - there is one here as well
        }

        def moved(text: str) -> str:
            for there, place in here.items():
                text = text.replace(there, place)
            return text

        async def bring() -> None:
            for volume in pod["spec"].get("volumes", ()):
                await self._bring(pod, volume, root / volume["name"], moved)

        await bring()
        program, *rest = [moved(word) for word in (*container["command"], *container.get("args", ()))]
        env = {one["name"]: moved(one.get("value", "")) for one in container.get("env", ())}
        env = {name: await self._found(pod, text) for name, text in env.items()} | await self._account(pod, root)
        command = [_PROGRAMS[program], *rest]
        child = self._spawn(pod, command, env)
        return _Life(address=address, command=command, env=env, child=child, bring=bring, brought=time.monotonic())

    def _spawn(self, pod: Pod, command: list[str], env: Mapping[str, str]) -> children.Child:
        name = pod["metadata"]["name"]
        return children.start(
            command, name=name, log=self._folder / f"{name}.log", cwd=tools.ROOT, env={"PATH": "/usr/bin:/bin", **env}
        )

    async def _bring(self, pod: Pod, volume: Pod, place: Path, moved: Callable[[str], str]) -> None:
        """Write a volume, or what has changed of it; nothing while its Secret is not there, and need not be."""
        await asyncio.to_thread(place.mkdir, parents=True, exist_ok=True)
        if source := volume.get("configMap"):
            found = await self._read(pod, "configmaps", source["name"])
            content = {key: moved(text).encode() for key, text in found["data"].items()}
        elif source := volume.get("secret"):
            try:
                found = await self._read(pod, "secrets", source["secretName"])
            except kubernetes.ApiException as error:
                if error.status == 404 and source.get("optional"):
                    return
                raise
            content = {key: base64.b64decode(text) for key, text in found["data"].items()}
        else:
            return
        for key, path in {one["key"]: one["path"] for one in source.get("items", ())}.items() or zip(
            content, content, strict=True
        ):
            file = place / path
            if not file.exists() or file.read_bytes() != content[key]:
                new = place / f"..{path}"
                new.write_bytes(content[key])
                new.replace(file)

    async def _account(self, pod: Pod, root: Path) -> dict[str, str]:
        """What tells a process where the API server is, and, where it is to know, of its pod's account."""
        server = parse.urlsplit(self.plane.url)
        place_of_server = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        if not pod["spec"].get("automountServiceAccountToken", True):
            return place_of_server
        namespace, name = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        token = await accounts.token(self._admin, name, namespace=namespace)
        place = root / "account"
        place.mkdir(parents=True)
        (place / "token").write_text(token)
        (place / "ca.crt").write_bytes((self.plane.folder / "pki" / "ca.crt").read_bytes())
        return place_of_server | {
            "KUBECONFIG": str(self.plane.kubeconfig(namespace=namespace, user=name, token=token)),
            "TEST_ACCOUNT": str(place),
        }

    async def _found(self, pod: Pod, text: str) -> str:
        """A URL of a Service of the pod's namespace as that of one of its pods, and any other text as it is."""
        host = parse.urlsplit(text).hostname if text.startswith("http://") else None
        if host is None:
            return text
        service = await self._read(pod, "services", host)
        wanted = service["spec"]["selector"].items()
        listed = await calls.request(self._admin, "GET", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods")
        ready = (
            self._lives[one["metadata"]["uid"]]
            for one in listed["items"]
            if wanted <= one["metadata"]["labels"].items() and one["metadata"]["uid"] in self._lives
        )
        return f"http://{next(ready).address}:{PORT}"

    async def _read(self, pod: Pod, plural: str, name: str) -> Any:
        return await calls.request(
            self._admin, "GET", f"/api/v1/namespaces/{pod['metadata']['namespace']}/{plural}/{name}"
        )

    async def _gone(self, pod: Pod) -> None:
        with _unless_gone():
            await calls.request(self._admin, "DELETE", _path(pod), body={"gracePeriodSeconds": 0})

    async def _tell(self, pod: Pod, life: _Life, *, phase: str, exit_code: int | None = None) -> None:
        """Write the pod's status."""
        (container,) = pod["spec"]["containers"]
        started = pod["metadata"]["creationTimestamp"]
        ended = {"exitCode": exit_code, "finishedAt": started, "startedAt": started, "reason": "Ended"}
        status = {
            "phase": phase,
            "podIP": life.address,
            "podIPs": [{"ip": life.address}],
            "startTime": started,
            "conditions": [
                {"type": kind, "status": str(life.is_ready or kind == "Initialized"), "lastTransitionTime": started}
                for kind in ("Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": life.is_ready,
                    "started": exit_code is None,
                    "restartCount": life.restarts,
                    "state": {"running": {"startedAt": started}} if exit_code is None else {"terminated": ended},
                }
            ],
        }
        with _unless_gone():
            path = f"{_path(pod)}/status"
            await calls.request(self._admin, "PATCH", path, body={"status": status}, content_type=_MERGE)


async def _ready(pod: Pod, life: _Life) -> bool:
    """What the pod's readiness probe says; without one it is ready."""
    (container,) = pod["spec"]["containers"]
    probe = container.get("readinessProbe")
    if probe is None:
        return True
    connection = HTTPConnection(life.address, PORT, timeout=5)
    return await asyncio.to_thread(children.http_status, connection, probe["httpGet"]["path"]) == 200


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Do it to a pod that may have gone since it was listed."""
    try:
        yield
    except kubernetes.ApiException as error:
        if error.status != 404:
            raise


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

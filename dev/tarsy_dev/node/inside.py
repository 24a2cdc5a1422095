"""Process 1 of a node's namespaces, and the supervisor of all that runs in them.

`python -m tarsy_dev.node.inside FOLDER CGROUP DESCRIPTOR` is started by `machine.Machine`. The supervisor is a child,
so that process 1 is free to reap what containers leave to it. FOLDER/ready exists once the node is. A file
FOLDER/restarts/PART has that part restarted, with the settings in it, and is removed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tarsy_dev import assets, children, controlplane, errors
from tarsy_dev.node import addresses, images, kubelet, namespaces, networks, relay, runtime

VOLUMES = 8
_VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: local-{number}}}
spec:
  capacity: {{storage: 10Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: local
  local: {{path: {path}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]
"""


class Inside:
    """The parts of the node and its control plane, whose files lie in `folder`."""

    def __init__(self, folder: Path, *, cgroup: str) -> None:
        self._folder = folder
        self._cgroup = cgroup
        self._logs = folder / "logs"
        self._plane = controlplane.ControlPlane(folder=folder, host=addresses.CONTROL_PLANE)
        self._parts: dict[str, Callable[[], children.Child]] = {
            "containerd": lambda: runtime.start(log=self._logs / "containerd.log"),
            "kubelet": lambda: self._start_kubelet({}),
            "kube-proxy": self._start_proxy,
        }
        self._running: dict[str, children.Child] = {}

    def start(self) -> None:
        """Start everything and return when the node is ready and CoreDNS answers."""
        namespaces.mount_own(self._folder)
        networks.make()
        self._start_part("containerd")
        self._import_images()
        self._plane.start()
        for name in ("kubelet", "kube-proxy"):
            self._start_part(name)
        self._kubectl("create", "-f", "-", input=self._manifests())
        self._wait(lambda: "node/" in self._kubectl("get", "nodes", "-o", "name"), timeout=60, what="a node")
        self._kubectl("wait", "--for=condition=Ready", f"node/{addresses.NODE}", "--timeout=60s")
        self._kubectl("rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=60s")

    def check(self) -> None:
        """Raise children.ChildError if a part has ended."""
        self._plane.check()
        for child in self._running.values():
            child.check()

    def restart(self, name: str, settings: Mapping[str, Any]) -> None:
        """Restart a part of the node or of the control plane; `settings` are for the kubelet's configuration."""
        if name not in self._running:
            self._plane.kill(name)
            self._plane.start_component(name)
            return
        self._running.pop(name).end()
        self._running[name] = self._start_kubelet(settings) if name == "kubelet" else self._parts[name]()

    def _start_part(self, name: str) -> None:
        self._running[name] = self._parts[name]()

    def _start_kubelet(self, settings: Mapping[str, Any]) -> children.Child:
        authority = self._folder / "pki" / "ca.crt"
        config, log = self._kubeconfig("kubelet"), self._logs / "kubelet.log"
        return kubelet.start(kubeconfig=config, authority=authority, cgroup=self._cgroup, log=log, settings=settings)

    def _start_proxy(self) -> children.Child:
        return kubelet.start_proxy(kubeconfig=self._kubeconfig("kube-proxy"), log=self._logs / "kube-proxy.log")

    def _kubeconfig(self, user: str) -> Path:
        url = f"https://{addresses.CONTROL_PLANE}:{controlplane.REAL_PORT}"
        return self._plane.kubeconfig(namespace="from-the-node", user=user, url=url)

    def _import_images(self) -> None:
        for name in ("peer", "coredns"):
            archive = self._folder / f"{name}.tar"
            images.write(archive, name=f"localhost/{name}:1", program=assets.program(name))
            runtime.import_image(archive)
            archive.unlink()

    def _manifests(self) -> str:
        made = [(assets.NODE_SOURCE / "cluster.yaml").read_text()]
        for number in range(VOLUMES):
            path = Path("/var/lib/volumes") / str(number)
            path.mkdir(parents=True)
            made.append(_VOLUME.format(number=number, path=path, node=addresses.NODE))
        return yaml.safe_dump_all([each for text in made for each in yaml.safe_load_all(text)])

    def _kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        # In a namespace of its own, because its kubeconfig has another address than that of the machine outside.
        return self._plane.kubectl(*arguments, input=input, namespace="kube-system", timeout=90)

    def _wait(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        deadline = time.monotonic() + timeout
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise children.ChildError(f"waited {timeout:.0f} s in vain for {what}; the logs are in {self._logs}")
            time.sleep(0.1)


def _supervise(folder: Path, cgroup: str, listener: socket.socket) -> int:
    """Start the node and serve until a part of it ends, which ends all."""
    inside = Inside(folder, cgroup=cgroup)
    try:
        inside.start()
        relay.serve(listener, "127.0.0.1", controlplane.REAL_PORT)
        restarts = folder / "restarts"
        restarts.mkdir()
        (folder / "ready").touch()
        while True:
            inside.check()
            for request in restarts.iterdir():
                inside.restart(request.name, json.loads(request.read_text()))
                request.unlink()
            time.sleep(0.5)
    except errors.Error as error:
        print(f"tarsy_dev: {error}", file=sys.stderr, flush=True)
        return 1


def main() -> None:
    """Fork the supervisor, reap until it ends, and end with its status: the kernel then ends everything else."""
    folder, cgroup, descriptor = sys.argv[1:]
    supervisor = os.fork()
    if supervisor == 0:
        with socket.socket(fileno=int(descriptor)) as listener:
            os._exit(_supervise(Path(folder), cgroup, listener))
    os.close(int(descriptor))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        with contextlib.suppress(ChildProcessError):
            ended, status = os.wait()
            if ended == supervisor:
                sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()

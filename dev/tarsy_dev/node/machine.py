"""The node as the machine sees it: started, reached from outside, and ended without a trace."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tarsy_dev import assets, children, controlplane, tools
from tarsy_dev.node import cgroups, namespaces, networks, requirements, runtime


class Machine(controlplane.Administrator):
    """One node with its control plane, whose files lie in `folder`: empty or missing before, gone after.

    kubectl and kubeconfigs speak for the administrator. Usable as a context manager, which starts and stops it.
    """

    def __init__(self, *, folder: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        super().__init__(folder=folder, url=f"https://127.0.0.1:{self._listener.getsockname()[1]}")
        self.logs = self.folder / "logs"
        self._log = self.folder / "logs" / "inside.log"
        self.cgroup = f"node-{secrets.token_hex(4)}"
        self._child: children.Child | None = None
        self._janitor: Janitor | None = None

    def __enter__(self) -> Machine:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return when pods can run, in 15 to 30 s.

        Raises requirements.RequirementError, or children.ChildError, which names the log of what ended or is late.
        """
        requirements.check()
        for name in (*assets.PROGRAMS, *assets.NODE_PROGRAMS):
            assets.program(name)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._janitor = Janitor(self.folder, self.cgroup)
        cgroups.make(self.cgroup)
        inside = [sys.executable, "-m", "tarsy_dev.node.inside"]
        self._child = children.start(
            [*namespaces.UNSHARE, *inside, str(self.folder), self.cgroup, str(self._listener.fileno())],
            name="the node",
            log=self._log,
            cwd=tools.ROOT,
            inherited=[self._listener.fileno()],
        )
        try:
            self._child.wait_until((self.folder / "ready").exists, what="readiness")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, and remove its cgroups and its files."""
        self._listener.close()
        if self._child is not None:
            self._child.end(signal.SIGKILL)
            self._child = None
        if self._janitor is not None:
            self._janitor.finish()
            self._janitor = None

    def check(self) -> None:
        """Raise children.ChildError if it has ended."""
        if self._child is not None:
            self._child.check()

    def restart(self, part: str, **settings: Any) -> None:
        """Restart a part, such as `kubelet` or `kube-apiserver`, and return when it is done.

        `settings` are for the kubelet's configuration, until it is restarted again.
        """
        draft = self.folder / f"{part}.draft"
        draft.write_text(json.dumps(settings))
        request = draft.rename(self.folder / "restarts" / part)
        deadline = time.monotonic() + 90
        while request.exists():
            self.check()
            if time.monotonic() > deadline:
                raise children.ChildError(f"{part} was not restarted within 90 s; the logs are in {self.logs}")
            time.sleep(0.1)

    def run(self, command: Sequence[str], *, on_node: bool = True, timeout: float = 60) -> str:
        """Run a program of the machine inside, in the node's network or the control plane's, and return its stdout."""
        entered = self.command(command, on_node=on_node)
        done = subprocess.run(entered, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise children.ChildError(f"{' '.join(command)} failed on the node: {done.stdout}{done.stderr}")
        return done.stdout

    def command(self, command: Sequence[str], *, on_node: bool = True) -> list[str]:
        """Return the command that runs a program of the machine inside, as `run` does."""
        return namespaces.enter(self._init(), command, network=networks.NODE if on_node else None)

    def import_image(self, archive: Path) -> None:
        """Have the node know the images of an OCI archive, by the names that it gives them."""
        command = ["ctr", "--address", str(runtime.SOCKET), "--namespace", "k8s.io", "images", "import", str(archive)]
        self.run(command, timeout=180)

    def _init(self) -> int:
        """Return the process that is number 1 inside, by its number here."""
        assert self._child is not None, "the node is not running"  # noqa: S101 - a mistake of the caller's
        pid = self._child.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Janitor:
    """The process that removes what the kernel leaves: files and cgroups. It does so too when this one is killed."""

    def __init__(self, folder: Path, cgroup: str) -> None:
        ends, self._ours = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tarsy_dev.node.janitor", str(ends), str(folder), cgroup],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[ends],
            start_new_session=True,
        )
        os.close(ends)

    def finish(self) -> None:
        """Have it remove everything, and return when that is done."""
        os.close(self._ours)
        self._process.wait()

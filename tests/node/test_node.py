"""The node itself: what pods reach, and what is left of it when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support import peers
from tarsy_dev import tools
from tarsy_dev.node import addresses, cgroups, machine


def test_pods_reach_services_names_and_the_api_server_and_nothing_outside(
    node: machine.Machine, namespaces: Callable[[str], str]
) -> None:
    namespace = namespaces("reach")
    pods = peers.Peers(
        node,
        {
            "caller": peers.pod("caller", namespace, labels={}),
            "server": peers.pod("server", namespace, labels={"app": "server"}),
        },
    )
    pods.start()
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "selector": {"app": "server"},
            "ports": [
                {"name": "tcp", "port": 8080, "targetPort": "admin"},
                {"name": "udp", "port": 53, "targetPort": "names", "protocol": "UDP"},
            ],
        },
    }
    node.kubectl("create", "-f", "-", input=json.dumps(service))
    reached = ("tcp:web:8080", f"udp:web.{namespace}.svc.cluster.local:53", "kubernetes.default.svc:443")
    deadline = time.monotonic() + 10
    while (answers := pods.dial("caller", *reached)) != ["server", "server", "connected"]:
        assert time.monotonic() < deadline, answers
    assert pods.dial("server", f"tcp:web.{namespace}.svc:8080") == ["server"], "itself, by way of its Service"
    unknown, far, near = pods.dial("caller", "example.com:443", "8.8.8.8:443", f"{addresses.OUTSIDE}:443")
    assert "no such host" in unknown
    assert far.endswith(("no route to host", "network is unreachable"))
    assert near == "refused", "there is an address outside, and nothing listens there"


def test_a_killed_node_leaves_nothing_on_the_machine_and_another_goes_on(node: machine.Machine, tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from tarsy_dev.node import machine\n"
        "with machine.Machine(folder=pathlib.Path(sys.argv[1])) as running:\n"
        "    print(running.cgroup, flush=True)\n"
        "    time.sleep(300)\n"
    )
    folder = tmp_path / "second"
    interfaces = set(os.listdir("/sys/class/net"))  # noqa: PTH208 - names are all that is asked for
    with subprocess.Popen(
        [sys.executable, "-c", code, folder], cwd=tools.ROOT, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None
        cgroup = second.stdout.readline().strip()
        assert cgroup, "it did not come up"
        assert any("containerd" in command for command in processes(folder))
        assert cgroups.folders(cgroup)
        second.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while folder.exists() or cgroups.folders(cgroup) or processes(folder):
        assert time.monotonic() < deadline, (cgroups.folders(cgroup), processes(folder))
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert set(os.listdir("/sys/class/net")) == interfaces  # noqa: PTH208
    node.check()
    assert addresses.NODE in node.kubectl("get", "nodes")


def processes(folder: Path) -> list[str]:
    """The commands that run with files in this folder, in whatever namespace."""
    command_names = []
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if str(folder) in path.read_text():
                command_names.append((path.parent / "comm").read_text().strip())
    return command_names

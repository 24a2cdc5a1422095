"""containerd with runc and CNI's plugins, all of them Debian's, for one node: its folders, network and images."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tarsy_dev import children
from tarsy_dev.node import addresses, networks

SOCKET = Path("/run/containerd/containerd.sock")
PLUGINS = Path("/usr/lib/cni")
PAUSE = "localhost/peer:1"
"""The image of each pod's first container."""

_CONFIG = f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without it runc dies where the right to lower a score is missing: "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{PLUGINS}"
  conf_dir = "/run/cni"
"""

# `ptp` routes from pod to pod, which a bridge would not: all that pods send passes the hook `forward`.
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "subnet": addresses.PODS,
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "/run/cni-addresses",
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


def start(*, log: Path) -> children.Child:
    """Start containerd in the node's network and return when it answers."""
    Path("/run/cni").mkdir()
    Path("/run/cni/pods.conflist").write_text(json.dumps(_NETWORK))
    config = Path("/run/containerd.toml")
    config.write_text(_CONFIG)
    command = [*networks.INSIDE, "containerd", "--config", str(config)]
    child = children.start(command, name="containerd", log=log, cwd=Path("/"))
    child.wait_until(lambda: _ctr("version").returncode == 0, what="an answer")
    return child


def import_image(archive: Path) -> None:
    """Have the node know the images of an OCI archive, by the names that it gives them."""
    done = _ctr("images", "import", "--no-unpack", str(archive))
    if done.returncode != 0:
        raise children.ChildError(f"containerd does not take {archive}: {done.stderr.strip()}")


def _ctr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["ctr", "--address", str(SOCKET), "--namespace", "k8s.io", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)

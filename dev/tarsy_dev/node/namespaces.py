"""The namespaces of one node: the command that makes them, and what is mounted in them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tarsy_dev.node import kubelet

UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""The start of a command that becomes process 1 of new namespaces, and is killed with its parent."""


def mount_own(folder: Path) -> None:
    """Mount over /run, /var/lib and /var/log what is the node's own, below `folder`, and over what it would change.

    Only in the namespace of mounts that this process is in.
    """
    _mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    for name in ("lib", "log"):
        (folder / name).mkdir()
        _mount("--bind", folder / name, f"/var/{name}")
    for name, value in kubelet.TUNABLES.items():
        path = Path("/run/tunables") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
        _mount("--bind", path, Path("/proc/sys") / name)
    # What a container gets to see of its mounts, the kubelet takes from the tree that they are in.
    _mount("--make-rshared", "/")


def enter(init: int, command: Sequence[str], *, network: str | None = None) -> list[str]:
    """Return the command that runs `command` in the namespaces of process `init`, or in its network `network`.

    `command` is a child of the process that the command starts, and is killed with it.
    """
    inside = [] if network is None else ["nsenter", f"--net=/run/netns/{network}", "--"]
    dependent = ["setpriv", "--pdeathsig", "KILL", "--"]
    return ["nsenter", "--target", str(init), "--net", "--mount", "--pid", "--", *inside, *dependent, *command]


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)

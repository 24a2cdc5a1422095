"""The cgroups of one node: a folder of the same name in each hierarchy, below which the kubelet has its own."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_PARENT = "tarsy-dev"
_WEIGHTS = {"cpu.shares": 10 * 1024, "cpu.weight": 10 * 100}
"""The share of the processors, in version 1 and 2: ten processes'. By default all pods together have that of one."""


def path(name: str) -> str:
    """Return the node's cgroup, as the kubelet names it."""
    return f"/{_PARENT}/{name}"


def are_writable() -> bool:
    """Return whether there are hierarchies, and cgroups can be made in each of them."""
    hierarchies = _hierarchies()
    return bool(hierarchies) and all(os.access(hierarchy, os.W_OK) for hierarchy in hierarchies)


def make(name: str) -> None:
    """Make the node's cgroup in every hierarchy."""
    for hierarchy in _hierarchies():
        cgroup = hierarchy / _PARENT / name
        cgroup.mkdir(parents=True, exist_ok=True)
        for folder in (cgroup.parent, cgroup):
            for file, weight in _WEIGHTS.items():
                if (folder / file).exists():
                    (folder / file).write_text(str(weight))


def folders(name: str) -> list[Path]:
    """Return the folders of the node's cgroup, one in each hierarchy."""
    return [hierarchy / _PARENT / name for hierarchy in _hierarchies() if (hierarchy / _PARENT / name).exists()]


def remove(name: str, *, timeout: float = 20) -> None:
    """Remove the node's cgroups, whose processes have ended or are about to, and their parent with the last of them."""
    deadline = time.monotonic() + timeout
    while (left := folders(name)) and time.monotonic() < deadline:
        for top in left:
            _remove_tree(top)
        time.sleep(0.02)
    for hierarchy in _hierarchies():
        with contextlib.suppress(OSError):
            (hierarchy / _PARENT).rmdir()


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # a process of it has not ended yet
            Path(folder).rmdir()


def _hierarchies() -> list[Path]:
    """The places where cgroups are mounted: one for each controller, or one for all of them with version 2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(mount[1]) for mount in mounts if mount[2] in {"cgroup", "cgroup2"}]

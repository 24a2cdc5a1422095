"""Requirements of a real node on the machine, and whether they are met."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tarsy_dev import cache, errors
from tarsy_dev.node import builds, cgroups, namespaces, runtime

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "iptables": "iptables",
}
"""The programs that are called, each with its package of Debian's."""


class RequirementError(errors.Error):
    """The machine lacks something that a real node needs."""


def missing(*, images: bool = False) -> str:
    """Return what this machine lacks, as the end of a sentence, or an empty text.

    `images`: the product's image and those around it are to be built as well.
    """
    if sys.platform != "linux":
        return f"Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "root: containers, networks and mounts are made"
    programs = PACKAGES | (builds.PACKAGES if images else {})
    packages = {package for program, package in programs.items() if shutil.which(program) is None}
    if not all((runtime.PLUGINS / plugin).exists() for plugin in ("host-local", "loopback", "portmap", "ptp")):
        packages.add("containernetworking-plugins")
    if packages:
        return f"packages of Debian's; install them by: apt-get install {' '.join(sorted(packages))}"
    if not cgroups.are_writable():
        return "cgroups that it may write, below /sys/fs/cgroup"
    cache.folder().mkdir(parents=True, exist_ok=True)
    for folder in (Path(tempfile.gettempdir()), cache.folder()):
        if problem := _overlay_problem(folder):
            return f"namespaces of its own, and mounts of overlays in {folder}: {problem}"
    return ""


def _overlay_problem(folder: Path) -> str:
    """Return the error of namespaces and an overlay, such as containers' files are, made of folders in `folder`."""
    with tempfile.TemporaryDirectory(dir=folder) as layers:
        parts = [Path(layers, name) for name in ("lower", "upper", "work", "merged")]
        for part in parts:
            part.mkdir()
        lower, upper, work, merged = parts
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount = [*namespaces.UNSHARE, "mount", "-t", "overlay", "-o", options, "overlay", str(merged)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def check() -> None:
    """Raise RequirementError if this machine lacks something."""
    if lacks := missing():
        raise RequirementError(f"make node needs {lacks}")

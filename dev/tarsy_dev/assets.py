"""The programs of a Kubernetes control plane, and kubectl.

Each comes from `TEST_ASSET_<NAME>` (a file; envtest's own names, such as TEST_ASSET_KUBE_APISERVER), else from the
folder `KUBEBUILDER_ASSETS`, else from our own binary, which is built from `dev/controlplane` with Go. A build is
named by its sources and by the compiler, so that it is made once for all checkouts and is never an old one.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tarsy_dev import cache, errors, tools

SOURCE = tools.ROOT / "dev" / "controlplane"
PROGRAMS = (
    "certs",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
    "podlogs",
)


class AssetError(errors.Error):
    """A program of the control plane cannot be had."""


def program(name: str) -> Path:
    """Return the path of the program `name`, one of PROGRAMS; where it is missing it is built, for minutes.

    Raises AssetError, or tools.ToolError when there is no Go and none can be installed.
    """
    variable = f"TEST_ASSET_{name.upper().replace('-', '_')}"
    given = os.environ.get(variable)
    if given:
        if not os.access(given, os.X_OK):
            raise AssetError(f"{variable}={given} is no program: it must be the path of {name}")
        return Path(given)
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder and os.access(Path(folder) / name, os.X_OK):
        return Path(folder) / name
    return _built() / name


@functools.cache
def _built() -> Path:
    go = tools.go()
    return cache.made(
        cache.folder()
        / f"controlplane-{digest(SOURCE, compiler=go.run('env', 'GOVERSION', 'GOOS', 'GOARCH', cwd=SOURCE))}",
        _build,
        notice="building the control plane (etcd, kube-apiserver, kubectl, ...) from its Go modules, once: "
        "6 minutes on two cores, a few seconds when Go's cache has them",
    )


def digest(source: Path, *, compiler: str) -> str:
    """Return what tells one build of the folder `source` by `compiler` from another: 16 hexadecimal digits."""
    content = hashlib.sha256(compiler.encode())
    for path in sorted(source.iterdir()):
        if path.suffix in {".go", ".mod", ".sum", ".sh"}:
            content.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:16]


def _build(folder: Path) -> None:
    done = subprocess.run(
        [SOURCE / "build.sh", folder], env=tools.go().env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise AssetError(f"{SOURCE / 'build.sh'} failed:\n{done.stdout}")


def everything() -> dict[str, Path]:
    """Return the path of each of PROGRAMS and of kubernetes-mcp-server, by name; what is missing is made."""
    return {name: program(name) for name in PROGRAMS} | {"kubernetes-mcp-server": tools.kubernetes_mcp_server()}


def main(arguments: Sequence[str]) -> int:
    """Find, build or fetch what the loopback world has that is not Python, and print where it is."""
    argparse.ArgumentParser(prog="python -m tarsy_dev assets", description=main.__doc__).parse_args(arguments)
    for name, path in everything().items():
        print(f"{name} {path}")
    return 0

"""The programs of a Kubernetes control plane and of a node, kubectl and helm.

Each comes from `TEST_ASSET_<NAME>` (a file; envtest's own names, such as TEST_ASSET_KUBE_APISERVER), else from the
folder `KUBEBUILDER_ASSETS`, else from our own binary, which is built from `dev/controlplane` with Go. A build is
named by its sources and by the compiler, so that it is made once for all checkouts and is never an old one.

The demo needs three of them only (`api_program`), which are fetched where that is quick.

Two more binaries are built only when they are asked for. helm comes from `dev/helm`, a module of its own because it
needs other versions of the same modules. The programs of a node come from `dev/kubelet`, which needs what the control
plane needs, in the same versions, so that Go has compiled most of it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tarsy_dev import cache, envtest, errors, progress, tools

SOURCE = tools.ROOT / "dev" / "controlplane"
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
)
HELM_SOURCE = tools.ROOT / "dev" / "helm"
HELM = "helm"
NODE_SOURCE = tools.ROOT / "dev" / "kubelet"
NODE_PROGRAMS = ("coredns", "kube-proxy", "kubelet", "peer")

_ONCE = "minutes on two cores; an interrupted build goes on where it was"
_NOTICE = f"building the control plane (etcd, kube-apiserver, kubectl, ...) from its Go modules, once: 6 to 13 {_ONCE}"
_API_NOTICE = f"building etcd and kube-apiserver from their Go modules, once: 4 to 9 {_ONCE}"
_HELM_NOTICE = f"building helm from its Go module, once: 3 to 10 {_ONCE}"
_NODE_NOTICE = f"building the node's programs (kubelet, kube-proxy, CoreDNS) from Go modules, once: 1 to 5 {_ONCE}"


class AssetError(errors.Error):
    """A program of the control plane cannot be had."""


def program(name: str) -> Path:
    """Return the path of a program of PROGRAMS or NODE_PROGRAMS, or HELM; where it is missing it is built, for minutes.

    Raises AssetError, or tools.ToolError when there is no Go and none can be installed.
    """
    if configured := _configured(name):
        return configured
    if name == HELM:
        return _built(HELM_SOURCE, _HELM_NOTICE) / name
    if name in NODE_PROGRAMS:
        return _built(NODE_SOURCE, _NODE_NOTICE) / name
    return _built(SOURCE, _NOTICE) / name


def api_program(name: str, *, kubectl: Callable[[], Path] = tools.kubectl) -> Path:
    """Return the path of a program of envtest.PROGRAMS: all that an API server needs which runs no workloads.

    Where they are missing, their published archive is fetched, else etcd and kube-apiserver are built; then `kubectl`
    returns the path of kubectl. The errors are those of `program`.
    """
    if configured := _configured(name):
        return configured
    target = cache.folder() / f"apiserver-{digest(SOURCE, compiler=envtest.LOCK.read_text())}"
    path = cache.made(target, make_api_programs, notice=f"fetching {', '.join(envtest.PROGRAMS)}, once") / name
    return kubectl() if name == "kubectl" and not path.exists() else path


def make_api_programs(folder: Path, *, lock: Path = envtest.LOCK, source: Path = SOURCE) -> None:
    """Put envtest.PROGRAMS into `folder`: those of the archive of `lock`, or what `source` builds, without kubectl."""
    try:
        envtest.fetch(folder, envtest.published(tools.PLATFORM, lock.read_text()))
    except envtest.FetchError as error:
        cache.say(f"{error}; {_API_NOTICE}")
        build(source, folder, "apiserver")


def _configured(name: str) -> Path | None:
    """Return the path of a program that the environment names, if it does. Raises AssetError."""
    variable = f"TEST_ASSET_{name.upper().replace('-', '_')}"
    if path := os.environ.get(variable):
        if not os.access(path, os.X_OK):
            raise AssetError(f"{variable}={path} is no program: it must be the path of {name}")
        return Path(path)
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder and os.access(Path(folder) / name, os.X_OK):
        return Path(folder) / name
    return None


@functools.cache
def _built(source: Path, notice: str) -> Path:
    compiler = tools.go().run("env", "GOVERSION", "GOOS", "GOARCH", cwd=source)
    target = cache.folder() / f"{source.name}-{digest(source, compiler=compiler)}"
    return cache.made(target, functools.partial(build, source), notice=notice)


def digest(source: Path, *, compiler: str) -> str:
    """Return what tells one build of the folder `source` by `compiler` from another: 16 hexadecimal digits."""
    content = hashlib.sha256(compiler.encode())
    for path in sorted(source.rglob("*")):
        if path.suffix in {".go", ".mod", ".sum", ".sh"}:
            content.update(str(path.relative_to(source)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:16]


def build(source: Path, folder: Path, *arguments: str) -> None:
    """Run `source`'s build.sh, which puts its programs into `folder`; stderr tells how far it is.

    When it is killed, the next one compiles only the packages that this one had not.
    """
    go = tools.go()
    script = source / "build.sh"
    done = progress.follow([script, folder, *arguments], what=source.name, env=go.env)
    if done.returncode != 0:
        hint = "what it downloaded and compiled is kept for the next run"
        raise AssetError(f"{script} failed; {hint}. It said:\n{done.stdout}")


def everything() -> dict[str, Path]:
    """Return the path of each of PROGRAMS and of kubernetes-mcp-server, by name; what is missing is made."""
    return {name: program(name) for name in PROGRAMS} | {"kubernetes-mcp-server": tools.kubernetes_mcp_server()}


def demo() -> None:
    """Make what the demo needs and this machine lacks: less than `everything`."""
    for name in envtest.PROGRAMS:
        api_program(name)
    tools.kubernetes_mcp_server()


def main(arguments: Sequence[str]) -> int:
    """Find, build or fetch what the loopback world has that is not Python, and print where it is."""
    argparse.ArgumentParser(prog="python -m tarsy_dev assets", description=main.__doc__).parse_args(arguments)
    for name, path in everything().items():
        print(f"{name} {path}")
    return 0

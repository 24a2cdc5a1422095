"""Whether an operator out of the nursery is one: arguments, environment, output, status and signals are its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tarsy_dev import children, nursery

NOWHERE = "postgresql://127.0.0.1:1/none"


def run(nursed: nursery.Nursery, folder: Path, *arguments: str, **env: str) -> children.Child:
    return nursed.start(arguments, name="tarsy", log=folder / "log", cwd=folder, env=env)


@pytest.fixture
def waiting(tmp_path: Path) -> list[str]:
    """The arguments of an operator that waits, for the end of its platform file, and does nothing yet."""
    os.mkfifo(tmp_path / "tarsy.yaml")
    return ["operator", "--insecure-dev", "--config", str(tmp_path / "tarsy.yaml")]


@pytest.mark.parametrize("arguments", [["--version"], ["operator", "--config", "here.yaml"]])
def test_it_says_and_returns_what_the_program_does(
    nursed: nursery.Nursery, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of our own environment is in its own; in `env` is what the file asks for."""
    monkeypatch.setenv("TARSY_WEBHOOK_TOKEN", "ours")
    (tmp_path / "here.yaml").write_text("{queue: {slots: many}}")
    env = {"DATABASE_URL": NOWHERE}
    child = run(nursed, tmp_path, *arguments, **env)
    program = Path(sys.executable).with_name("tarsy")
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([program, *arguments], cwd=tmp_path, env=env | path, capture_output=True, text=True)
    assert child.process.wait(60) == done.returncode
    assert child.log.read_text() == done.stdout + done.stderr != ""


def test_one_that_is_killed_says_so_and_others_go_on(
    nursed: nursery.Nursery, tmp_path: Path, waiting: list[str]
) -> None:
    killed, other = (run(nursed, tmp_path, *waiting, DATABASE_URL=NOWHERE) for _ in "ab")
    killed.end(signal.SIGKILL)
    assert killed.process.returncode == -signal.SIGKILL
    killed.end()
    with pytest.raises(subprocess.TimeoutExpired):
        other.process.wait(0.1)
    other.end()
    assert other.process.returncode == -signal.SIGTERM


def test_all_end_with_the_nursery(tmp_path: Path, waiting: list[str]) -> None:
    with nursery.Nursery(log=tmp_path / "nursery.log") as own:
        child = run(own, tmp_path, *waiting, DATABASE_URL=NOWHERE)
        assert child.process.poll() is None
    assert child.process.wait(60) == -signal.SIGKILL
    with pytest.raises(children.ChildError, match="nursery ended"):
        run(own, tmp_path, "--version")

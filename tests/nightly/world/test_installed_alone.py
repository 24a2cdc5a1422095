"""The commands as `pip install tarsy` installs them: without the packages of the operator."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tarsy_dev import tools

LIGHT = {"click": ("click",), "pyyaml": ("yaml", "_yaml")}
"""The packages that tarsy depends on, with their modules."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that has the wheel, and what it depends on, alone."""
    folder = tmp_path_factory.mktemp("alone")
    wheels, environment = folder / "wheels", folder / "environment"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
    subprocess.run(build, cwd=tools.ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    (wheel,) = wheels.iterdir()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for module in (module for modules in LIGHT.values() for module in modules):
        spec = importlib.util.find_spec(module)
        assert spec
        assert spec.origin
        (site / module).symlink_to(Path(spec.origin).parent)
    return environment / "bin"


def run(programs: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{programs}:/usr/bin:/bin", "DATABASE_URL": "postgresql://tarsy@127.0.0.1:1/tarsy"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_commands_run_and_those_of_the_operator_name_the_extra(programs: Path) -> None:
    listed = run(programs, "tarsy", "get", "--uid", "x", "-n", "tarsy", "--api", "http://127.0.0.1:1")
    assert (listed.returncode, "cannot be reached" in listed.stderr) == (5, True), listed
    assert run(programs, "kubectl_complete-tarsy", "wat").stdout.splitlines()[-1] == ":4"
    assert "kubectl tarsy" in run(programs, "kubectl-tarsy", "--help").stdout
    assert run(programs, "tarsy", "completion", "zsh").returncode == 0
    for command in (
        ("operator",),
        ("migrate", "--help"),
        ("config", "check", "x.yaml"),
        ("config", "schema"),
        ("chain", "lint", "x.yaml"),
        ("chain", "convert", "x.yaml", "-o", "out"),
        ("check", "--pre"),
    ):
        refused = run(programs, "tarsy", *command)
        assert (refused.returncode, "pip install 'tarsy[operator]'" in refused.stderr) == (2, True), refused

"""Data of the operator that a child process can read as an unprivileged user: root reads everything."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys

import pytest
from tarsy.process import hardening

NOBODY = "65534"
SECRET = "postgresql://u:s3cret@h/t"

READS_PARENT = """
import os, subprocess
for name in ("environ", "mem", "maps"):
    read = subprocess.run(["head", "-c", "100000", f"/proc/{os.getpid()}/{name}"], capture_output=True)
    print(name, b"s3cret" in read.stdout, b"Permission denied" in read.stderr)
"""

STARTS_OPERATOR = """
import click
from tarsy.cli.main import main
try:
    main(["operator", "--config", "/nonexistent"], standalone_mode=False)
except click.ClickException as error:
    print(error.message)
"""


def unprivileged() -> list[str]:
    """Return the command that runs a program as a user other than root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing: without it root cannot run a program as somebody else")
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if subprocess.run([*user, sys.executable, "-c", "import tarsy"], capture_output=True, check=False).returncode:
        pytest.skip("this Python lies where only root may read")
    return user


def run(script: str) -> list[str]:
    environment = {**os.environ, "DATABASE_URL": SECRET, "TARSY_WEBHOOK_TOKEN": "s3cret"}
    done = subprocess.run(
        [*unprivileged(), sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_child_of_the_operator_reads_neither_its_environment_nor_its_memory() -> None:
    problem, *read = run(STARTS_OPERATOR + READS_PARENT)
    assert problem == (
        "/nonexistent: No such file or directory: "
        "put the platform file there, or name another by --config or TARSY_CONFIG"
    )
    assert read == ["environ False True", "mem False True", "maps False True"]


def test_a_child_of_a_process_that_is_not_closed_reads_its_secrets() -> None:
    """Or the test above would show nothing."""
    assert "environ True False" in run(READS_PARENT)


def test_unprotectable_process_environment_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with caplog.at_level(logging.WARNING):
        hardening.make_undumpable()
    assert caplog.messages == ["MCP servers that TARSy starts can read its environment: darwin has no prctl"]
    assert vars(caplog.records[0])["action"] == "not_hardened"

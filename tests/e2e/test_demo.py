"""`make demo`, as a person runs it: what it prints, and that its exit code tells how the investigation ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tarsy_dev import children, tools

pytestmark = pytest.mark.usefixtures("programs")


def demo(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if name != "GOOGLE_API_KEY"}
    command = [sys.executable, "-m", "tarsy_dev", "demo"]
    return subprocess.run(command, cwd=tools.ROOT, env=given | env, capture_output=True, text=True, timeout=100)


def test_the_demo_prints_table_stages_and_analysis_and_leaves_nothing_running() -> None:
    done = demo({})
    assert done.returncode == 0, done.stdout + done.stderr
    for shown in ("Posted alert KubePodCrashLooping", "Completed", "kubernetes-agent-chain", "analysis", "Root cause"):
        assert shown in done.stdout
    assert "password authentication failed" in done.stdout
    assert not (tools.ROOT / ".demo" / "env").exists()


def test_the_demo_fails_when_its_model_cannot_be_reached() -> None:
    (nobody,) = children.free_ports(1)
    done = demo({"GOOGLE_API_KEY": "any", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{nobody}"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "google-default gave no answer in 4 attempts" in done.stdout

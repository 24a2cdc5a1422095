"""`make demo`, as a person runs it: what it prints, and that its exit code tells how the investigation ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tarsy_dev import loopback, model, tools


def demo(programs: dict[str, Path], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it on the programs that the other tests have: without a download."""
    environment = {name: value for name, value in os.environ.items() if name != "GOOGLE_API_KEY"}
    environment["KUBEBUILDER_ASSETS"] = str(programs["etcd"].parent)
    command = [sys.executable, "-m", "tarsy_dev", "demo"]
    return subprocess.run(command, cwd=tools.ROOT, env=environment | env, capture_output=True, text=True, timeout=280)


def test_the_demo_fails_when_its_model_refuses_the_key(programs: dict[str, Path]) -> None:
    refusal = model.HttpError(status=403, message="this key may do nothing")
    with loopback.background(model.serve(model.answers(refusal))) as running:
        done = demo(programs, {"GOOGLE_API_KEY": "any", "GOOGLE_GEMINI_BASE_URL": running.server.url})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "google-default: 403 PERMISSION_DENIED: this key may do nothing" in done.stdout

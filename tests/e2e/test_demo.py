"""`make demo`, as a person runs it: what it prints, and that its exit code tells how the investigation ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tarsy_dev import tools


def demo(programs: dict[str, Path], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it on the programs that the other tests have: without a download."""
    environment = {name: value for name, value in os.environ.items() if name != "GOOGLE_API_KEY"}
    environment["KUBEBUILDER_ASSETS"] = str(programs["etcd"].parent)
    command = [sys.executable, "-m", "tarsy_dev", "demo"]
    return subprocess.run(command, cwd=tools.ROOT, env=environment | env, capture_output=True, text=True, timeout=280)


def test_the_demo_prints_table_stages_analysis_and_summary_and_leaves_nothing_running(
    programs: dict[str, Path],
) -> None:
    done = demo(programs, {})
    assert done.returncode == 0, done.stdout + done.stderr
    for excerpt in (
        "Posted alert KubePodCrashLooping",
        "2/2 stages",
        "password authentication failed",
        "**Conclusion.** Stage 'root-cause-analysis' finds it still so: pod `web-0` in namespace `shop` starts",
        "In short:\nPod web-0 in namespace shop starts, ends with an error, and is started again; its log says fatal: ",
        "Grounded: True (Inspected)",
    ):
        assert excerpt in done.stdout
    stages = [line.split()[:3] for line in done.stdout.splitlines() if re.match(r"(data|root)-\S+ +Completed", line)]
    assert stages == [["data-collection", "Completed", "2/2"], ["root-cause-analysis", "Completed", "1/1"]]
    assert not (tools.ROOT / ".demo" / "env").exists()

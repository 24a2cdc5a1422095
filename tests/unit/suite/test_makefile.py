from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tarsy_dev import setup


def test_make_test_says_how_long_it_takes_and_what_it_needs_before_anything_else(tmp_path: Path) -> None:
    """Beside this Makefile there is nothing, so that what would be installed first fails."""
    shutil.copy(setup.ROOT / "Makefile", tmp_path)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "test"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    first = done.stdout.splitlines()[0]
    assert "7 to 8 minutes on two idle cores" in first
    for need in ("no cluster", "Python packages", "control plane with Go", "kubernetes-mcp-server"):
        assert need in done.stdout

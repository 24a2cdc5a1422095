"""A run of tests is red after too many retries, and only what did not come in time is tried again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tarsy_dev import tools

OPTIONS = re.search(r"^REAL := .*?(--reruns .*?) \$\(", (tools.ROOT / "Makefile").read_text(), re.MULTILINE)
"""Those of the tests on real parts."""
SOURCE = """
import pytest
from tarsy_dev import patience

tried = set()

def fail_once(name, error):
    if name not in tried:
        tried.add(name)
        raise error

@pytest.mark.parametrize("number", range({late}))
def test_late(number):
    fail_once(number, patience.TooLong("waited in vain"))
"""
WRONG = """
def test_wrong():
    fail_once("wrong", AssertionError("wrong"))

@pytest.mark.once
def test_kill():
    fail_once("kill", patience.TooLong("waited in vain"))
"""


def run(folder: Path, source: str) -> tuple[int, str, set[str]]:
    """The exit code of a run of these tests, its output, and the tests that were tried again."""
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = once\n")
    assert OPTIONS
    command = [sys.executable, "-m", "pytest", "-p", "support.retries", "-p", "no:cacheprovider", *OPTIONS[1].split()]
    paths = os.pathsep.join(str(tools.ROOT / name) for name in ("tests", "dev", "operator"))
    ended = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    return ended.returncode, ended.stdout, set(json.loads((folder / ".dev" / "flaky.json").read_text()))


@pytest.mark.parametrize(("late", "code"), [(3, 0), (4, 1)])
def test_more_than_three_retries_are_red(tmp_path: Path, late: int, code: int) -> None:
    ended, output, retried = run(tmp_path, SOURCE.format(late=late))
    assert (ended, len(retried)) == (code, late), output
    assert ("red: 4 retries, of which at most 3 are bad luck" in output) == bool(code)
    assert output.count("retried, because it did not reach something in time: test_it.py::test_late[") == late


def test_wrong_results_and_tests_that_run_once_are_not_tried_again(tmp_path: Path) -> None:
    ended, output, retried = run(tmp_path, SOURCE.format(late=1) + WRONG)
    assert (ended, retried) == (1, {"test_it.py::test_late[0]"})
    assert "2 failed, 1 passed, 1 rerun" in output

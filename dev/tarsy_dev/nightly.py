"""The tests that no change waits for: repeats, outages, images, charts, real nodes, and what compares times.

They run in three parts, each whatever became of the others: side by side; alone, what compares times and sizes; and
those on a real node, where the machine has what one needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tarsy_dev import tools
from tarsy_dev.node import requirements

RESULTS = tools.ROOT / ".dev" / "junit"
_FOLDER = "tests/nightly"
_MEASURED = f"{_FOLDER}/measured"


@dataclass
class Part:
    """One run of pytest, or the reason why there is none."""

    name: str
    arguments: Sequence[str]
    skipped: str = ""
    passed: int = 0
    red: Sequence[str] = ()
    seconds: float = 0

    @property
    def result_path(self) -> Path:
        """The file of its results."""
        return RESULTS / f"nightly-{self.name}.xml"

    def run(self) -> None:
        """Run it and read its results; a run without results is red itself."""
        self.result_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", *self.arguments, f"--junitxml={self.result_path}"]
        status = subprocess.run(command, cwd=tools.ROOT, check=False).returncode
        if not self.result_path.exists():
            self.red = [f"pytest ended with status {status} and without results"]
            return
        suite = next(ET.parse(self.result_path).getroot().iter("testsuite"))  # noqa: S314 - our own file
        cases = list(suite.iter("testcase"))
        is_red = [case.find("failure") is not None or case.find("error") is not None for case in cases]
        self.red = [
            f"{case.get('classname')}::{case.get('name')}" for case, red in zip(cases, is_red, strict=True) if red
        ]
        self.passed = len(cases) - sum(is_red) - int(suite.get("skipped", "0"))
        self.seconds = float(suite.get("time", "0"))
        if status not in (0, 1):
            self.red = [*self.red, f"pytest ended with status {status}"]


def main(arguments: Sequence[str]) -> int:
    """Run the nightly tests, and print one table and the names of the red ones; 1 if there are any."""
    argparse.ArgumentParser(prog="python -m tarsy_dev nightly", description=main.__doc__).parse_args(arguments)
    missing = requirements.missing(images=True)
    parts = [
        Part("rest", ["-n", "3", "--dist", "loadfile", _FOLDER, f"--ignore={_MEASURED}"]),
        Part("measured", [_MEASURED]),
        Part("node", ["tests/node"], skipped=f"it needs {missing}" if missing else ""),
    ]
    for part in parts:
        if not part.skipped:
            part.run()
    print(f"\n{'part':10}{'passed':>8}{'red':>6}{'minutes':>9}")
    for part in parts:
        if part.skipped:
            print(f"{part.name:10}DID NOT RUN: {part.skipped}")
        else:
            print(f"{part.name:10}{part.passed:8}{len(part.red):6}{part.seconds / 60:9.1f}")
    red = [name for part in parts for name in part.red]
    for name in red:
        print(f"red: {name}")
    return 1 if red else 0

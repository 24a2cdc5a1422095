"""How far a program is that takes minutes: read from its output, told on stderr while it runs.

There is a line at each new step, and one each quarter of a minute. Only the standard library is used, because the
installation of everything else is among what is told.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tarsy_dev import children

_EVERY = 15.0  # seconds between two lines of one step


@dataclass(frozen=True, kw_only=True)
class Step:
    """The current step, and how far it is."""

    doing: str
    done: int = 0
    total: int | None = None
    at_most: bool = False
    """`total` is a bound: there may be less to do."""

    def __str__(self) -> str:
        if self.total is None:
            return self.doing
        bound = "at most " if self.at_most else ""
        return f"{self.doing}: {self.done} of {bound}{self.total}, {bound}{self.total - self.done} left"


class Reader(Protocol):
    """Tells from a program's output how far it is."""

    def read(self, line: str) -> bool:
        """Take in a line; False when it says nothing about that: it may be part of an error's message."""

    @property
    def step(self) -> Step:
        """Where the program is."""


class GoBuild:
    """Reads what `dev/controlplane/build.sh` prints: a plan, then each package that is begun.

    `downloads` is how many modules Go may have to download for that.
    """

    def __init__(self, *, downloads: int) -> None:
        self._downloads = downloads
        self._downloaded = 0
        self._packages = 0
        self._todo: set[str] = set()
        self._program: str | None = None
        self._linking = False

    def read(self, line: str) -> bool:
        """Take in a line of Go's or of the plan."""
        match line.split():
            case ["go:", "downloading", _, _]:
                self._downloaded += 1
            case ["have", _]:
                self._packages += 1
            case ["todo", package]:
                self._todo.add(package)
                self._packages += 1
            case ["link", package]:
                self._program = package
                self._linking = not self._todo
            case [package] if package in self._todo:
                self._todo.remove(package)
            case [package] if package == self._program:
                self._linking = True
            case _:
                return False
        return True

    @property
    def step(self) -> Step:
        """Downloading, compiling or linking."""
        if self._linking:
            return Step(doing="linking, the last step")
        if self._program is not None:
            return Step(doing="compiling packages", done=self._packages - len(self._todo), total=self._packages)
        if self._downloaded == 0:
            return Step(doing="looking up modules")
        total = max(self._downloads, self._downloaded)
        return Step(doing="downloading modules", done=self._downloaded, total=total, at_most=True)


PIP_FLAGS = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")


class PipInstall:
    """Reads `pip install`, with PIP_FLAGS, of `total` locked packages."""

    def __init__(self, *, total: int) -> None:
        self._total = total
        self._have = 0
        self._installing = 0

    def read(self, line: str) -> bool:
        """Take in a line of pip's."""
        if re.match(r"Ignoring \S+: markers", line):
            self._total -= 1
        elif re.match(r"Requirement already satisfied:|\s*(Downloading|Using cached) (?!\S+\.metadata )", line):
            self._have += 1
        elif match := re.match(r"Installing collected packages: (.*)", line):
            self._installing = len(match[1].split(", "))
        else:
            return bool(re.match(r"Collecting |\s*(Downloading|Using cached) |Successfully installed ", line))
        return True

    @property
    def step(self) -> Step:
        """Fetching or installing."""
        if self._installing:
            return Step(doing=f"installing {self._installing} packages")
        return Step(doing="fetching packages", done=min(self._have, self._total), total=self._total)


class Teller:
    """Tells on stderr how far `what` is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = time.monotonic()
        self._doing = ""
        self._due = 0.0

    def show(self, step: Step) -> None:
        """Say how far it is, if that is due."""
        if step.doing != self._doing or time.monotonic() >= self._due:
            self._doing, self._due = step.doing, time.monotonic() + _EVERY
            self._say(str(step))

    def end(self) -> None:
        """Say that it is done."""
        self._say("done")

    def _say(self, text: str) -> None:
        passed = int(time.monotonic() - self._start)
        print(f"tarsy_dev: {self._what}: {text} ({passed // 60}:{passed % 60:02})", file=sys.stderr, flush=True)


def follow(
    command: Sequence[str | Path],
    reader: Reader,
    *,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` and tell on stderr how far it is; its output is returned without what `reader` understood.

    When we are interrupted or killed, the program ends too.
    """
    others: list[str] = []
    teller = Teller(what)
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=children.follow_parent(signal.SIGKILL),  # this thread waits for it
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            teller.show(reader.step)
            for line in process.stdout:
                if not reader.read(line.rstrip("\n")):
                    others.append(line)
                teller.show(reader.step)
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        teller.end()
    return subprocess.CompletedProcess(command, process.returncode, "".join(others))

"""Progress of a program that takes minutes: one line on stderr each quarter of a minute.

Only the standard library is used, because the installation of everything else is among what is followed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tarsy_dev import children

_INTERVAL = 15.0
"""Seconds between two lines."""
_LINE_MAX = 100
"""Characters of a program's line that are repeated."""
_LINES_KEPT = 100
"""Last lines of a program that are returned."""


class Teller:
    """Writes on stderr how far `what` is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = time.monotonic()
        self._due = 0.0

    def show(self, text: str) -> None:
        """Write the text, if a line is due."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL
            self._write(text)

    def end(self) -> None:
        """Write that it is done."""
        self._write("done")

    def _write(self, text: str) -> None:
        passed = int(time.monotonic() - self._start)
        print(f"tarsy_dev: {self._what}: {text} ({passed // 60}:{passed % 60:02})", file=sys.stderr, flush=True)


def follow(
    command: Sequence[str | Path], *, what: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `command` and show the last line of its output while it runs; return the end of its output.

    Of a build of `dev/*/build.sh` the compiled packages are counted instead, and its plan is not returned. The program
    ends with this process.
    """
    output: deque[str] = deque(maxlen=_LINES_KEPT)
    todo: set[str] = set()
    planned = 0
    teller = Teller(what)
    with subprocess.Popen(
        command,
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
            for line in process.stdout:
                match line.split():
                    case ["have" | "link", _]:
                        continue
                    case ["todo", package]:
                        todo.add(package)
                        planned += 1
                    case [package] if package in todo:
                        todo.remove(package)
                        teller.show(f"compiling packages: {planned - len(todo)} of {planned}")
                    case _:
                        output.append(line)
                        teller.show(line.strip()[:_LINE_MAX])
        except BaseException:
            process.kill()
            raise
    if process.returncode == 0:
        teller.end()
    return subprocess.CompletedProcess(command, process.returncode, "".join(output))

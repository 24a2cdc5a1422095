"""How far a program is that takes minutes: read from its output, told on stderr while it runs.

On a terminal that is one line, drawn anew at each change; elsewhere a line at each new step and once a minute. Only
the standard library is used, because the installation of everything else is among what is told.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TextIO

from tarsy_dev import children

_EVERY = 60.0  # seconds between two lines of one step where there is no terminal
_TICK = 1.0  # seconds after which the clock is told anew, though the program says nothing
_PATIENCE = 10.0  # seconds that an interrupted program has to end


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is done now, and how far it is."""

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


class Display:
    """The lines on `stream` about `what`; `columns` is the width of a terminal, None where there is none.

    Times are seconds since the beginning.
    """

    def __init__(self, what: str, stream: TextIO, *, columns: int | None) -> None:
        self._what = what
        self._stream = stream
        self._columns = columns
        self._drawn = ""
        self._doing: str | None = None
        self._next = 0.0

    def show(self, step: Step, at: float) -> None:
        """Say how far it is, if that is due."""
        line = f"tarsy_dev: {self._what}: {step} ({_clock(at)})"
        if self._columns is not None:
            self._draw(line, self._columns)
        elif step.doing != self._doing or at >= self._next:
            self._doing, self._next = step.doing, at + _EVERY
            print(line, file=self._stream, flush=True)

    def end(self, at: float, *, ok: bool) -> None:
        """Say that it is done, or leave on the terminal how far it came."""
        line = f"tarsy_dev: {self._what}: done ({_clock(at)})"
        if self._columns is not None:
            if ok:
                self._draw(line, self._columns)
            print(file=self._stream, flush=True)
        elif ok:
            print(line, file=self._stream, flush=True)

    def _draw(self, line: str, columns: int) -> None:
        line = line[: columns - 1]
        if line != self._drawn:
            self._drawn = line
            print(f"\r\033[K{line}", end="", file=self._stream, flush=True)


@contextlib.contextmanager
def telling(what: str) -> Iterator[Callable[[Step], None]]:
    """Give a function that tells on stderr how far `what` is; its end is told unless the body raises."""
    display = _display(what)
    start = time.monotonic()
    ok = False
    try:
        yield lambda step: display.show(step, time.monotonic() - start)
        ok = True
    finally:
        display.end(time.monotonic() - start, ok=ok)


def _display(what: str) -> Display:
    columns = None
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return Display(what, sys.stderr, columns=columns)


def follow(
    command: Sequence[str | Path],
    reader: Reader,
    *,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` and tell on stderr how far it is; its output is returned without what `reader` understood.

    When we are interrupted, so are the program and its children; when we are killed, so is the program.
    """
    display = _display(what)
    start = time.monotonic()
    others: list[str] = []
    status = None
    with (
        _held_back(signal.SIGINT) as (let_it_come, unmasked),
        subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=unmasked(children.follow_parent(signal.SIGKILL)),  # this thread waits for it
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            let_it_come()
            for line in _lines(process.stdout):
                if line is not None and not reader.read(line):
                    others.append(line)
                display.show(reader.step, time.monotonic() - start)
            status = process.wait()
        except BaseException:
            _interrupt(process)
            raise
        finally:
            display.end(time.monotonic() - start, ok=status == 0)
    return subprocess.CompletedProcess(command, status, "".join(f"{line}\n" for line in others))


@contextlib.contextmanager
def _held_back(
    signum: signal.Signals,
) -> Iterator[tuple[Callable[[], object], Callable[[Callable[[], object]], Callable[[], None]]]]:
    """Let no such signal come between a program's start and the moment from which on it is known to us.

    Gives what lets it come, and what makes of a function of the program's process one that has it come there as before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signum})

    def as_before() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def unmasked(work: Callable[[], object]) -> Callable[[], None]:
        def begin() -> None:
            as_before()
            work()

        return begin

    try:
        yield as_before, unmasked
    finally:
        as_before()


def _lines(output: IO[bytes]) -> Iterator[str | None]:
    """Yield each line without its end, and None when there was nothing for a while."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        yield None
        while True:
            if not selector.select(_TICK):
                yield None
                continue
            read = os.read(output.fileno(), 65536)
            *lines, rest = (rest + read).split(b"\n")
            if not read and rest:
                lines.append(rest)
            for line in lines:
                yield line.decode(errors="replace")
            if not read:
                return


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started: with a time to tidy up, and then without."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        os.killpg(process.pid, signal.SIGKILL)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"

"""One supervisor in the background, which outlives the command that started it and the terminal.

It holds a file lock as long as it lives: that tells whether it is up, where a file with a process id would go stale. It
runs in a session of its own, and says that it is ready by a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tarsy_dev import cache, errors, tools


class BackgroundError(errors.Error):
    """A process in the background does not come up, or does not end."""


class Supervisor:
    """The supervisor whose files lie in `state`; `ready` is the one that exists while what it runs is ready.

    `arguments` are those of `python -m tarsy_dev` that run it in the foreground, and `what` names it in messages. It
    calls `locked`; the commands that start and end it hold `command`.
    """

    def __init__(self, state: Path, *, ready: Path, arguments: Sequence[str], what: str) -> None:
        self._state = state
        self._ready = ready
        self._arguments = arguments
        self._what = what
        self._log = state / "supervisor.log"
        self._lock = state / "supervisor.lock"  # held while the supervisor lives; its process id is in it
        self._command = state / "command.lock"  # held by those who start and end it, and delete what the other makes

    @contextlib.contextmanager
    def command(self) -> Iterator[None]:
        """Keep every other command from starting or ending it meanwhile."""
        with cache.locked(self._command):
            yield

    def start(self, *, timeout: float) -> None:
        """Start it and return when it is ready."""
        with self._log.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "tarsy_dev", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=tools.ROOT,
                start_new_session=True,
            )

        def ready() -> bool:
            if supervisor.poll() is not None:
                log_text = self._log.read_text() if self._log.exists() else ""
                raise BackgroundError(f"{self._what} did not come up; {self._log} says:\n{log_text}")
            return self._ready.exists()

        _wait(ready, timeout=timeout, what=f"the start, of which {self._log} tells more")

    def end(self) -> None:
        """End it, which ends all that it runs, and return when its process is gone; nothing happens when none runs."""
        pid = self.pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError), _open_process(pid) as process:  # it may end by itself meanwhile
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], 60)[0]:
                raise BackgroundError(f"waited 60 s in vain for the end of the supervisor (process {pid})")

    def pid(self) -> int | None:
        """Return the process id of the supervisor, or None when none runs."""
        try:
            with self._lock.open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(lock.read())
        except FileNotFoundError:
            pass
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the supervisor. BackgroundError when another is."""
        with self._lock.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BackgroundError(f"another supervisor holds {self._lock}: it is up already") from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield


class StopSignals:
    """SIGTERM and SIGINT, which from now on end the supervisor instead of its process at once.

    A `threading.Event` would not do: a handler runs between two steps of the main thread, and if this held the lock of
    the event just then, `set` would wait for ever. A SimpleQueue may be interrupted by its own `put`.
    """

    def __init__(self) -> None:
        self._received = queue.SimpleQueue[int]()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: self._received.put(received))

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, at most so long; return whether one came."""
        try:
            self._received.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


def typed_path(path: Path) -> str:
    """Return a path as one would type it here; the dot command of a shell needs a slash in it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@contextlib.contextmanager
def _open_process(pid: int) -> Iterator[int]:
    """A file descriptor that can be read once the process has ended."""
    process = os.pidfd_open(pid)
    try:
        yield process
    finally:
        os.close(process)


def _wait(true: Callable[[], bool], *, timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise BackgroundError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(0.05)

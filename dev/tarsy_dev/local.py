"""`make local` and `make local-down`: a world in the background, to run the operator against as often as one likes.

One supervisor has it, in a session of its own, so that it outlives the command and the terminal. It holds a file
lock as long as it lives: that tells whether it is up, where a file with a process id would go stale. When a server
of the world ends, it ends the rest and says so in its log: half a world would only make riddles.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tarsy_dev import assets, cache, errors, tools, world


class LocalError(errors.Error):
    """The local world does not come up, or does not end."""


def main(arguments: Sequence[str]) -> int:
    """Run `local up`, `local down` or `local run`."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev local", description=__doc__)
    parser.add_argument("--state", type=Path, default=tools.ROOT / ".dev", help="where its files lie; .dev by default")
    parser.add_argument("--operator", action="store_true", help="run an operator as well")
    actions = parser.add_subparsers(required=True, metavar="up|down|run")
    actions.add_parser("up", help="start it in the background; does nothing when it is up").set_defaults(do=Local.up)
    actions.add_parser("down", help="end it and delete its data").set_defaults(do=Local.down)
    actions.add_parser("run", help="run it in the foreground until SIGTERM").set_defaults(do=Local.run)
    parsed = parser.parse_args(arguments)
    world = Local(parsed.state.resolve(), operator=parsed.operator)
    parsed.do(world)
    if parsed.do is Local.up:
        print(f"The local world is up; its logs are in {_shown(world.state)}. Next:\n")
        print(f"  . {_shown(world.env)} && tarsy operator\n")
        print("It goes on in the background until 'make local-down'.")
    return 0


class Local:
    """The local world whose files lie in `state`."""

    def __init__(self, state: Path, *, operator: bool = False) -> None:
        self.state = state
        self._operator = operator
        self.env = state / "env"
        """The shell file that says where everything is; it exists while the world is ready."""
        self._log = state / "supervisor.log"
        self._lock = state / "supervisor.lock"  # held while the supervisor lives; its process id is in it
        self._turn = state / "command.lock"  # held by `up` and `down`, which would delete what the other makes

    def up(self) -> None:
        """Start the supervisor, unless it runs, and return when the world is ready."""
        assets.everything()  # in the foreground, because it may take minutes and says so
        self.state.mkdir(exist_ok=True)
        with cache.locked(self._turn):
            if self._supervisor() is None:
                self._clean()
                self._start()

    def down(self) -> None:
        """End the supervisor, which ends the world, and delete what it left."""
        if not self.state.exists():
            return
        with cache.locked(self._turn):
            pid = self._supervisor()
            if pid is not None:
                os.kill(pid, signal.SIGTERM)
                what = f"the end of the supervisor (process {pid})"
                _wait(lambda: self._supervisor() is None, timeout=60, what=what)
            self._clean()

    def environment(self) -> dict[str, str]:
        """The environment of a shell that has read `env`."""
        command = ["bash", "-c", 'set -a && . "$0" && env -0', str(self.env)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)

    def run(self) -> None:
        """Be the supervisor."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.state.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._locked())
            running = stack.enter_context(world.running(self.state))
            env = running.env
            if self._operator:
                env = stack.enter_context(world.operating(running, logs=self.state / "logs"))
            draft = self.env.with_suffix(".draft")
            draft.touch(mode=0o600)
            draft.write_text(_shell(env))
            draft.rename(self.env)
            try:
                while not stop.wait(1):
                    running.check()
            finally:
                self.env.unlink()

    def _start(self) -> None:
        operator = ["--operator"] if self._operator else []
        with self._log.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "tarsy_dev", "local", "--state", self.state, *operator, "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=tools.ROOT,
                start_new_session=True,
            )

        def ready() -> bool:
            if supervisor.poll() is not None:
                raise LocalError(f"the local world did not come up; {self._log} says:\n{self._log.read_text()}")
            return self.env.exists()

        cache.say("starting Kubernetes, Postgres and the scripted model, which takes about 10 seconds")
        _wait(ready, timeout=120, what=f"the start, of which {self._log} tells more")

    def _supervisor(self) -> int | None:
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
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LocalError(f"another supervisor holds {self._lock}: it is up already") from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def _clean(self) -> None:
        """Delete everything but the files of locks, which are only good as long as everybody has the same."""
        database = self.state / world.DATABASE
        if database.is_symlink():
            shutil.rmtree(database.resolve(), ignore_errors=True)  # it is there when the supervisor was killed
        for path in self.state.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.suffix != ".lock":
                path.unlink()


def _shell(env: Mapping[str, str]) -> str:
    lines = ["# For a shell that sources it. Gone with `make local-down`."]
    for name, value in env.items():
        before = ':"$PATH"' if name == "PATH" else ""
        lines.append(f"export {name}={shlex.quote(value)}{before}")
    return "\n".join(lines) + "\n"


def _shown(path: Path) -> str:
    """Return a path as one would type it here; the dot command of a shell needs a slash in it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _wait(true: Callable[[], bool], *, timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise LocalError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(0.05)

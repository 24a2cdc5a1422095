"""Operators as processes that have `tarsy` imported before they begin.

To import it takes an operator 4 s of a processor, most of what it costs a test. Here one process imports it, starts
nothing, and is forked for each operator: what runs from there on is the command itself, `tarsy operator`, with its
own arguments, environment, log, signals and end. What a module reads of the environment while it is imported it does
not see, but for `TARSY_FAILPOINTS`: for that, and for what is tested of the start itself, `children.start` runs the
program.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tarsy_dev import children, tools

_MODULES = ("tarsy.cli.main", "tarsy.cli.operator", "tarsy.tools.servers.pool", "tarsy.llm.gemini")
"""Modules that an operator whose provider is of type `google` imports, sooner or later."""
_LONGEST = 128 * 1024
_STATUS_BYTES = 4


class Nursery:
    """The process that is forked. Usable as a context manager, whose end is the end of all that was forked."""

    def __init__(self, *, log: Path) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        with theirs:
            self._child = children.start(
                [sys.executable, "-P", "-m", "tarsy_dev.nursery", str(theirs.fileno())],
                name="nursery",
                log=log,
                cwd=tools.ROOT,
                inherited=[theirs.fileno()],
            )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._child.end(signal.SIGKILL)
        self._ours.close()

    def start(
        self, arguments: Sequence[str], *, name: str, log: Path, cwd: Path, env: Mapping[str, str]
    ) -> children.Child:
        """Run `tarsy` with these arguments, as `children.start` would: a session of its own, its output to `log`."""
        status_reader, tells = os.pipe()
        start_request = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode()
        try:
            with log.open("ab") as output, self._turn:
                self._child.check()
                socket.send_fds(self._ours, [start_request], [output.fileno(), tells])
                pid = self._ours.recv(_LONGEST)
        finally:
            os.close(tells)
        if not pid:
            raise children.ChildError(f"the nursery ended; {self._child.story()}")
        return children.Child(name=name, process=Forked(int(pid), status_reader), log=log)


class Forked:
    """A process that was forked for us by another, which tells us its status once it has ended."""

    def __init__(self, pid: int, status_reader: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._told = status_reader
        self._turn = threading.Lock()

    def poll(self) -> int | None:
        """Its status once it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its status, or subprocess.TimeoutExpired."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"operator {self.pid}", timeout or 0)
        return status

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        with self._turn:
            if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
                # Nothing is told where the nursery was killed, and its children with it.
                status_bytes = os.read(self._told, _STATUS_BYTES)
                self.returncode = int.from_bytes(status_bytes, "big", signed=True) if status_bytes else -signal.SIGKILL
                os.close(self._told)
            return self.returncode


def _serve(asked: socket.socket) -> Sequence[str]:
    """Fork for each who asks, and tell how each ended. Returns in each child: the arguments of its command."""
    follow = children.follow_parent(signal.SIGKILL)
    running: dict[int, tuple[int, int]] = {}
    """By the descriptor of a process: its id, and where its end is told."""
    while True:
        readable, _, _ = select.select([asked.fileno(), *running], [], [])
        for ended in running.keys() & set(readable):
            pid, tells = running.pop(ended)
            _, status = os.waitpid(pid, 0)
            os.write(tells, os.waitstatus_to_exitcode(status).to_bytes(_STATUS_BYTES, "big", signed=True))
            os.close(tells)
            os.close(ended)
        if asked.fileno() not in readable:
            continue
        start_request, descriptors, _, _ = socket.recv_fds(asked, _LONGEST, 2)
        if not start_request:
            sys.exit()
        output, tells = descriptors
        pid = os.fork()
        if pid == 0:
            follow()
            for descriptor in (tells, *running, *(other for _, other in running.values())):
                os.close(descriptor)
            return _become(json.loads(start_request), output)
        os.close(output)
        running[os.pidfd_open(pid)] = (pid, tells)
        asked.send(str(pid).encode())


def _become(start_request: Mapping[str, Any], output: int) -> Sequence[str]:
    """Make of this process what `children.start` makes of a new one; the arguments of its command."""
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.chdir(start_request["cwd"])
    os.environ.clear()
    os.environ.update(start_request["env"])
    importlib.reload(sys.modules["tarsy.failpoints"])
    arguments: list[str] = start_request["arguments"]
    sys.argv = ["tarsy", *arguments]
    return arguments


def main() -> None:
    """Import, and serve on the socket of which the number is given."""
    gc.disable()
    for module in _MODULES:
        importlib.import_module(module)
    gc.enable()
    gc.freeze()  # what the collector does not look at is not copied for each child
    command = importlib.import_module(_MODULES[0]).main
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        arguments = _serve(asked)
    command(arguments, prog_name="tarsy")


if __name__ == "__main__":
    main()

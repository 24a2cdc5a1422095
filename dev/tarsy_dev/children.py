"""Servers as child processes that never outlive us.

A test run may be killed at any moment, and what it leaves behind would hold memory and ports for ever. Handlers and
`atexit` do not run then, so the kernel is asked to end the children (`PR_SET_PDEATHSIG`). It does so when the
*thread* that started them ends, hence the one thread that starts them all and lives as long as the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Protocol, TypeVar

from tarsy_dev import errors, patience

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="children")


class ChildError(errors.Error):
    """A child ended that should not."""


class Process(Protocol):
    """The controls of a child process, as `subprocess.Popen` has them."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its status once it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its status, or subprocess.TimeoutExpired."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, if it has not ended."""

    def kill(self) -> None:
        """Kill it, if it has not ended."""


class Child:
    """One running server and its log."""

    def __init__(self, *, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    def check(self) -> None:
        """Raise ChildError, with the end of the log, if the child has ended."""
        status = self.process.poll()
        if status is not None:
            raise ChildError(f"{self.name} ended with status {status}; {self.story()}")

    def story(self) -> str:
        """Name the log and repeat its last lines, for an error's message."""
        lines = self.log.read_text(errors="replace").splitlines()[-20:]
        return "\n".join([f"the end of {self.log}:", *(f"  {line}" for line in lines)])

    def wait_until(self, ready: Callable[[], T | None], *, what: str, timeout: float = patience.PATIENCE) -> T:
        """Poll `ready` until it returns something true, and return it.

        Raises ChildError when the child ends before, and TooLong after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.check()
            answer = ready()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise patience.TooLong(f"{self.name}: {what} did not come true in {timeout:.0f} s; {self.story()}")
            time.sleep(0.02)  # the pace of polling; what is waited for is `ready`

    def end(self, how: signal.Signals = signal.SIGTERM, *, timeout: float = patience.PATIENCE) -> None:
        """Send the signal and wait for the end, which becomes a SIGKILL after `timeout` seconds."""
        self.process.send_signal(how)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(
    command: Sequence[str | Path],
    *,
    name: str,
    log: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    group: int | None = None,
    death: signal.Signals = signal.SIGKILL,
    inherited: Sequence[int] = (),
) -> Child:
    """Start a server in a session of its own (a Ctrl-C is for us, not for it), its output appended to `log`.

    `user` and `group` are ids that root drops to. `death` is what the kernel sends it when we die.
    It has the descriptors of ours that are `inherited`, under their numbers.
    """

    def popen() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=env,
                user=user,
                group=group,
                extra_groups=None if group is None else [],
                start_new_session=True,
                pass_fds=inherited,
                preexec_fn=follow,  # as the new user: a change of user would clear what is set there
            )

    follow = follow_parent(death)
    log.parent.mkdir(parents=True, exist_ok=True)
    return Child(name=name, process=_starter.submit(popen).result(), log=log)


def follow_parent(death: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` by which the child gets the signal `death` when the thread that starts it ends."""
    parent = os.getpid()

    def follow() -> None:
        if _libc.prctl(_PR_SET_PDEATHSIG, death) != 0 or os.getppid() != parent:
            os._exit(1)

    return follow


def http_status(connection: HTTPConnection, path: str, *, posted: object = None) -> int:
    """GET `path`, or POST `posted` there as JSON: the status, or 0 while no server answers. For `wait_until`.

    The connection is closed.
    """
    with contextlib.closing(connection):
        try:
            if posted is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(posted), {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (OSError, HTTPException):
            return 0


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nothing listens, for servers that can only be told a port.

    No port is returned twice, nor to another process while this one runs, and none that the system gives to a process
    that asks for any, or to a connection (net.ipv4.ip_local_port_range, from 32768 by default): so no other process
    takes it before the server does.
    """
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        if _is_ours(port):
            ports.append(port)
    return ports


_PORTS = range(20_000, 30_000)
_OURS: set[int] = set()


@functools.cache
def _register() -> int:
    """A file of which each process locks the bytes whose numbers are its ports."""
    path = Path(tempfile.gettempdir()) / f"tarsy-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _is_ours(port: int) -> bool:
    """Reserve it, unless it was returned, another process has it, or a server listens on it."""
    if port in _OURS:
        return False
    try:
        fcntl.lockf(_register(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    _OURS.add(port)
    return True

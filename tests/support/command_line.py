"""The command line as a process, with a kubeconfig and the API's address; in a pipe or in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tarsy_dev import patience

START = "from tarsy.cli.main import main; main()"
IN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
"""Makes the terminal the session's own, so that Ctrl-C in it reaches the program."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs commands. `env` is added to their environment."""

    def __init__(self, *, kubectl: Path, kubeconfig: Path, env: Mapping[str, str]) -> None:
        self.env = {
            **os.environ,
            "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
            "TERM": "xterm-256color",
            **env,
        }
        self.env.pop("NO_COLOR", None)

    def other(self, **env: str | None) -> CommandLine:
        """The same with other variables; None takes one away."""
        changed = CommandLine.__new__(CommandLine)
        merged = {**self.env, **{name: value or "" for name, value in env.items()}}
        changed.env = {name: value for name, value in merged.items() if env.get(name, value) is not None}
        return changed

    async def run(self, *arguments: str, stdin: str = "") -> Ended:
        """Run a command in pipes to its end."""
        async with self.started(*arguments, stdin=bool(stdin)) as child:
            async with patience.limit():
                out, err = await child.communicate(stdin.encode() if stdin else None)
            return Ended(code=child.returncode or 0, out=out.decode(), err=err.decode())

    @contextlib.asynccontextmanager
    async def started(self, *arguments: str, stdin: bool = False) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a command in pipes; it is ended if it still runs."""
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", START, *arguments, env=self.env, stdout=pipe, stderr=pipe, limit=2**24,
            stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield child
        finally:
            if child.returncode is None:
                child.kill()
                await child.communicate()

    @contextlib.asynccontextmanager
    async def terminal(self, *arguments: str) -> AsyncIterator[Terminal]:
        """Start a command in a terminal of its own, of 40 rows and 120 columns."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", IN_TERMINAL + START, *arguments, env=self.env,
            stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        screen = Terminal(child, leader)
        try:
            yield screen
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
            screen.close()


class Terminal:
    """A terminal with one program in it."""

    def __init__(self, child: asyncio.subprocess.Process, leader: int) -> None:
        self._child = child
        self._leader = leader
        self._read = bytearray()
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(leader, self._readable)

    @property
    def text(self) -> str:
        """All that the program wrote."""
        return self._read.decode(errors="replace")

    def type(self, text: str) -> None:
        """Type; \\x03 is Ctrl-C."""
        os.write(self._leader, text.encode())

    async def until(self, text: str) -> None:
        """Wait until the program has written `text`."""
        async with patience.limit():
            while text not in self.text:
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> int:
        """Wait until the program has ended; its exit code."""
        async with patience.limit():
            code = await self._child.wait()
        await asyncio.sleep(0)
        with contextlib.suppress(OSError, BlockingIOError):
            os.set_blocking(self._leader, False)
            while more := os.read(self._leader, 65536):
                self._read += more
        return code

    def _readable(self) -> None:
        try:
            self._read += os.read(self._leader, 65536)
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self._leader)
        self._changed.set()

    def close(self) -> None:
        """Close it."""
        asyncio.get_running_loop().remove_reader(self._leader)
        os.close(self._leader)

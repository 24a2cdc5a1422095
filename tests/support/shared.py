"""The one control plane and the one Postgres of a run, which all its workers use.

They belong to the process that the workers of xdist come from; without xdist the one process is both. It starts each
when it is first asked for, and ends both when the run ends; should it be killed, the kernel ends them
(`tarsy_dev.children`). When one of them has died, the run ends with the first test that fails. A test that kills or
changes one has one of its own: `own_plane`, `own_postgres`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
from support import migration
from tarsy_dev import children, controlplane, postgres, tools

_ADDRESS = "shared_servers"
"""The key by which a worker finds the address of the servers' owner."""
_OWNER = pytest.StashKey["Owner"]()


def pytest_configure(config: pytest.Config) -> None:
    """Own the servers in the one process that is no worker."""
    if not hasattr(config, "workerinput"):
        config.stash[_OWNER] = owner = Owner(config)
        config.pluginmanager.register(owner)


class Owner:
    """The process that has the servers."""

    def __init__(self, config: pytest.Config) -> None:
        """Start nothing yet; `config` is the run's."""
        self._config = config
        self._running = contextlib.ExitStack()
        self._started: list[controlplane.ControlPlane | postgres.Server] = []
        self._turn = threading.Lock()
        self._listener: connection.Listener | None = None

    @functools.cached_property
    def plane(self) -> controlplane.Administrator:
        """Access to the control plane, with the kinds of `crds/` and a simulated node."""
        crds = sorted((tools.ROOT / "crds").glob("*.yaml"))
        plane = controlplane.ControlPlane(folder=self._folder / "plane", crds=crds, audited=True)
        self._started.append(self._running.enter_context(plane))
        return controlplane.Administrator(folder=plane.folder, url=plane.url)

    @functools.cached_property
    def postgres(self) -> postgres.Access:
        """Access to the database server, which has the template of migrated databases."""
        server = self._running.enter_context(postgres.Server(log=self._folder / "postgres.log", durable=False))
        migration.prepare(server)
        self._started.append(server)
        return server.access()

    @functools.cached_property
    def _folder(self) -> Path:
        return self._config._tmp_path_factory.mktemp("shared")  # type: ignore[attr-defined,no-any-return]

    def get(self, name: str) -> Any:
        """`plane` or `postgres`, which is started if it does not run; others wait for it."""
        with self._turn:
            return getattr(self, name)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker, before it starts, where to ask for the servers."""
        if self._listener is None:
            self._listener = connection.Listener(family="AF_UNIX")
            threading.Thread(target=self._serve, args=[self._listener], daemon=True).start()
        node.workerinput[_ADDRESS] = self._listener.address

    def _serve(self, listener: connection.Listener) -> None:
        """Answer the workers, one after the other, until the listener is closed."""
        while True:
            try:
                worker = listener.accept()
            except OSError:
                return
            with worker, contextlib.suppress(EOFError, OSError):  # the worker has ended
                try:
                    answer = self.get(worker.recv())
                except Exception as error:  # noqa: BLE001 - it is raised in the worker
                    answer = error
                worker.send(answer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the run, with one line, if a test did not pass because a server has died: no other would."""
        if report.outcome not in ("passed", "skipped"):
            for server in self._started:
                try:
                    server.check()
                except children.ChildError as error:
                    pytest.exit(str(error).partition("\n")[0].rstrip(":"), returncode=pytest.ExitCode.TESTS_FAILED)

    def pytest_unconfigure(self) -> None:
        """End what was started, once no worker is left."""
        with self._turn:
            if self._listener is not None:
                self._listener.close()
            self._running.close()


def ask(config: pytest.Config, name: str) -> Any:
    """Return access to the run's `plane` or its `postgres`, in any process of the run."""
    if _OWNER in config.stash:
        return config.stash[_OWNER].get(name)
    with connection.Client(config.workerinput[_ADDRESS], family="AF_UNIX") as owner:  # type: ignore[attr-defined]
        owner.send(name)
        answer = owner.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer

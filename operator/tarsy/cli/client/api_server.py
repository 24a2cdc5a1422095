"""GETs of any path of the cluster's API server, with any header: through kubectl's proxy on a Unix socket."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tarsy.cli.client import failures, kubectl

_SECONDS = 60.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def reader(cluster: kubectl.Kubectl) -> Iterator[Callable[[str, str], tuple[int, str]]]:
    """Start `kubectl proxy`, which only reads, in a folder of this user's; end it at the end.

    Yields a function of a path and a header Accept that returns the status and the body. Raises a Failure.
    """
    with tempfile.TemporaryDirectory(prefix="tarsy-") as folder:
        path = Path(folder) / "api"
        command = cluster.command("proxy", f"--unix-socket={path}", "--reject-methods=^(POST|PUT|PATCH|DELETE)$")
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except FileNotFoundError as error:
            raise failures.Failure("kubectl is not on PATH") from error
        with process:
            try:
                assert process.stdout  # noqa: S101 - it is a pipe
                first = process.stdout.readline()
                if not first.startswith("Starting to serve"):
                    raise kubectl.failure(first + process.stdout.read())
                connection = _Connection(path)

                def read(target: str, accept: str) -> tuple[int, str]:
                    try:
                        connection.request("GET", target, headers={"Accept": accept})
                        response = connection.getresponse()
                        return response.status, response.read().decode(errors="replace")
                    except (OSError, http.client.HTTPException) as error:
                        connection.close()
                        raise failures.Unreachable(f"the cluster cannot be reached through kubectl: {error}") from error

                yield read
                connection.close()
            finally:
                process.terminate()

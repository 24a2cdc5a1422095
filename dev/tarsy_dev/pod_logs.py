"""A log server that answers `kubectl logs` in the place of a kubelet.

The text comes from an annotation of the pod, the times from its status, so that a crash-looping pod has a log of each
of its lives. kwok serves logs too, but from files that are chosen by namespace and container name when it starts; here
the test that makes the pod says what it logs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import ssl
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tarsy_dev import certificates

_LOG = "dev.tarsy.dev/log"
_CRASH = "dev.tarsy.dev/crash"
_HEALTHY_LOG = "server starting\nlistening on 0.0.0.0:8080\nready\n"
_CRASH_LOG = """\
server starting
reading configuration from the environment
fatal: DATABASE_URL is not set
exit status 1
"""

Pod = Mapping[str, Any]


class LogError(Exception):
    """The log cannot be had; the message is what a kubelet says."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev.pod_logs", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port of 127.0.0.1 to listen on")
    parser.add_argument("--server", required=True, help="the URL of the API server")
    parser.add_argument("--pki", type=Path, required=True, help="the folder of the control plane's certificates")
    parsed = parser.parse_args(arguments)
    with _Server(parsed.port, server=parsed.server, pki=parsed.pki) as serving:
        serving.serve_forever()
    return 0


class _Server(ThreadingHTTPServer):
    """The server, with access to the API server as the administrator."""

    daemon_threads = True

    def __init__(self, port: int, *, server: str, pki: Path) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.crt"))
        serving.verify_mode = ssl.CERT_REQUIRED
        serving.load_cert_chain(pki / f"{certificates.SERVER}.crt", pki / f"{certificates.SERVER}.key")
        # The handshake is left to the thread of a connection: a slow one would hold up the others.
        self.socket = serving.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._asking = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._asking.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._api = urlsplit(server)

    def pod(self, namespace: str, name: str) -> Pod:
        """Return the pod. Raises LogError."""
        connection = HTTPSConnection(self._api.hostname or "", self._api.port, timeout=30, context=self._asking)
        try:
            with contextlib.closing(connection):
                connection.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
                response = connection.getresponse()
                answer: dict[str, Any] = json.load(response)
        except (OSError, HTTPException) as error:
            raise LogError(HTTPStatus.BAD_GATEWAY, str(error)) from error
        if response.status == HTTPStatus.OK:
            return answer
        status = HTTPStatus.NOT_FOUND if response.status == HTTPStatus.NOT_FOUND else HTTPStatus.BAD_GATEWAY
        raise LogError(status, str(answer.get("message")))


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: _Server
    timeout = 600

    def do_GET(self) -> None:
        """Answer /healthz and /containerLogs/NAMESPACE/POD/CONTAINER."""
        address = urlsplit(self.path)
        match address.path.split("/"):
            case ["", "healthz"]:
                self._answer(HTTPStatus.OK, b"ok")
            case ["", "containerLogs", namespace, name, container]:
                self._log(namespace, name, container, dict(parse_qsl(address.query)))
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"not found\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name for it
        """Log no requests."""

    def _log(self, namespace: str, name: str, container: str, options: Mapping[str, str]) -> None:
        try:
            pod = self.server.pod(namespace, name)
            started, running = life(pod, container, previous=options.get("previous") == "true")
        except LogError as error:
            self._answer(error.status, f"{error}\n".encode())
            return
        self._answer(HTTPStatus.OK, excerpt(log_text(pod), started, options))
        if running and options.get("follow") == "true":
            self.rfile.read(1)  # until the reader goes away

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        """Answer without a length: the end of the connection ends the body."""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(body)


def log_text(pod: Pod) -> str:
    """Return what one life of the pod's container writes."""
    annotations = pod["metadata"].get("annotations", {})
    default = _CRASH_LOG if annotations.get(_CRASH) == "true" else _HEALTHY_LOG
    return str(annotations.get(_LOG) or default)


def life(pod: Pod, container: str, *, previous: bool) -> tuple[dt.datetime, bool]:
    """Return when the wanted life of a container began, and whether it lasts. Raises LogError."""
    of = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
    for status in pod.get("status", {}).get("containerStatuses", []):
        if status["name"] != container:
            continue
        last = status.get("lastState", {}).get("terminated")
        state = status.get("state", {})
        if previous and last is None:
            raise LogError(HTTPStatus.BAD_REQUEST, f"previous terminated {of} not found")
        if "running" in state and not previous:
            return _time(state["running"]["startedAt"]), True
        if last is not None:
            return _time(last["startedAt"]), False
        if reason := state.get("waiting", {}).get("reason"):
            why = "trying and failing to pull image" if reason == "ImagePullBackOff" else reason
            raise LogError(HTTPStatus.BAD_REQUEST, f"{of} is waiting to start: {why}")
    raise LogError(HTTPStatus.BAD_REQUEST, f"{of} is not available")


def excerpt(text: str, started: dt.datetime, options: Mapping[str, str]) -> bytes:
    """Return what the options of `kubectl logs` leave of a text whose lines are a millisecond apart."""
    since = started
    if seconds := options.get("sinceSeconds"):
        since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=int(seconds))
    elif moment := options.get("sinceTime"):
        since = _time(moment)
    lines = []
    for number, line in enumerate(text.rstrip("\n").split("\n")):
        at = started + dt.timedelta(milliseconds=number)
        if at >= since:
            stamp = f"{at:%Y-%m-%dT%H:%M:%S.%fZ} " if options.get("timestamps") == "true" else ""
            lines.append(f"{stamp}{line}\n")
    if tail := options.get("tailLines"):
        lines = lines[max(0, len(lines) - int(tail)) :]
    limit = options.get("limitBytes")
    return "".join(lines).encode()[: int(limit) if limit else None]


def _time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Requests to the cluster through kubectl, so that contexts, credential plugins, proxies and `--as` work as there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import Any
from urllib import parse

from tarsy.cli.client import failures

SECONDS = 30.0
GROUP = "/apis/tarsy.dev/v1alpha1"
INVESTIGATIONS = "alertinvestigations"
CHAINS = "agentchains"
_LOG = re.compile("[EWI][0-9]{4} ")
"""The start of a line of kubectl's log, such as `E1121 20:26:18.123 ...`."""
_AWAY = (
    "Unable to connect to the server",
    "The connection to the server",
    "connection refused",
    "connection reset",
    "context deadline exceeded",
    "Client.Timeout",
    "TLS handshake timeout",
    "i/o timeout",
    "no such host",
    "unexpected EOF",
    "http2: client connection lost",
    "(ServiceUnavailable)",
    "(Timeout)",
    "(InternalError)",
    "(TooManyRequests)",
    "the server is currently unable to handle the request",
    "apiserver not ready",
    "etcdserver:",
)
_MISUSE = (
    "does not exist",
    "unknown field",
    "(BadRequest)",
    "(Invalid)",
    "no context",
    "current-context must exist",
    "error validating",
)


class Kubectl:
    """kubectl, with its options for the cluster and the user."""

    def __init__(
        self,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        user: str | None = None,
        groups: Sequence[str] = (),
    ) -> None:
        """`user` and `groups` are impersonated."""
        self._options = [
            *(["--kubeconfig", kubeconfig] if kubeconfig else []),
            *(["--context", context] if context else []),
            *(["--as", user] if user else []),
            *(option for group in groups for option in ("--as-group", group)),
        ]

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return ["kubectl", *self._options, *arguments]

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the output of kubectl. Raises a Failure with its message."""
        try:
            result = subprocess.run(
                self.command(*arguments),
                input="" if stdin is None else stdin,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=SECONDS,
            )
        except FileNotFoundError as error:
            raise failures.Failure("kubectl is not on PATH") from error
        except subprocess.TimeoutExpired as error:
            raise failures.Unreachable(f"kubectl did not answer within {SECONDS:g} s") from error
        if result.returncode != 0:
            raise failure(result.stderr or f"kubectl ended with {result.returncode}")
        return result.stdout

    def get(self, path: str, **query: str | int | None) -> Any:
        """Return the JSON at a path of the API server."""
        output = self.run("get", "--raw", with_query(path, **query))
        try:
            return json.loads(output)
        except ValueError as error:
            raise failures.Unreachable(f"{path}: the API server answered no JSON") from error

    def patch(self, name: str, *, namespace: str, uid: str, spec: dict[str, Any]) -> None:
        """Change the spec of the investigation that has this uid."""
        body = json.dumps({"metadata": {"uid": uid}, "spec": spec})
        self.run("patch", f"{INVESTIGATIONS}.tarsy.dev", name, "-n", namespace, "--type=merge", "-p", body)


def failure(stderr: str) -> failures.Failure:
    """Return the failure that kubectl reports."""
    lines = [line for line in stderr.strip().splitlines() if not _LOG.match(line)] or stderr.strip().splitlines()[-1:]
    message = "\n".join(lines).removeprefix("error: ").removeprefix("Error: ")
    kind: type[failures.Failure] = failures.Failure
    if "could not find the requested resource" in message:
        message = f"the cluster does not have TARSy's kinds: install the CRDs ({message})"
    elif "(NotFound)" in message:
        kind = failures.NotFound
    elif "(Forbidden)" in message or "(Unauthorized)" in message or "You must be logged in" in message:
        kind = failures.Refused
    elif any(sign in message for sign in _AWAY):
        kind = failures.Unreachable
    elif any(sign in message for sign in _MISUSE):
        kind = failures.Misuse
    return kind(message)


def with_query(path: str, **query: str | int | None) -> str:
    """Return a path with the parameters that have a value."""
    parameters = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{parse.urlencode(parameters)}" if parameters else path


def path(namespace: str | None, plural: str = INVESTIGATIONS, name: str = "") -> str:
    """Return the path of an object, or of a list; without a namespace, of all namespaces."""
    inside = f"/namespaces/{parse.quote(namespace, safe='')}" if namespace else ""
    return f"{GROUP}{inside}/{plural}" + (f"/{parse.quote(name, safe='')}" if name else "")

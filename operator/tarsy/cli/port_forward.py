"""A port of this machine that leads to the API in the cluster, for commands that were given no address."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tarsy.cli import kubeconfig

SELECTOR = "app.kubernetes.io/part-of=tarsy,app.kubernetes.io/component in (api,operator)"
"""Selects the API's Service among those that the chart makes: the pods behind it differ by the chart's `mode`."""
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]+) ")


def api_service(namespace: str, *, context: str | None = None) -> str:
    """Return the name of the API's Service. Raises a ClickException if there is none, or more than one."""
    output = "jsonpath={.items[*].metadata.name}"
    names = kubeconfig.kubectl(
        "get", "services", "-n", namespace, "-l", SELECTOR, "-o", output, context=context
    ).split()
    if len(names) != 1:
        found = f"several Services of TARSy's API: {', '.join(names)}" if names else "no Service of TARSy's API"
        message = f"namespace {namespace} has {found}. Name the API's address with --api"
        raise click.ClickException(message)
    return names[0]


@contextmanager
def to_api(namespace: str, *, context: str | None = None) -> Iterator[str]:
    """Forward a port to the API's Service, and yield its address. Raises a ClickException if that fails."""
    service = api_service(namespace, context=context)
    command = ["kubectl", *(["--context", context] if context else [])]
    command += ["port-forward", "-n", namespace, f"service/{service}", ":http", "--address", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout  # noqa: S101 - it is a pipe
            match = _FORWARDED.match(forward.stdout.readline())
            if match is None:  # kubectl has said why on stderr
                raise click.ClickException(f"no port can be forwarded to Service {namespace}/{service}")
            yield f"http://127.0.0.1:{match[1]}"
        finally:
            forward.terminate()

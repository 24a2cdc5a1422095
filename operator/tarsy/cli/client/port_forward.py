"""A local port that kubectl forwards to the API's Service, for commands without `--api`."""

from __future__ import annotations

import re
import subprocess
import threading

from tarsy.cli.client import failures, kubectl

SELECTOR = "app.kubernetes.io/part-of=tarsy,app.kubernetes.io/component in (api,operator)"
"""Selects the API's Service among those that the chart makes: the pods behind it differ by the chart's `mode`."""
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]+) ")


def api_service(cluster: kubectl.Kubectl, namespace: str) -> str:
    """Return the name of the API's Service. Raises a Failure if there is none, or more than one."""
    output = "jsonpath={.items[*].metadata.name}"
    names = cluster.run("get", "services", "-n", namespace, "-l", SELECTOR, "-o", output).split()
    if len(names) != 1:
        services = f"several Services of TARSy's API: {', '.join(names)}" if names else "no Service of TARSy's API"
        message = f"namespace {namespace} has {services}. Name the API's address with --api"
        raise failures.Unreachable(message)
    return names[0]


class Forward:
    """kubectl's port-forward to the API's Service, started again when it has ended."""

    def __init__(self, cluster: kubectl.Kubectl, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._service = ""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._url = ""

    def url(self) -> str:
        """Return the address; starts the port-forward if none runs. Raises a Failure if that fails."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        return self._url

    def _start(self) -> None:
        self._service = self._service or api_service(self._cluster, self._namespace)
        target = ["-n", self._namespace, f"service/{self._service}", ":http", "--address", "127.0.0.1"]
        process = subprocess.Popen(
            self._cluster.command("port-forward", *target),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._process = process
        assert process.stdout  # noqa: S101 - it is a pipe
        lines: list[str] = []
        for line in process.stdout:
            if match := _FORWARDED.match(line):
                break
            lines.append(line)
        else:
            self.close()
            failure = kubectl.failure("".join(lines) or "kubectl gave no reason")
            kind = failures.Refused if isinstance(failure, failures.Refused) else failures.Unreachable
            raise kind(f"no port can be forwarded to Service {self._namespace}/{self._service}: {failure.message}")
        # kubectl writes a line for each connection, and would block if nothing read them.
        self._reader = threading.Thread(target=process.stdout.read, daemon=True)
        self._reader.start()
        self._url = f"http://127.0.0.1:{match[1]}"

    def close(self) -> None:
        """End the port-forward."""
        if self._process is not None:
            self._process.terminate()
            if self._reader:
                self._reader.join()
            with self._process:  # closes its pipe, and waits
                self._process = self._reader = None

"""Settings of one process: from its environment and flags, not from the platform file."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tarsy.config.load import loader, secret_files
from tarsy.config.model.webhooks import WEBHOOK_TOKEN
from tarsy.telemetry import metrics

Role = Literal["all", "controller", "worker", "api"]

DATABASE_URL = "DATABASE_URL"
DEPLOYMENT = "TARSY_DEPLOYMENT"
NO_METRICS = "off"
NAMESPACE = "TARSY_NAMESPACE"
FILE = "_FILE"
"""The suffix of a variable that names a file with the secret; it wins over the secret's own variable."""


_URL_LOOKS = "it should look like postgresql://user:password@host:5432/tarsy"


class SecretError(loader.ConfigError):
    """The file of a secret does not have it, or not yet; the message names only the variable."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A secret of the environment, or of a file, which may appear after the start of the process."""

    variable: str
    value: str = field(default="", repr=False)
    """"" if it is in a file."""
    file: Path | None = None
    check: Callable[[str], str] = str
    """Returns its argument, or raises a loader.ConfigError."""

    def read(self) -> str:
        """Return the present secret; raises a SecretError if its file does not have it."""
        if self.file is None:
            return self.value
        named = f"{self.variable}{FILE}: the file that it names"
        try:
            secret = secret_files.read_text(self.file)
        except secret_files.UnreadableError as error:
            raise SecretError(f"{named}: {error}") from error
        if not secret:
            raise SecretError(f"{named} is empty")
        try:
            return self.check(secret)
        except loader.ConfigError as error:
            raise SecretError(f"{named}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that `tarsy operator` was started with."""

    database_url: Secret
    platform_file: Path | None
    """None: the built-in platform."""
    kubeconfig: Path | None
    """None: the cluster that the process runs in, or the default kubeconfig."""
    listen_host: str
    listen_port: int
    role: Role
    metrics_listen: tuple[str, int] | None
    """The address of the metrics' listener; None: there is none."""
    metrics_required: bool
    """Whether the process must not start without that listener, because its address was given."""
    webhook_token: Secret | None
    """None only with `--insecure-dev`, and if the API is not served."""
    deployment: str = ""
    """The Deployment of the process, set by the chart; "" if there is none, which then gets no events."""
    namespace: str = ""
    """The operator's own namespace, set by the chart for workers, which have no service account's token; "" if the
    kubeconfig or the service account says it."""
    insecure_dev: bool = False
    """Whether runbooks may also be read from this machine's loopback (`tools.runbooks.client`)."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of this process."""
        return ("api", "controller", "worker") if self.role == "all" else (self.role,)

    def serves(self, role: Role) -> bool:
        """Return whether this process has `role`."""
        return role in self.roles


def operator(
    *,
    environment: Mapping[str, str],
    config: Path | None,
    kubeconfig: Path | None,
    listen: str,
    role: Role,
    insecure_dev: bool,
    metrics_listen: str | None = None,
) -> Settings:
    """Return the settings of `tarsy operator`; raises a ConfigError that names the variable or flag.

    Without `metrics_listen` the metrics' listener has its default address, if that is free.
    """
    host, port = _address(listen, flag="--listen", example="127.0.0.1:8080")
    address = None
    if metrics_listen != NO_METRICS:
        example = f"{metrics.DEFAULT_LISTEN}, and not {NO_METRICS}"
        address = _address(
            metrics.DEFAULT_LISTEN if metrics_listen is None else metrics_listen,
            flag="--metrics-listen",
            example=example,
        )
    if insecure_dev and host not in ("127.0.0.1", "::1", "localhost"):
        raise loader.ConfigError(f"--insecure-dev serves loopback only, not {host}: give --listen 127.0.0.1:{port}")
    token = _secret(environment, WEBHOOK_TOKEN) if role in ("all", "api") else None
    if token is None and role in ("all", "api") and not insecure_dev:
        raise loader.ConfigError(
            f"{WEBHOOK_TOKEN} is not set: set it or {WEBHOOK_TOKEN}{FILE}, or give --insecure-dev for an open loopback"
        )
    url = database_url(environment)
    if token is not None and insecure_dev:
        raise loader.ConfigError(f"--insecure-dev: {WEBHOOK_TOKEN} is set as well: unset it, or leave the flag out")
    return Settings(
        database_url=url,
        platform_file=config,
        kubeconfig=kubeconfig,
        listen_host=host,
        listen_port=port,
        role=role,
        metrics_listen=address,
        metrics_required=metrics_listen is not None,
        webhook_token=token,
        deployment=environment.get(DEPLOYMENT, ""),
        namespace=environment.get(NAMESPACE, ""),
        insecure_dev=insecure_dev,
    )


def _address(value: str, *, flag: str, example: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT. Raises a ConfigError."""
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise loader.ConfigError(f"{flag}: {value!r} is not HOST:PORT, such as {example}")
    return host, int(port)


def _secret(environment: Mapping[str, str], variable: str, *, check: Callable[[str], str] = str) -> Secret | None:
    """Return the secret of a file that the environment names, else of the environment, which is checked at once."""
    if path := environment.get(variable + FILE):
        return Secret(variable=variable, file=Path(path), check=check)
    value = environment.get(variable, "").strip()
    return Secret(variable=variable, value=check(value)) if value else None


def database_url(environment: Mapping[str, str]) -> Secret:
    """Return the database's URL, of a file or the environment.

    Raises a ConfigError, which shows an example and never the value.
    """
    url = _secret(environment, DATABASE_URL, check=_checked)
    if url is None:
        raise loader.ConfigError(f"{DATABASE_URL} is not set: set it or {DATABASE_URL}{FILE}; {_URL_LOOKS}")
    return url


def _checked(url: str) -> str:
    if not _is_postgres(url):
        encoded = "special characters in user and password percent-encoded"
        raise loader.ConfigError(f"{DATABASE_URL} is not the URL of a Postgres database: {_URL_LOOKS}, {encoded}")
    return url


def _is_postgres(url: str) -> bool:
    """Return whether asyncpg can parse `url`: its own errors quote parts of a password as a host or a port."""
    try:
        parsed = urllib.parse.urlsplit(url)
        urllib.parse.parse_qs(parsed.query, strict_parsing=bool(parsed.query))
        _, _, hosts = parsed.netloc.rpartition("@")
        servers = [urllib.parse.urlsplit(f"//{host}") for host in hosts.split(",") if hosts]
        reachable = all(server.hostname and server.port != 0 for server in servers)
    except ValueError:
        return False
    plain = parsed.netloc.count("@") <= 1 and not parsed.fragment
    return parsed.scheme in ("postgresql", "postgres") and reachable and plain

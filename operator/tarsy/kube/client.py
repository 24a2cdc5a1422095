"""The process's client of the API server, by kubeconfig or service account."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf
import pydantic
import yaml
from kubernetes.aio import client as kubernetes
from kubernetes.aio import config

from tarsy import errors, proxies
from tarsy.masking import known_secrets
from tarsy.resources import namespaces

REQUEST_SECONDS = 10.0

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CREDENTIALS_LIVE = timedelta(minutes=10)  # projected tokens rotate; kopf reads a token once for each login


class ConfigError(Exception):
    """The kubeconfig or service account cannot be used; the message says why."""


class ClusterDownError(errors.TemporaryError):
    """The API server cannot be reached or cannot serve now; the same request may work later."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The API client, the served namespaces, and the known secrets, which are never written to the cluster."""

    api: kubernetes.ApiClient
    configuration: kubernetes.Configuration
    served: namespaces.Served
    secrets: known_secrets.KnownSecrets = field(default_factory=known_secrets.KnownSecrets)

    async def credentials(self) -> kopf.ConnectionInfo:
        """Return the client's credentials for kopf, which has a client of its own."""
        configuration = self.configuration
        refresh: Any = configuration.refresh_api_key_hook
        if refresh is not None:
            refreshed = refresh(configuration)
            if inspect.isawaitable(refreshed):  # so with a kubeconfig, but not with a service account
                await refreshed
        _, _, token = (configuration.api_key.get("BearerToken") or "").rpartition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            token=token or None,
            default_namespace=self.served.own,
            expiration=datetime.now(UTC) + _CREDENTIALS_LIVE,
        )

    async def close(self) -> None:
        """Close the client's connections."""
        await self.api.close()


async def connect(
    kubeconfig: Path | None,
    *,
    served: Iterable[str] = (),
    default_namespace: str | None = None,
    secrets: known_secrets.KnownSecrets | None = None,
) -> Cluster:
    """Return a client for `kubeconfig`'s current context, or for the cluster that this process runs in.

    None means the service account if there is one, else the default kubeconfig ($KUBECONFIG, ~/.kube/config). `served`
    are the namespaces that are served beside its own; requests without a namespace are about `default_namespace`, None
    is its own. Raises ConfigError.
    """
    configuration = kubernetes.Configuration()
    inside = kubeconfig is None and (_SERVICE_ACCOUNT / "token").exists()
    default = os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"
    source = str(_SERVICE_ACCOUNT if inside else kubeconfig or default)
    try:
        if inside:
            config.load_incluster_config(client_configuration=configuration)
            namespace = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        else:
            namespace = await _load(configuration, source)
        configuration.proxy = configuration.proxy or proxies.proxy_for(configuration.host)
        configuration.client_session_kwargs = {"trust_env": False}
        api = kubernetes.ApiClient(configuration)
    except (config.ConfigException, OSError, ValueError) as error:  # OSError, ValueError: also a bad certificate
        raise ConfigError(f"{source}: {error}") from error
    return Cluster(
        api=api,
        configuration=configuration,
        served=namespaces.Served.from_names(namespace, served, default=default_namespace),
        secrets=secrets or known_secrets.KnownSecrets(),
    )


def own_namespace(kubeconfig: Path | None) -> str:
    """Return the namespace of the operator, as `connect` finds it, for a process that sends no requests.

    It is "" if there is neither a service account nor a kubeconfig that can be read.
    """
    account = _SERVICE_ACCOUNT / "namespace"
    if kubeconfig is None and account.exists():
        return account.read_text(encoding="utf-8").strip()
    paths = str(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    try:
        _check(paths)
        _, current = config.list_kube_config_contexts(config_file=paths)
    except (ConfigError, config.ConfigException, OSError):
        return ""
    return str(current["context"].get("namespace", "default"))


async def _load(configuration: kubernetes.Configuration, paths: str) -> str:
    """Fill `configuration` from kubeconfigs, separated as in $KUBECONFIG; return the current context's namespace."""
    _check(paths)
    try:
        await config.load_kube_config(config_file=paths, client_configuration=configuration)
    except TypeError as error:  # the library's error
        raise ConfigError(f"{paths}: the current context has no user, or one that is not among users") from error
    _, current = config.list_kube_config_contexts(config_file=paths)
    return str(current["context"].get("namespace", "default"))


class _Named(pydantic.BaseModel):
    name: str
    cluster: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    user: dict[str, Any] | None = None


class _Kubeconfig(pydantic.BaseModel):
    """The shape that the client library assumes; it reports all else that is missing."""

    clusters: list[_Named] | None = None
    contexts: list[_Named] | None = None
    users: list[_Named] | None = None


def _check(paths: str) -> None:
    """Raise ConfigError unless one of the files exists, and all that exist are kubeconfigs."""
    files = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    existing = [file for file in files if file.exists()]
    if not existing:
        raise ConfigError(f"{paths}: no such file: name a kubeconfig by --kubeconfig or KUBECONFIG")
    for file in existing:
        _check_file(file)


def _check_file(file: Path) -> None:
    """Raise ConfigError unless `file` is a kubeconfig. The message quotes nothing of the file, which has secrets."""
    try:
        _Kubeconfig.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"{file}: not YAML{f', line {mark.line + 1}' if mark else ''}") from error
    except pydantic.ValidationError as error:
        message = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}" for fault in error.errors()
        )
        raise ConfigError(f"{file}: not a kubeconfig: {message}") from error

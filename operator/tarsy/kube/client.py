"""One client for the process: kubeconfig or service account, every request with a deadline."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf
from kubernetes.aio import client as kubernetes
from kubernetes.aio import config

REQUEST_SECONDS = 10.0

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CREDENTIALS_LIVE = timedelta(minutes=10)  # projected tokens rotate; kopf reads a token once for each login


class ConfigError(Exception):
    """The kubeconfig or service account cannot be used; the message says why."""


class ClusterDownError(Exception):
    """The API server cannot be reached, or cannot serve, just now; the same call may work later."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The API client, and the namespace that the operator itself lives in."""

    api: kubernetes.ApiClient
    configuration: kubernetes.Configuration
    namespace: str

    async def credentials(self) -> kopf.ConnectionInfo:
        """The same credentials for kopf, which has a client of its own."""
        found = self.configuration
        refresh: Any = found.refresh_api_key_hook
        if refresh is not None:
            refreshed = refresh(found)
            if inspect.isawaitable(refreshed):  # it is for a kubeconfig, and is not for a service account
                await refreshed
        _, _, token = (found.api_key.get("BearerToken") or "").rpartition(" ")
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            token=token or None,
            default_namespace=self.namespace,
            expiration=datetime.now(UTC) + _CREDENTIALS_LIVE,
        )

    async def close(self) -> None:
        """Close the client's connections."""
        await self.api.close()


async def connect(kubeconfig: Path | None) -> Cluster:
    """A client for `kubeconfig`'s current context, or for the cluster that this process runs in.

    None means the service account where there is one, else the default kubeconfig ($KUBECONFIG, ~/.kube/config).
    A ConfigError says what is wrong with it.
    """
    configuration = kubernetes.Configuration()
    try:
        namespace = await _load(configuration, kubeconfig)
    except config.ConfigException as error:
        raise ConfigError(f"{kubeconfig or 'the default kubeconfig'}: {error}") from error
    return Cluster(api=kubernetes.ApiClient(configuration), configuration=configuration, namespace=namespace)


async def _load(configuration: kubernetes.Configuration, kubeconfig: Path | None) -> str:
    """Fill `configuration`; return the namespace."""
    if kubeconfig is None and (_SERVICE_ACCOUNT / "token").exists():
        config.load_incluster_config(client_configuration=configuration)
        return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    path = str(kubeconfig) if kubeconfig else None
    await config.load_kube_config(config_file=path, client_configuration=configuration)
    _, current = config.list_kube_config_contexts(config_file=path)
    return str(current["context"].get("namespace", "default"))

"""The token and namespace of the kubeconfig's context, for commands that call the API.

kubectl reads the kubeconfig, so KUBECONFIG, contexts and merged files work as they do for kubectl.

Source: Kubernetes documentation, "Organizing Cluster Access Using kubeconfig Files", "client-go credential plugins".
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tarsy.cli.client import failures, kubectl

PLUGIN_SECONDS = 120.0
"""Seconds for a credential plugin, which may wait for a person."""
HOW = "make one with `kubectl create token ACCOUNT`, and pass it as TARSY_TOKEN or --token-file"


def read(cluster: kubectl.Kubectl) -> dict[str, Any]:
    """Return the kubeconfig of the context alone, with the credentials in it."""
    config: dict[str, Any] = json.loads(cluster.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    return config


def namespace(config: dict[str, Any]) -> str:
    """Return the context's namespace."""
    contexts = config.get("contexts") or []
    return str((contexts[0].get("context") or {}).get("namespace") or "default") if contexts else "default"


def token(config: dict[str, Any]) -> str:
    """Return the token of the context's user. Raises a Failure with the remedy if the user has none."""
    users = config.get("users") or []
    user: dict[str, Any] = (users[0].get("user") or {}) if users else {}
    if value := user.get("token"):
        return str(value)
    if path := user.get("tokenFile"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise failures.Refused(f"the kubeconfig's token file cannot be read: {error}") from error
    if plugin := user.get("exec"):
        return _plugin_token(plugin)
    if "client-certificate-data" in user or "client-certificate" in user:
        raise failures.Refused(f"the kubeconfig's user has a client certificate, and no token: {HOW}")
    raise failures.Refused(f"the kubeconfig's user has no token: {HOW}")


def _plugin_token(plugin: dict[str, Any]) -> str:
    """Run a credential plugin, and return the token of the credential that it prints."""
    name = str(plugin.get("command", ""))
    request = {
        "apiVersion": plugin.get("apiVersion", "client.authentication.k8s.io/v1"),
        "kind": "ExecCredential",
        "spec": {"interactive": os.isatty(0)},
    }
    environment = {entry["name"]: entry["value"] for entry in plugin.get("env") or []}
    try:
        result = subprocess.run(
            [name, *(plugin.get("args") or [])],
            env=os.environ | environment | {"KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdout=subprocess.PIPE,
            check=False,
            timeout=PLUGIN_SECONDS,
        )
        value = json.loads(result.stdout)["status"].get("token") if result.returncode == 0 else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.TimeoutExpired) as error:
        raise failures.Refused(f"the kubeconfig's credential plugin {name} gave no credential: {error}") from error
    if not value:
        raise failures.Refused(f"the kubeconfig's credential plugin {name} gave no token: {HOW}")
    return str(value)

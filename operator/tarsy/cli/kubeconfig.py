"""The token of the kubeconfig's user, for commands that call the API.

kubectl reads the kubeconfig, so KUBECONFIG, contexts and merged files work as they do for kubectl.

Source: Kubernetes documentation, "Organizing Cluster Access Using kubeconfig Files", "client-go credential plugins".
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import click

KUBECTL_SECONDS = 30.0
PLUGIN_SECONDS = 120.0
"""Seconds for a credential plugin, which may wait for a person."""
HOW = "make one with `kubectl create token ACCOUNT`, and pass it as TARSY_TOKEN or --token-file"


def kubectl(*arguments: str, context: str | None = None) -> str:
    """Return the output of kubectl. Raises a ClickException with its message if it fails."""
    command = ["kubectl", *(["--context", context] if context else []), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=KUBECTL_SECONDS)
    except FileNotFoundError as error:
        raise click.ClickException("kubectl is not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise click.ClickException(f"kubectl did not answer within {KUBECTL_SECONDS:g} s") from error
    if result.returncode != 0:
        raise click.ClickException(result.stderr.strip() or f"kubectl ended with {result.returncode}")
    return result.stdout


def token(*, context: str | None = None) -> str:
    """Return the token of the context's user. Raises a ClickException with the remedy if the user has none."""
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json", context=context))
    users = config.get("users") or []
    user: dict[str, Any] = (users[0].get("user") or {}) if users else {}
    if value := user.get("token"):
        return str(value)
    if path := user.get("tokenFile"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise click.ClickException(f"the kubeconfig's token file cannot be read: {error}") from error
    if plugin := user.get("exec"):
        return _plugin_token(plugin)
    if "client-certificate-data" in user or "client-certificate" in user:
        raise click.ClickException(f"the kubeconfig's user has a client certificate, and no token: {HOW}")
    raise click.ClickException(f"the kubeconfig's user has no token: {HOW}")


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
        raise click.ClickException(f"the kubeconfig's credential plugin {name} gave no credential: {error}") from error
    if not value:
        raise click.ClickException(f"the kubeconfig's credential plugin {name} gave no token: {HOW}")
    return str(value)

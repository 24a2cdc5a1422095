"""ServiceAccounts with rights, and their tokens: who calls the API as somebody whom Kubernetes knows."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence

import pytest
from tarsy.resources import base
from tarsy_dev.controlplane import ControlPlane

EVERYTHING = ("create", "delete", "get", "list", "update")
EDITOR: Mapping[str, Sequence[str]] = {"alertinvestigations": EVERYTHING, "agentchains": ["list"]}
"""What the API asks for at most."""


def token(plane: ControlPlane, *, namespace: str, name: str, audience: str = "") -> str:
    """A token of a ServiceAccount, for the API server where no audience is named."""
    audiences = [f"--audience={audience}"] if audience else []
    return plane.kubectl("create", "token", name, *audiences, namespace=namespace).strip()


def create(plane: ControlPlane, *, namespace: str, name: str, may: Mapping[str, Sequence[str]] | None = None) -> str:
    """Make a ServiceAccount that `may` do that with our kinds in its namespace; a token of it."""
    _create(plane, namespace=namespace, name=name, roles=_roles(name, namespace=namespace, may=may) if may else [])
    return token(plane, namespace=namespace, name=name)


@pytest.fixture
def editor(plane: ControlPlane) -> str:
    """The token of somebody who may do everything that the API offers, in all namespaces."""
    return _editor(plane)


@functools.cache
def _editor(plane: ControlPlane) -> str:
    """Made once for each control plane."""
    name, namespace = "tarsy-test-editor", "default"
    roles = _roles(name, namespace=namespace, may=EDITOR, everywhere=True)
    _create(plane, namespace=namespace, name=name, roles=roles)
    return plane.kubectl("create", "token", name, "--duration=24h", namespace=namespace).strip()


def _create(plane: ControlPlane, *, namespace: str, name: str, roles: Sequence[Mapping[str, object]]) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    made = {"apiVersion": "v1", "kind": "List", "items": [account, *roles]}
    plane.kubectl("create", "-f", "-", input=json.dumps(made), namespace=namespace)


def _roles(
    name: str, *, namespace: str, may: Mapping[str, Sequence[str]], everywhere: bool = False
) -> list[dict[str, object]]:
    """A role called like the account, and its binding to it, in its namespace or `everywhere`."""
    rules = [{"apiGroups": [base.GROUP], "resources": [kind], "verbs": list(verbs)} for kind, verbs in may.items()]
    group, kind = "rbac.authorization.k8s.io", "ClusterRole" if everywhere else "Role"
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    reference = {"apiGroup": group, "kind": kind, "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [
        {**head, "kind": kind, "rules": rules},
        {**head, "kind": f"{kind}Binding", "roleRef": reference, "subjects": [subject]},
    ]

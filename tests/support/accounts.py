"""Accounts and users with rights, and their tokens: callers of the API that Kubernetes knows."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jwt
import pytest
from support import waiting
from tarsy.kube import calls, client, rights
from tarsy.resources import base
from tarsy_dev.controlplane import Administrator

EVERYTHING = ("create", "delete", "get", "list", "update")
EDITOR: Mapping[str, Sequence[str]] = {
    "alertinvestigations": EVERYTHING,
    "alertinvestigations/feedback": ["create"],
    "agentchains": ["list"],
    "mcpservers": ["update"],
    "auditevents": ["get"],
}
"""The rights that the API asks for at most."""
EDITORS_NAME = "system:serviceaccount:default:tarsy-test-editor"
"""The name of `editor` in audits."""
_RBAC = "rbac.authorization.k8s.io"


async def create(
    cluster: client.Cluster, name: str, *, namespace: str = "", may: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Make a ServiceAccount that `may` do that with our kinds in its namespace, by default the cluster's; its token."""
    where = namespace or cluster.served.own
    path = f"/api/v1/namespaces/{where}/serviceaccounts"
    await calls.request(cluster, "POST", path, body={"metadata": {"name": name}})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": where}
    await _bind(cluster, name, subject=subject, namespace=where, may=may or {})
    return await token(cluster, name, namespace=where)


async def token(cluster: client.Cluster, name: str, *, namespace: str = "", audience: str = "") -> str:
    """A token of a ServiceAccount, for the API server where no audience is named."""
    path = f"/api/v1/namespaces/{namespace or cluster.served.own}/serviceaccounts/{name}/token"
    made = await calls.request(cluster, "POST", path, body={"spec": {"audiences": [audience] if audience else []}})
    return str(made["status"]["token"])


async def grant(cluster: client.Cluster, name: str, *, may: Mapping[str, Sequence[str]], kind: str = "User") -> None:
    """Let a user, or a group, do that with our kinds in the cluster's namespace."""
    subject = {"kind": kind, "name": name, "apiGroup": _RBAC}
    await _bind(cluster, name, subject=subject, namespace=cluster.served.own, may=may)


async def revoke(cluster: client.Cluster, name: str) -> None:
    """Take the rights away again from an account, a user or a group."""
    await calls.request(cluster, "DELETE", f"{_rbac(cluster.served.own)}/rolebindings/{name}")
    await calls.request(cluster, "DELETE", f"{_rbac(cluster.served.own)}/roles/{name}")


async def delete(cluster: client.Cluster, name: str) -> None:
    """Delete a ServiceAccount of the cluster's namespace."""
    await calls.request(cluster, "DELETE", f"/api/v1/namespaces/{cluster.served.own}/serviceaccounts/{name}")


async def empower(cluster: client.Cluster, name: str, may: Iterable[rights.Right]) -> None:
    """Let an account of the cluster's namespace do exactly that from now on; the API server hears of it soon."""
    granted = list(may)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.served.own}
    local, everywhere = (f"{_RBAC}/v1/namespaces/{cluster.served.own}", f"{_RBAC}/v1")
    for scope, kind, here in ((local, "Role", False), (everywhere, "ClusterRole", True)):
        full_name = f"{cluster.served.own}-{name}"
        role, binding = _role(full_name, kind, subject, may={})
        role["rules"] = [
            {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
            | ({"resourceNames": [right.name]} if right.name else {})
            for right in granted
            if right.everywhere is here
        ]
        for made in (role, binding):
            path = f"/apis/{scope}/{made['kind'].lower()}s/{full_name}"
            await calls.request(
                cluster,
                "PATCH",
                path,
                query={"fieldManager": "tests", "force": "true"},
                body=made,
                content_type="application/apply-patch+yaml",
            )


def signed(plane: Administrator, like: str, **claims: object) -> str:
    """A token like that one, but for those claims: signed by the control plane's own key."""
    former = jwt.decode(like, options={"verify_signature": False})
    header = {"kid": jwt.get_unverified_header(like)["kid"]}
    return jwt.encode(former | claims, (plane.folder / "pki" / "sa.key").read_text(), algorithm="RS256", headers=header)


@pytest.fixture
def editor(plane: Administrator) -> str:
    """Return the token of an account that may do everything that the API offers, in all namespaces."""
    return _editor(plane)


@functools.cache
def _editor(plane: Administrator) -> str:
    """Asked for once by each worker, each of which may be the one that makes the account."""
    namespace, name = EDITORS_NAME.split(":")[2:]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    made = {"apiVersion": "v1", "kind": "List", "items": [account, *_role(name, "ClusterRole", subject, may=EDITOR)]}
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(made), namespace=namespace)
    asked = {
        "user": EDITORS_NAME,
        "resourceAttributes": {"verb": "list", "group": base.GROUP, "resource": "agentchains"},
    }
    review = json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked})
    allowed = ("create", "-f", "-", "-o", "jsonpath={.status.allowed}")
    while plane.kubectl(*allowed, input=review, namespace=namespace) != "true":
        pass  # the API server learns of a binding a moment later
    return plane.kubectl("create", "token", name, "--duration=24h", namespace=namespace).strip()


async def _bind(
    cluster: client.Cluster, name: str, *, subject: dict[str, str], namespace: str, may: Mapping[str, Sequence[str]]
) -> None:
    if may:
        role, binding = _role(name, "Role", subject, may=may)
        await calls.request(cluster, "POST", f"{_rbac(namespace)}/roles", body=role)
        await calls.request(cluster, "POST", f"{_rbac(namespace)}/rolebindings", body=binding)
        await in_force(cluster, role, subject, namespace=namespace)


async def in_force(
    cluster: client.Cluster, role: Mapping[str, Any], subject: Mapping[str, str], *, namespace: str
) -> None:
    """Wait until the API server grants `subject` the first right of a role: it learns of a binding a moment later.

    It learns of roles, and of bindings, in the order in which they were made.
    """
    rule = role["rules"][0]
    resource, _, subresource = rule["resources"][0].partition("/")
    attributes = {"verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "namespace": namespace}
    attributes |= {"subresource": subresource, "name": (rule.get("resourceNames") or [""])[0]}
    if subject["kind"] == "ServiceAccount":
        asked: dict[str, Any] = {"user": f"system:serviceaccount:{subject['namespace']}:{subject['name']}"}
    else:
        asked = {"user": subject["name"]} if subject["kind"] == "User" else {"groups": [subject["name"]]}
    review = {"spec": {"resourceAttributes": attributes, **asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

    async def is_allowed() -> bool:
        return bool((await calls.request(cluster, "POST", path, body=review))["status"]["allowed"])

    await waiting.seen(is_allowed)


def _role(
    name: str, kind: str, subject: Mapping[str, str], *, may: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A role of that name and its binding to `subject`."""
    rules = [{"apiGroups": [base.GROUP], "resources": [plural], "verbs": list(verbs)} for plural, verbs in may.items()]
    head = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name}}
    reference = {"apiGroup": _RBAC, "kind": kind, "name": name}
    return (
        {**head, "kind": kind, "rules": rules},
        {**head, "kind": f"{kind}Binding", "roleRef": reference, "subjects": [dict(subject)]},
    )


def _rbac(namespace: str) -> str:
    return f"/apis/{_RBAC}/v1/namespaces/{namespace}"

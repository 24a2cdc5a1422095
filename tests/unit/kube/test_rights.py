"""The chart's roles against what the operator says that it needs, and how rights are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import charts, rights
from tarsy.config.load import settings
from tarsy.kube import rights as needed

NAMESPACE = "obs"
ROLES: tuple[settings.Role, ...] = ("controller", "worker", "api")
PREFIX = "rbac.authorization.k8s.io/aggregate-to-"
READING = rights.Right(verb="get", group="tarsy.dev", resource="agentchains", namespace=NAMESPACE)


def granted(account: str, **values: Any) -> set[rights.Right]:
    made = charts.render(values, name="tarsy", namespace=NAMESPACE)
    return rights.granted(made, account=account, namespace=NAMESPACE)


def wanted(*roles: settings.Role, deployment: str) -> set[rights.Right]:
    return {
        rights.Right(
            verb=need.verb,
            group=need.group,
            resource=need.resource,
            namespace="" if need.everywhere else NAMESPACE,
            name=need.name,
        )
        for need in needed.needed(roles, deployment=deployment)
    }


def test_each_operator_account_has_exactly_the_rights_its_role_needs() -> None:
    assert granted("tarsy") == wanted(*ROLES, deployment="tarsy")
    for role in ROLES:
        assert granted(f"tarsy-{role}", mode="split") == wanted(role, deployment=f"tarsy-{role}")
    assert granted("tarsy-worker", mode="split") == set()


def in_served(namespace: str) -> set[rights.Right]:
    """Return the rights that the operator needs in another namespace that it serves."""
    named = rights.Right(verb="get", group="", resource="namespaces", name=namespace)
    of_its_own = {"namespaces", "deployments"}
    return {named} | {
        replace(right, namespace=namespace)
        for right in wanted(*ROLES, deployment="tarsy")
        if right.namespace and right.resource not in of_its_own
    }


def test_only_served_namespaces_get_the_rights_for_a_served_namespace() -> None:
    granted_rights = granted("tarsy", namespaces=["shop", NAMESPACE, "payments"])
    assert granted_rights == wanted(*ROLES, deployment="tarsy") | in_served("shop") | in_served("payments")
    assert granted("tarsy", platform={"namespaces": ["shop"]}) == wanted(*ROLES, deployment="tarsy") | in_served("shop")
    for role in ROLES:
        own = wanted(role, deployment=f"tarsy-{role}")
        more = granted(f"tarsy-{role}", mode="split", namespaces=["shop"]) - own
        assert {right.namespace or right.name for right in more} == (set() if role == "worker" else {"shop"})


def test_cluster_wide_rights_equal_rights_in_a_served_namespace() -> None:
    granted_rights = granted("tarsy", namespaces=["shop"], rbac={"clusterWide": True})
    more = {replace(right, namespace="") for right in in_served("shop")}
    assert granted_rights == wanted(*ROLES, deployment="tarsy") | more
    made = charts.render({"namespaces": ["shop"], "rbac": {"clusterWide": True}}, namespace=NAMESPACE)
    assert all(manifest["metadata"].get("namespace") != "shop" for manifest in made), "it need not exist"


def test_only_the_api_is_allowed_to_read_alert_owners_and_only_if_enabled() -> None:
    for values in ({}, {"mode": "split"}):
        api = "tarsy-api" if values else "tarsy"
        more = granted(api, **values, rbac={"owners": True}) - granted(api, **values)
        assert more == {
            rights.Right(verb=need.verb, group=need.group, resource=need.resource) for need in needed.OWNERS
        }
    for other in ("tarsy-controller", "tarsy-worker"):
        assert granted(other, mode="split", rbac={"owners": True}) == granted(other, mode="split")


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ({}, None),
        ({"namespaces": ["shop"]}, ["shop"]),
        ({"namespaces": ["shop"], "platform": {"namespaces": ["payments"]}}, ["payments"]),
    ],
)
def test_the_platform_file_lists_what_the_roles_are_made_for(values: dict[str, Any], written: object) -> None:
    made = charts.render(values, name="tarsy", namespace=NAMESPACE)
    file = yaml.safe_load(charts.one(made, "ConfigMap", "tarsy-platform")["data"]["tarsy.yaml"])
    assert file.get("namespaces") == written


def test_no_role_reads_secrets_or_changes_objects_of_others() -> None:
    for values in ({}, {"mode": "split"}, {"rbac": {"create": True, "aggregate": True}}):
        for manifest in charts.render(values):
            for rule in manifest.get("rules", ()) if manifest["kind"].endswith("Role") else ():
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
                assert "nonResourceURLs" not in rule
                assert not {"secrets", "nodes/proxy", "pods/exec"} & set(rule["resources"])


def test_the_account_of_the_tools_only_reads() -> None:
    granted_rights = granted("tarsy-mcp")
    assert {right.verb for right in granted_rights} == {"get", "list", "watch"}
    assert ("tarsy.dev", "pods/log") not in {(right.group, right.resource) for right in granted_rights}


def test_no_role_exists_without_rbac() -> None:
    made = charts.render({"rbac": {"create": False}})
    hooks = {
        manifest["metadata"]["name"]
        for manifest in made
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {})
    }
    roles = {manifest["metadata"]["name"] for manifest in made if "Role" in manifest["kind"]}
    assert roles == hooks & roles, "but for that of helm test"


def test_aggregation_is_off_unless_it_is_asked_for() -> None:
    for aggregate, expected in ((False, {}), (True, {"view": "vea", "edit": "ea", "admin": "a"})):
        made = charts.render({"rbac": {"aggregate": aggregate}}, namespace=NAMESPACE)
        aggregated = {
            role: "".join(
                to[0] for to in ("view", "edit", "admin") if f"{PREFIX}{to}" in manifest["metadata"]["labels"]
            )
            for role in ("view", "edit", "admin")
            for manifest in [charts.one(made, "ClusterRole", f"{NAMESPACE}:tarsy-{role}")]
        }
        assert {role: to for role, to in aggregated.items() if to} == expected


def test_unused_granted_rights_and_refused_rights_are_reported(tmp_path: Path) -> None:
    event = {
        "user": {"username": f"system:serviceaccount:{NAMESPACE}:tarsy"},
        "verb": "get",
        "objectRef": {"resource": "agentchains", "apiGroup": "tarsy.dev", "namespace": NAMESPACE, "name": "one"},
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed"},
    }
    refused = event | {
        "objectRef": {"resource": "secrets", "namespace": NAMESPACE},
        "annotations": {"authorization.k8s.io/decision": "forbid"},
    }
    somebody = refused | {"user": {"username": f"system:serviceaccount:{NAMESPACE}:tarsy-mcp"}}
    log = tmp_path / "audit.jsonl"
    log.write_text(
        "".join(f"{json.dumps(audit_event)}\n" for audit_event in (event, refused, somebody)) + '{"user": "torn'
    )
    uses = rights.used(log, account="tarsy", namespace=NAMESPACE)
    assert len(uses) == 2
    secrets = rights.Right(verb="get", group="", resource="secrets", namespace=NAMESPACE)
    assert rights.refused(uses) == {secrets}
    another = rights.Right(verb="get", group="tarsy.dev", resource="agentchains", namespace=NAMESPACE, name="two")
    assert rights.never_used({READING, another, secrets}, uses) == {another, secrets}

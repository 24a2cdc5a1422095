"""Rights of ServiceAccounts: what manifests grant them, and what the API server's audit log says that they used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Manifest = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, order=True)
class Right:
    """A thing that an account may do, or did; "" for a namespace or a name is all of them, or none."""

    verb: str
    group: str
    resource: str
    """With its subresource, as roles have it."""
    namespace: str = ""
    name: str = ""

    def covers(self, other: Right) -> bool:
        """Whether who has this right may do that."""
        return (
            (self.verb, self.group, self.resource) == (other.verb, other.group, other.resource)
            and self.namespace in ("", other.namespace)
            and self.name in ("", other.name)
        )


@dataclass(frozen=True, kw_only=True)
class Use:
    """A request of an account."""

    right: Right
    allowed: bool
    reason: str
    """Why, as the authorizer has it: the very role and its binding."""


def granted(manifests: Iterable[Manifest], *, account: str, namespace: str) -> set[Right]:
    """Return the rights that these roles and bindings give a ServiceAccount of that namespace; rights to URLs are left
    out.
    """
    made = list(manifests)
    roles = {
        (
            manifest["kind"],
            manifest["metadata"].get("namespace", "") if manifest["kind"] == "Role" else "",
            manifest["metadata"]["name"],
        ): manifest
        for manifest in made
        if manifest["kind"] in ("Role", "ClusterRole")
    }
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    rights: set[Right] = set()
    for binding in made:
        if not binding["kind"].endswith("RoleBinding") or subject not in binding["subjects"]:
            continue
        reference = binding["roleRef"]
        where = "" if binding["kind"] == "ClusterRoleBinding" else binding["metadata"].get("namespace", namespace)
        home = binding["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
        rights |= set(_rights_of(roles[reference["kind"], home, reference["name"]], namespace=where))
    return rights


def _rights_of(role: Manifest, *, namespace: str) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or [""]:
                        yield Right(verb=verb, group=group, resource=resource, namespace=namespace, name=name)


def used(audit_log: Path, *, account: str, namespace: str, start: int = 0) -> list[Use]:
    """Return the requests of a ServiceAccount to the API server so far, in order; URLs that are no resources are left
    out.

    The log is read from its byte `start`.
    """
    user = f'"system:serviceaccount:{namespace}:{account}"'
    with audit_log.open(encoding="utf-8") as lines:
        lines.seek(start)
        events = [json.loads(line) for line in lines if user in line and line.endswith("\n")]
    return [_use(event) for event in events if "objectRef" in event and event["user"]["username"] == user.strip('"')]


def _use(event: Mapping[str, Any]) -> Use:
    about = event["objectRef"]
    notes = event.get("annotations", {})
    return Use(
        right=Right(
            verb=event["verb"],
            group=about.get("apiGroup", ""),
            resource="/".join(filter(None, (about["resource"], about.get("subresource")))),
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
        ),
        allowed=notes.get("authorization.k8s.io/decision") == "allow",
        reason=notes.get("authorization.k8s.io/reason", ""),
    )


def never_used(rights: Iterable[Right], uses: Iterable[Use]) -> set[Right]:
    """Those of the rights that nothing of this needed."""
    needed = {use.right for use in uses if use.allowed}
    return {right for right in rights if not any(right.covers(need) for need in needed)}


def refused(uses: Iterable[Use]) -> set[Right]:
    """Return the rights that were asked for and not granted."""
    return {use.right for use in uses if not use.allowed}


def without(role: Manifest, right: Right) -> Manifest:
    """That role, less one verb on one resource."""
    rules: list[dict[str, Any]] = []
    for rule in role["rules"]:
        for resource in rule["resources"]:
            is_named = right.name in (rule.get("resourceNames") or [""])
            is_meant = right.group in rule["apiGroups"] and right.resource == resource and is_named
            verbs = [verb for verb in rule["verbs"] if not (is_meant and verb == right.verb)]
            if verbs:
                rules.append({**rule, "resources": [resource], "verbs": verbs})
    return {**role, "rules": rules}

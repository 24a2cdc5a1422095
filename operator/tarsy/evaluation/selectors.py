"""Label and field selectors, as the API server parses and applies them.

Source: k8s.io/apimachinery, `pkg/labels/selector.go` and `pkg/fields/selector.go`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Matches: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Whether an object is selected."""

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*)"
    rf"|(?P<set>\s(?:in|notin))\s*\((?P<values>[A-Za-z0-9._,\s-]*)\))?)\s*(?:,|$)"
)
_FIELD = re.compile(r"(?P<path>[^=!]+?)(?P<operator>==|!=|=)(?P<value>.*)", re.DOTALL)
_COMMON_FIELDS = ("metadata.name", "metadata.namespace")
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork"),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    ("", "events"): (
        *(f"involvedObject.{field}" for field in _INVOLVED),
        *("reason", "type", "source", "reportingComponent"),
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("batch", "jobs"): ("status.successful",),
    ("certificates.k8s.io", "certificatesigningrequests"): ("spec.signerName",),
}
_RENAMED = {"status.successful": "status.succeeded"}


class SelectorError(ValueError):
    """The API server would refuse the selector; the message is its own, as far as it is known."""


def labels(selector: str) -> Matches:
    """Return the meaning of a label selector; "" selects everything. Raises SelectorError."""
    tests: list[Matches] = []
    position = 0
    while selector.strip() and position < len(selector):
        match = _REQUIREMENT.match(selector, position)
        if match is None or match.end() == position:
            raise SelectorError(f"unable to parse requirement: {selector[position:].strip()!r} is not understood")
        position = match.end()
        tests.append(_requirement(match))
    return lambda metadata: all(test(metadata) for test in tests)


def _requirement(match: re.Match[str]) -> Matches:
    if absent := match["absent"]:
        return lambda labels: absent not in labels
    key, value = match["key"], match["value"]
    if match["operator"] == "!=":
        return lambda labels: labels.get(key) != value
    if match["operator"]:
        return lambda labels: labels.get(key) == value
    if match["set"] is None:
        return lambda labels: key in labels
    values = {each.strip() for each in match["values"].split(",")}
    if match["set"].strip() == "in":
        return lambda labels: key in labels and labels[key] in values
    return lambda labels: labels.get(key) not in values


def fields(selector: str, *, group: str, resource: str) -> Matches:
    """Return the meaning of a field selector for objects of a resource. Raises SelectorError."""
    supported = {*_COMMON_FIELDS, *_FIELDS.get((group, resource), ())}
    tests: list[tuple[str, str, bool]] = []
    for term in filter(None, (part.strip() for part in selector.split(","))):
        match = _FIELD.fullmatch(term)
        if match is None:
            raise SelectorError(f"invalid selector: '{selector}'; can't understand '{term}'")
        if match["path"] not in supported:
            raise SelectorError(f"field label not supported: {match['path']}")
        tests.append((match["path"], match["value"], match["operator"] != "!="))
    return lambda each: all((_text(each, path) == value) is is_equal for path, value, is_equal in tests)


def _text(each: Mapping[str, Any], path: str) -> str:
    """Return a field as the API server compares it: a missing one is "", or false or 0."""
    if path == "source":
        return str((each.get("source") or {}).get("component") or each.get("reportingComponent") or "")
    value: Any = each
    for step in _RENAMED.get(path, path).split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if path in ("spec.unschedulable", "spec.hostNetwork"):
        return "true" if value else "false"
    if path in _RENAMED or path == "status.replicas":
        return str(value or 0)
    return "" if value is None else str(value)

"""Values for the chart, drawn by its schema: whatever the schema takes has to render what a cluster takes.

What the schema leaves to the API server (affinity, volumes, amounts that have to fit together) is drawn from samples.
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st
from support.charts import Object
from tarsy_dev import chart

_SCHEMA = chart.values_schema()
_EGRESS = [{"to": [{"podSelector": {}}], "ports": [{"port": 3128, "protocol": "TCP"}]}]
_CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
_NODES: Object = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
_SPREAD = {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
_RULE = {"apiGroups": ["tekton.dev"], "resources": ["pipelineruns"], "verbs": ["get"]}
_SAMPLES: dict[str, list[Any]] = {
    "affinity": [{}, {"nodeAffinity": _NODES}],
    "behavior": [{"scaleDown": {"stabilizationWindowSeconds": 600}}],
    "chains": [
        {},
        {"kubernetes-agent-chain": None},
        {"x": {"alertTypes": ["x"], "stages": [{"name": "s", "agent": "A"}]}},
    ],
    "cidrs": [
        [],
        ["10.0.0.0/8", "2001:db8::/32"],
        [{"cidr": "::/0", "except": ["fd00::/8"]}],
        [{"cidr": "1.2.3.4/32"}],
    ],
    "extraConfig": ["", '[toolset_configs.kiali]\nurl = "http://kiali:20001"\n'],
    "extraEgress": [[], _EGRESS],
    "extraEnv": [[], [{"name": "A", "value": "b: {{ c }}"}]],
    "extraEnvFrom": [[], [{"secretRef": {"name": "more", "optional": True}}]],
    "extraObjects": [[]],
    "extraRules": [[], [_RULE]],
    "extraVolumeMounts": [[]],
    "extraVolumes": [[], [{"name": "more", "emptyDir": {}}]],
    "global": [{}, {"a": 1}],
    "ingressFrom": [[], [{"namespaceSelector": {}}]],
    "scrapeFrom": [[], [{"namespaceSelector": {}}]],
    "metrics": [[_CPU]],
    "platform": [{}, {"queue": {"slots": 100_000_000}}, {"mcp_servers": {"kubernetes-server": None}}],
    "podSecurityContext": [{}, {"runAsUser": 1_000_680_000, "fsGroup": None}, {"supplementalGroups": [1]}],
    "resources": [{}, {"limits": {"memory": 2**31, "cpu": 1.5}}, {"requests": {"cpu": "10m", "memory": "1Mi"}}],
    "rollingUpdate": [{"maxSurge": 1}, {"maxUnavailable": "50%"}],
    "securityContext": [{}, {"readOnlyRootFilesystem": False}],
    "size": ["1Gi", 2**33, 1.5],
    "to": [[], [{"ipBlock": {"cidr": "10.0.0.10/32"}}]],
    "tolerations": [[], [{"operator": "Exists"}]],
    "topologySpreadConstraints": [[], [_SPREAD], [_SPREAD | {"labelSelector": {}}]],
}
_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20)


def values() -> st.SearchStrategy[Object]:
    """Values that the schema takes."""
    return _mapping(_SCHEMA)


def _drawn(node: Object) -> st.SearchStrategy[Any]:
    """Return values that a part of the schema takes."""
    if "$ref" in node:
        return _drawn(_SCHEMA["$defs"][node["$ref"].rpartition("/")[2]])
    if "anyOf" in node:
        return st.one_of([_drawn(option) for option in node["anyOf"] if option.get("type") != "null"])
    if "enum" in node or "const" in node:
        return st.sampled_from(node.get("enum", [node.get("const")]))
    match node["type"]:
        case "object":
            return _mapping(node)
        case "array":
            return st.lists(_drawn(node["items"]), min_size=node.get("minItems", 0), max_size=2, unique_by=str)
        case "integer":
            return st.integers(node.get("minimum"), node.get("maximum"))
        case "boolean":
            return st.booleans()
        case "string" if "pattern" in node:
            shortest, longest = node.get("minLength", 0), node.get("maxLength", 400)
            return _fitting(node["pattern"]).filter(lambda text: shortest <= len(text) <= longest)
        case "string":
            return _WORDS
    raise AssertionError(f"nothing is drawn for {node}")


def _fitting(pattern: str) -> st.SearchStrategy[str]:
    """Texts of a pattern, whose `$` is the very end.

    Helm writes `y` and `n` without quotes, and kubectl reads them as booleans: docs/install.md says so.
    """
    return st.from_regex(re.compile(pattern), fullmatch=True).filter(
        lambda text: not text.endswith("\n") and text.lower() not in ("y", "n")
    )


def _is_group(key: str, node: Object) -> bool:
    """Whether it is the group `metrics` of the values, and not the autoscaler's key of that name."""
    return key == "metrics" and "$ref" in node


def _mapping(node: Object) -> st.SearchStrategy[Object]:
    """A few of the keys that a mapping may have, and all that it must have and has no default for."""
    for pattern, below in node.get("patternProperties", {}).items():
        return st.dictionaries(_fitting(pattern), _drawn(below), max_size=2)
    fields = {
        key: st.sampled_from(_SAMPLES[key]) if key in _SAMPLES and not _is_group(key, below) else _drawn(below)
        for key, below in node.get("properties", {}).items()
    }
    wanted = {key: fields[key] for key in node.get("required", ()) if "default" not in node["properties"][key]}
    return st.fixed_dictionaries(wanted, optional={key: field for key, field in fields.items() if key not in wanted})

"""The CRDs, generated from the models. `python -m tarsy_dev generate` writes them to crds/.

A structural schema has no `$ref`, no unions and no `null` types, and here every string and list has a limit. The
conversion refuses anything in pydantic's JSON schema that it cannot express, because the API server would silently
prune it.

Source: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from tarsy.resources import base, chains, investigations

JSON = dict[str, Any]

SEQUENCE_FALLS = "status.sequence never falls: this status is older than the one that is there"
"""The message with which the API server refuses a status that arrives late."""

_DROPPED = {"$defs", "title", "propertyNames", "examples"}
_REFUSED = ("oneOf", "discriminator", "prefixItems", "patternProperties")


class UnstructuralError(TypeError):
    """A model has something that a structural schema cannot express."""


def structural(node: JSON, *, definitions: JSON, at: str) -> JSON:
    """Convert one node of a pydantic JSON schema; `at` is its path, for errors."""
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        return structural({**target, **_without(node, "$ref")}, definitions=definitions, at=at)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        if len(options) != 1:
            raise UnstructuralError(f"{at}: a union has no structural form")
        return structural({**options[0], **_without(node, "anyOf")}, definitions=definitions, at=at)
    if refused := [key for key in _REFUSED if key in node]:
        raise UnstructuralError(f"{at}: {', '.join(refused)}")
    if "x-kubernetes-validations" in node:  # rules have messages; for a pattern kubectl prints the expression
        node = _without(node, "pattern")
    result: JSON = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and (value in (None, "", []) or isinstance(value, dict))):
            continue
        result.update(_keyword(key, value, definitions=definitions, at=at))
    return _bounded(result, at=at)


def _keyword(key: str, value: Any, *, definitions: JSON, at: str) -> JSON:
    match key:
        case "properties":
            return {
                key: {
                    name: structural(child, definitions=definitions, at=f"{at}.{name}") for name, child in value.items()
                }
            }
        case "items":
            return {key: structural(value, definitions=definitions, at=f"{at}[]")}
        case "additionalProperties":
            if value is True:
                raise UnstructuralError(f"{at}: a map of anything")
            return {key: structural(value, definitions=definitions, at=f"{at}{{}}")} if value else {}
        case "const":
            return {"enum": [value]}
        case "description":
            return {key: " ".join(value.split())}
        case _:
            return {key: copy.deepcopy(value)}  # a shared value would become an anchor in the YAML


def _without(node: JSON, key: str) -> JSON:
    return {name: value for name, value in node.items() if name != key}


def _bounded(node: JSON, *, at: str) -> JSON:
    if "type" not in node:
        raise UnstructuralError(f"{at}: no type")
    match node.get("type"):
        case "integer":
            node.setdefault("format", "int64")
        case "string" if not node.keys() & {"enum", "maxLength"} and node.get("format") != "date-time":
            raise UnstructuralError(f"{at}: a string without maxLength")
        case "array":
            if "maxItems" not in node:
                raise UnstructuralError(f"{at}: a list without maxItems")
            node.setdefault("x-kubernetes-list-type", "atomic")
    return node


def crd_schema(model: type[BaseModel], *, at: str) -> JSON:
    """Return the structural schema of a model."""
    schema = model.model_json_schema(by_alias=True)
    return structural(schema, definitions=schema.get("$defs", {}), at=at)


def agent_chain() -> JSON:
    """Return the CRD of AgentChain."""
    return _crd(
        kind=chains.KIND,
        plural=chains.PLURAL,
        singular="agentchain",
        short=["chain", "chains"],
        description="For some alert types, the stages that investigate them.",
        properties={"spec": crd_schema(chains.Spec, at="spec"), "status": _status(chains.Status)},
        columns=[
            _column("ALERT TYPES", ".spec.alertTypes"),
            _column("READY", '.status.conditions[?(@.type=="Ready")].status'),
            _column("REASON", '.status.conditions[?(@.type=="Ready")].reason'),
            _column("AGE", ".metadata.creationTimestamp", kind="date"),
            _column("MESSAGE", '.status.conditions[?(@.type=="Ready")].message', wide=True),
        ],
    )


def alert_investigation() -> JSON:
    """Return the CRD of AlertInvestigation."""
    spec = crd_schema(investigations.Spec, at="spec")
    spec["x-kubernetes-validations"] = [
        *(_immutable(field) for field in spec["properties"] if field not in investigations.MUTABLE),
        {
            "rule": "!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",
            "message": "cancel cannot be taken back: create another investigation",
            "fieldPath": ".cancel",
        },
        {
            "rule": "has(self.alertData) != has(self.alertDataRef)",
            "message": "give alertData (alertDataRef is made by TARSy, for alerts that are too large for an object)",
        },
        {
            "rule": "!has(self.alertData) || self.alertData.trim().size() > 0",
            "message": "alertData is blank: say what is wrong",
            "fieldPath": ".alertData",
        },
    ]
    status = _status(investigations.Status)
    status["x-kubernetes-validations"] = [
        {
            "rule": "!has(oldSelf.sequence) || (has(self.sequence) && self.sequence >= oldSelf.sequence)",
            "message": SEQUENCE_FALLS,
        }
    ]
    return _crd(
        kind=investigations.KIND,
        plural=investigations.PLURAL,
        singular="alertinvestigation",
        short=["inv", "ainv"],
        description="One alert, investigated once by the chain that takes its type.",
        properties={"spec": spec, "status": status},
        columns=[
            _column("ALERT", ".spec.alertType"),
            _column("CHAIN", ".status.chain.name"),
            _column("PHASE", ".status.phase"),
            _column("GROUNDED", '.status.conditions[?(@.type=="Grounded")].status'),
            _column("PROGRESS", ".status.progress"),
            _column("SUMMARY", ".status.headline"),
            _column("AGE", ".metadata.creationTimestamp", kind="date"),
            _column("ALERTNAME", ".spec.labels.alertname", wide=True),
            _column("TARGET", ".status.target", wide=True),
            _column("ALERTS", ".status.alerts.total", kind="integer", wide=True),
            _column("STAGE", ".status.currentStage", wide=True),
            _column("REASON", '.status.conditions[?(@.type=="Finished")].reason', wide=True),
            _column("DURATION", ".status.duration", wide=True),
            _column("TOKENS", ".status.usage.totalTokens", kind="integer", wide=True),
        ],
        selectable=[".spec.alertType", ".spec.fingerprint", ".status.phase"],
    )


def _status(model: type[BaseModel]) -> JSON:
    status = crd_schema(model, at="status")
    # kstatus reports a new object without a status as done, and one with observedGeneration -1 as in progress.
    status["default"] = {"observedGeneration": -1}
    status.pop("required", None)  # the default has no other field
    return status


def _immutable(field: str) -> JSON:
    # One rule per field: a transition rule on a property does not run when it is added or removed, and a rule over
    # the whole spec exceeds the API server's cost limit.
    return {
        "rule": f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        "message": f"{field} cannot be changed: delete the investigation and create another",
        "fieldPath": f".{field}",
    }


def _column(name: str, path: str, *, kind: str = "string", wide: bool = False) -> JSON:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _crd(
    *,
    kind: str,
    plural: str,
    singular: str,
    short: list[str],
    description: str,
    properties: JSON,
    columns: list[JSON],
    selectable: Sequence[str] = (),
) -> JSON:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{base.GROUP}"},
        "spec": {
            "group": base.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "plural": plural,
                "singular": singular,
                "shortNames": short,
                "categories": ["tarsy"],
            },
            "versions": [
                {
                    "name": base.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": description,
                            "required": ["spec"],
                            "properties": properties,
                        }
                    },
                    "subresources": {"status": {}},
                    **({"selectableFields": [{"jsonPath": path} for path in selectable]} if selectable else {}),
                }
            ],
        },
    }

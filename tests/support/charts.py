"""The chart, rendered by Helm's own engine as a library: no helm program, no cluster."""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml
from tarsy_dev import chart, tools

Object = dict[str, Any]

NAME = "tarsy"
FILES = sorted((tools.ROOT / "tests" / "charts").glob("*.yaml"))
"""Values as installations of different kinds have them."""


def values(name: str) -> Object:
    """The values of the file of that name."""
    (path,) = (path for path in FILES if path.stem == name)
    content: Object = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def render(
    values: Object | None = None, *, name: str = NAME, namespace: str = NAME, is_upgrade: bool = False
) -> list[Object]:
    """The objects of a release, hooks among them; a chart.RefusedError says what is wrong with the values."""
    return chart.objects(chart.rendered(values or {}, name=name, namespace=namespace, is_upgrade=is_upgrade))


@functools.cache
def of_file(name: str) -> list[Object]:
    """Return the objects that a file of values renders; not to be changed."""
    return render(values(name))


def notes(values: Object | None = None, *, name: str = NAME, namespace: str = NAME) -> str:
    """Return the text that is shown after an installation."""
    return chart.rendered(values or {}, name=name, namespace=namespace)["NOTES.txt"]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [manifest for manifest in objects if manifest["kind"] == kind]


def one(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (only,) = (manifest for manifest in of_kind(objects, kind) if manifest["metadata"]["name"] == name)
    return only


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """Return the templates of pods, by kind and name of what makes the pods; bare pods are among them."""
    templates = {}
    for doc in objects:
        match doc["kind"]:
            case "Deployment" | "StatefulSet" | "Job":
                templates[f"{doc['kind']}/{doc['metadata']['name']}"] = _with_claims(doc["spec"])
            case "Pod":
                templates[f"Pod/{doc['metadata']['name']}"] = {"metadata": doc["metadata"], "spec": doc["spec"]}
    return templates


def _with_claims(spec: Object) -> Object:
    """A template with the volumes that its controller would add."""
    template: Object = spec["template"]
    claimed = [{"name": claim["metadata"]["name"], "emptyDir": {}} for claim in spec.get("volumeClaimTemplates", ())]
    return {**template, "spec": {**template["spec"], "volumes": template["spec"].get("volumes", []) + claimed}}


def text(objects: list[Object]) -> str:
    """Objects as one YAML text, in JSON's form: PyYAML writes a text such as 7e2 as Go reads a number."""
    return "\n---\n".join(json.dumps(manifest, ensure_ascii=False) for manifest in objects)

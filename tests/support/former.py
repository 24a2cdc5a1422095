"""Objects that a former version's kinds took, and today's refuse: they stay there when the kinds are updated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tarsy_dev import tools
from tarsy_dev.controlplane import Administrator, KubectlError

_SPEC = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
_LAX = {
    "AlertInvestigation": ("alertinvestigations.tarsy.dev", "startsAt", {"type": "string", "format": "date-time"}),
    "AgentChain": ("agentchains.tarsy.dev", "activeDeadlineSeconds", {"type": "integer", "format": "int64"}),
}


def store(plane: Administrator, manifest: dict[str, Any], *, namespace: str) -> None:
    """Make an object that today's kind refuses by `startsAt` or `activeDeadlineSeconds`."""
    name, field, schema = _LAX[manifest["kind"]]
    with _lax(plane, name, field, schema):
        _until(plane, manifest, namespace=namespace, accepted=True)
        plane.kubectl("create", "-f", "-", input=json.dumps(manifest), namespace=namespace)
    _until(plane, manifest | {"metadata": {"name": "another"}}, namespace=namespace, accepted=False)
    plane.wait_for_kinds()


@contextmanager
def _lax(plane: Administrator, name: str, field: str, schema: dict[str, str]) -> Iterator[None]:
    """A kind as a former version had it; a change of one is in force some time after it was answered."""
    patch = [{"op": "replace", "path": f"{_SPEC}/{field}", "value": schema}]
    plane.kubectl("patch", "crd", name, "--type=json", "--patch", json.dumps(patch))
    try:
        yield
    finally:
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(tools.ROOT / "crds"))


def _until(plane: Administrator, manifest: dict[str, Any], *, namespace: str, accepted: bool) -> None:
    """Return once the kinds in force accept the manifest, or do not."""
    text = json.dumps(manifest)
    plane.wait_until(lambda: _accepts(plane, text, namespace) == accepted, what="the change of the kind")


def _accepts(plane: Administrator, text: str, namespace: str) -> bool:
    try:
        plane.kubectl("create", "--dry-run=server", "-f", "-", input=text, namespace=namespace)
    except KubectlError as error:
        if " is invalid: " not in str(error):
            raise
        return False
    return True

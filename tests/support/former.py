"""Objects that a former version's kinds took, and today's refuse: they stay there when the kinds are updated."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tarsy_dev import tools
from tarsy_dev.controlplane import ControlPlane, KubectlError

_SPEC = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
_LAX = {
    "alertinvestigations.tarsy.dev": ("startsAt", {"type": "string", "format": "date-time"}),
    "agentchains.tarsy.dev": ("activeDeadlineSeconds", {"type": "integer", "format": "int64"}),
}


def store(plane: ControlPlane, *manifests: dict[str, Any], namespace: str) -> None:
    """Make objects that today's kinds refuse by `startsAt` or `activeDeadlineSeconds`."""
    with _kinds(plane):
        for manifest in manifests:
            _until(plane, manifest, namespace=namespace, accepted=True)
            plane.kubectl("create", "-f", "-", input=json.dumps(manifest), namespace=namespace)
    for manifest in manifests:
        _until(plane, manifest | {"metadata": {"name": "another"}}, namespace=namespace, accepted=False)


@contextmanager
def _kinds(plane: ControlPlane) -> Iterator[None]:
    """Kinds as a former version had them; a change of theirs is in force some time after it was answered."""
    for name, (field, schema) in _LAX.items():
        patch = [{"op": "replace", "path": f"{_SPEC}/{field}", "value": schema}]
        plane.kubectl("patch", "crd", name, "--type=json", "--patch", json.dumps(patch))
    try:
        yield
    finally:
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(tools.ROOT / "crds"))


def _until(plane: ControlPlane, manifest: dict[str, Any], *, namespace: str, accepted: bool) -> None:
    """Return once the kinds in force accept the manifest, or do not."""
    last = time.monotonic() + 30
    while _accepts(plane, json.dumps(manifest), namespace) != accepted:
        assert time.monotonic() < last, "the kinds are not in force"


def _accepts(plane: ControlPlane, text: str, namespace: str) -> bool:
    try:
        plane.kubectl("create", "--dry-run=server", "-f", "-", input=text, namespace=namespace)
    except KubectlError:
        return False
    return True

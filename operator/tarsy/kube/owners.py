"""Owners: Pods, ReplicaSets and Jobs, with their controllers.

Source: Kubernetes documentation, "Owners and Dependents".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib import parse

from tarsy.kube import calls, client

_COLLECTIONS = {
    ("", "Pod"): ("/api/v1", "pods"),
    ("apps", "ReplicaSet"): ("/apis/apps/v1", "replicasets"),
    ("batch", "Job"): ("/apis/batch/v1", "jobs"),
}
KINDS = frozenset(_COLLECTIONS)
"""API group and kind of what can be read."""
_PROXIES = ("istio-proxy", "linkerd-proxy", "kube-rbac-proxy")
"""Containers beside the program, which may stand before it."""
_PROGRAM_LABELS = ("app.kubernetes.io/name", "app", "k8s-app")


@dataclass(frozen=True, kw_only=True)
class Controller:
    """The controller of an object, as the object names it. It is in the same namespace, or in none."""

    group: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Owned:
    """An object and its controller."""

    uid: str
    controller: Controller | None
    programs: tuple[str, ...] = ()
    """The program of a Pod, by its labels and by the image of its first container that is no proxy of a mesh."""


async def read(cluster: client.Cluster, *, group: str, kind: str, namespace: str, name: str) -> Owned | None:
    """Return an object of KINDS, read live; None if there is none. `namespace` and `name` are valid names.

    Raises calls.ForbiddenError without the right, client.ClusterDownError or calls.RefusedError for all else.
    """
    root, plural = _COLLECTIONS[group, kind]
    path = f"{root}/namespaces/{parse.quote(namespace, safe='')}/{plural}/{parse.quote(name, safe='')}"
    body = await calls.get(cluster, path)
    if body is None:
        return None
    not_its = client.ClusterDownError(f"the answer to GET {path} is not that of an API server")
    try:
        metadata = body["metadata"]
        is_it = (metadata["namespace"], metadata["name"]) == (namespace, name)
        references = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
        owned = Owned(
            uid=str(metadata["uid"]),
            controller=_controller(references[0]) if references else None,
            programs=_programs(body) if kind == "Pod" else (),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:  # such as a proxy's answer
        raise not_its from error
    if not is_it:
        raise not_its
    return owned


def _controller(reference: Any) -> Controller:
    group, has_group, _ = reference["apiVersion"].rpartition("/")
    return Controller(
        group=group if has_group else "", kind=reference["kind"], name=reference["name"], uid=reference["uid"]
    )


def _programs(pod: Any) -> tuple[str, ...]:
    labels = pod["metadata"].get("labels") or {}
    containers = pod["spec"]["containers"]
    container = next((each for each in containers if each.get("name") not in _PROXIES), containers[0])
    image = container["image"].partition("@")[0].rpartition("/")[2].partition(":")[0]
    return (*(labels[label] for label in _PROGRAM_LABELS if label in labels), image)

"""The workload that the demo's alert names, in a control plane that runs none.

Its pods are made here, with the status and the events that a StatefulSet's controller, the scheduler and a kubelet give
them: as kwok plays it (`dev/controlplane/kwok.yaml`), a moment after the first crash.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tarsy_dev import controlplane

NAMESPACE = "shop"

Manifest = dict[str, Any]


class Kubectl(Protocol):
    """Runs kubectl; `input` is its stdin."""

    def __call__(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        """Return its stdout."""


def seed(kubectl: Kubectl, manifests: Path) -> None:
    """Apply the StatefulSets of `manifests`, which are in NAMESPACE, and make a pod of each."""
    now = dt.datetime.now(dt.UTC)
    kubectl("apply", "--filename", str(manifests))
    sets = _get(kubectl, "statefulsets")
    kubectl("create", "--filename=-", input=_list([_pod(stateful_set) for stateful_set in sets]))
    pods = _get(kubectl, "pods")
    states = [{**pod, "status": _pod_status(pod, now, f"10.0.0.{number}")} for number, pod in enumerate(pods, 1)]
    states += [{**stateful_set, "status": _set_status(stateful_set)} for stateful_set in sets]
    kubectl("replace", "--subresource=status", "--filename=-", input=_list(states))
    kubectl("create", "--filename=-", input=_list([event for pod in pods for event in _events(pod, now)]))


def _get(kubectl: Kubectl, kind: str) -> list[Manifest]:
    listed = json.loads(kubectl("get", kind, f"--namespace={NAMESPACE}", "--output=json"))
    items: list[Manifest] = listed["items"]
    return items


def _list(items: Sequence[Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _pod(stateful_set: Manifest) -> Manifest:
    """Return the first pod of a StatefulSet."""
    name, template = stateful_set["metadata"]["name"], stateful_set["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": stateful_set["metadata"]["uid"]}
    metadata = template["metadata"] | {
        "name": f"{name}-0",
        "namespace": NAMESPACE,
        "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
    }
    spec = template["spec"] | {"nodeName": controlplane.NODE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _crashes(pod: Manifest) -> bool:
    return bool(pod["metadata"].get("annotations", {}).get("dev.tarsy.dev/crash") == "true")


def _pod_status(pod: Manifest, now: dt.datetime, address: str) -> Manifest:
    """Return the status of a pod that has crashed once, if it crashes, or else runs."""
    began, ended = _stamp(now - dt.timedelta(seconds=1)), _stamp(now)
    unready = {"status": "False", "reason": "ContainersNotReady", "message": "containers with unready status"}
    ready = unready if _crashes(pod) else {"status": "True"}
    return {
        "phase": "Running",
        "startTime": began,
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": began},
            {"type": "Ready", "lastTransitionTime": ended, **ready},
            {"type": "ContainersReady", "lastTransitionTime": ended, **ready},
        ],
        "containerStatuses": [
            {"name": container["name"], "image": container["image"], "imageID": ""} | _container(pod, began, ended)
            for container in pod["spec"]["containers"]
        ],
    }


def _container(pod: Manifest, began: str, ended: str) -> Manifest:
    if not _crashes(pod):
        return {"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": began}}}
    metadata = pod["metadata"]
    which = f"pod={metadata['name']}_{NAMESPACE}({metadata['uid']})"
    waiting = {"reason": "CrashLoopBackOff", "message": f"back-off 10s restarting failed container in {which}"}
    terminated = {"exitCode": 1, "reason": "Error", "startedAt": began, "finishedAt": ended}
    states = {"state": {"waiting": waiting}, "lastState": {"terminated": terminated}}
    return {"ready": False, "started": False, "restartCount": 1, **states}


def _set_status(stateful_set: Manifest) -> Manifest:
    ready = 0 if _crashes(stateful_set["spec"]["template"]) else 1
    generation = stateful_set["metadata"]["generation"]
    return {"observedGeneration": generation, "replicas": 1, "readyReplicas": ready, "availableReplicas": ready}


def _events(pod: Manifest, now: dt.datetime) -> Iterator[Manifest]:
    metadata = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE}
    about |= {"name": metadata["name"], "uid": metadata["uid"]}
    assigned = f"Successfully assigned {NAMESPACE}/{metadata['name']} to {controlplane.NODE}"
    events = [
        ("Normal", "Scheduled", assigned),
        ("Normal", "Pulled", "Container image already present on machine"),
        ("Normal", "Started", "Started container"),
    ]
    if _crashes(pod):
        events.append(("Warning", "BackOff", "Back-off restarting failed container"))
    for number, (kind, reason, message) in enumerate(events):
        yield {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{number}", "namespace": NAMESPACE},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "firstTimestamp": _stamp(now),
            "lastTimestamp": _stamp(now),
            "count": 1,
            "source": {"component": "default-scheduler" if reason == "Scheduled" else "kubelet"},
        }


def _stamp(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"

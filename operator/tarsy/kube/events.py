"""Kubernetes events: what happened to an investigation or to the operator's Deployment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib import parse

from kubernetes.aio import client as kubernetes

from tarsy.kube import calls, client
from tarsy.resources import base, investigations
from tarsy.transcript import control_characters

DEPLOYMENT = ("apps/v1", "Deployment")
"""The API version and kind of Deployments."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to an object, for `kubectl describe` and `kubectl get events`."""

    reason: str
    message: str
    at: datetime
    warning: bool = False
    recurs: bool = False
    """Whether the same reason and message at another time are another event."""
    about: tuple[str, str] = (base.API_VERSION, investigations.KIND)
    """The API version and kind of the object."""


async def post(cluster: client.Cluster, event: Event, *, namespace: str, name: str, uid: str) -> None:
    """Post `event` about an object. Posting it again has no effect: its name is a digest of its content."""
    at = event.at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    identity = f"{uid} {event.reason} {event.message}{f' {at}' if event.recurs else ''}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    body = {
        "metadata": {"name": f"{name[:236].rstrip('-.')}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": event.about[0],
            "kind": event.about[1],
            "namespace": namespace,
            "name": name,
            "uid": uid,
        },
        "reason": event.reason,
        "message": control_characters.escape(cluster.secrets.mask(event.message))[: base.MESSAGE_MAX],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": "tarsy"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    path = f"/api/v1/namespaces/{parse.quote(namespace, safe='')}/events"
    async with calls.errors():
        try:
            await calls.request(cluster, "POST", path, body=body)
        except kubernetes.ApiException as error:
            if error.status != 409:
                raise


async def deployment_uid(cluster: client.Cluster, *, namespace: str, name: str) -> str | None:
    """Return the uid of a Deployment; None if there is none."""
    path = f"/apis/apps/v1/namespaces/{parse.quote(namespace, safe='')}/deployments/{parse.quote(name, safe='')}"
    body = await calls.get(cluster, path)
    return None if body is None else str(body["metadata"]["uid"])

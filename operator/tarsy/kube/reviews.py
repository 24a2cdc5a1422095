"""Token reviews and access reviews: the API server identifies the user of a token, and decides about rights.

A missing answer is an error, on which the caller must refuse. The operator needs the right to create both reviews, as
in the ClusterRole `system:auth-delegator`.

Source: Kubernetes documentation, "Authenticating", "Authorization".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tarsy.kube import calls, client
from tarsy.resources import base

SECONDS = 5.0
"""Timeout of a review, in seconds: an HTTP request waits for it."""

Verb = Literal["get", "list", "create", "update", "delete"]

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, kw_only=True)
class User:
    """A user in the API server's answer."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further attributes of the user, such as the id of the token."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """A verb on objects of the two kinds, or on what has a plural without a kind."""

    verb: Verb
    plural: str
    """The plural name of the kind."""
    namespace: str
    name: str = ""
    """The object's name; "" for all objects."""
    subresource: str = ""
    """The subresource of the objects; "" for the objects themselves."""

    @property
    def resource(self) -> str:
        """The resource as roles name it, such as `alertinvestigations/feedback`."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


async def user_of(cluster: client.Cluster, token: str) -> User | None:
    """Return the user of the token; None if the token is invalid or of another audience.

    Raises ClusterDownError or RefusedError without an answer.
    """
    status = await _status(cluster, _TOKEN_REVIEWS, {"token": token})
    if status.get("authenticated") is not True:
        return None
    user = status.get("user") or {}
    if not user.get("username"):  # rights are granted to users
        return None
    extra = user.get("extra") or {}
    return User(
        name=user["username"],
        uid=user.get("uid") or "",
        groups=tuple(user.get("groups") or ()),
        extra=tuple(sorted((name, tuple(values or ())) for name, values in extra.items())),
    )


async def may(cluster: client.Cluster, user: User, action: Action) -> bool:
    """Return whether `user` has the right to `action`. Raises ClusterDownError or RefusedError without an answer."""
    attributes = {
        "group": base.GROUP,
        "resource": action.plural,
        "subresource": action.subresource,
        "verb": action.verb,
        "namespace": action.namespace,
        "name": action.name,
    }
    spec = {
        "resourceAttributes": attributes,
        "user": user.name,
        "uid": user.uid,
        "groups": user.groups,
        "extra": dict(user.extra),
    }
    return await allowed(cluster, _ACCESS_REVIEWS, spec)


async def allowed(cluster: client.Cluster, path: str, spec: dict[str, Any]) -> bool:
    """Return the result of an access review at `path`. Raises ClusterDownError or RefusedError without an answer."""
    status = await _status(cluster, path, spec)
    return status.get("allowed") is True and status.get("denied") is not True


async def _status(cluster: client.Cluster, path: str, spec: dict[str, Any]) -> dict[str, Any]:
    async with calls.errors():
        body = await calls.request(cluster, "POST", path, body={"spec": spec}, seconds=SECONDS)
    status = body.get("status") if isinstance(body, dict) else None
    if not isinstance(status, dict):
        raise client.ClusterDownError(f"the answer to POST {path} has no status")
    return status

"""Questions to the API server about people: the user of a token, and the rights of a user.

A missing answer is an error, on which callers must refuse. The operator needs the right to ask both, as by the
ClusterRole `system:auth-delegator`.

Source: Kubernetes documentation, "Authenticating", "Authorization".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tarsy.kube import calls, client
from tarsy.resources import base

SECONDS = 5.0
"""Seconds for an answer of the API server: a request waits for it."""

Verb = Literal["get", "list", "create", "update", "delete"]

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, kw_only=True)
class User:
    """A user, as the API server knows them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further attributes of the user, such as the id of the token."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that is done to objects of ours."""

    verb: Verb
    plural: str
    """Which kind."""
    namespace: str
    name: str = ""
    """The object's name; "" for any, or all."""


async def user_of(cluster: client.Cluster, token: str) -> User | None:
    """Return the user of the token; None if the API server knows none, or the token has another audience.

    Raises ClusterDownError or RefusedError if the API server cannot tell.
    """
    status = await _status(cluster, _TOKEN_REVIEWS, {"token": token})
    if status.get("authenticated") is not True:
        return None
    user = status.get("user") or {}
    if not user.get("username"):  # a right belongs to a user
        return None
    extra = user.get("extra") or {}
    return User(
        name=user["username"],
        uid=user.get("uid") or "",
        groups=tuple(user.get("groups") or ()),
        extra=tuple(sorted((name, tuple(values or ())) for name, values in extra.items())),
    )


async def may(cluster: client.Cluster, user: User, action: Action) -> bool:
    """Whether the API server would let `user` do that; a ClusterDownError or a RefusedError: it cannot be said."""
    attributes = {
        "group": base.GROUP,
        "resource": action.plural,
        "verb": action.verb,
        "namespace": action.namespace,
        "name": action.name,
    }
    asked = {
        "resourceAttributes": attributes,
        "user": user.name,
        "uid": user.uid,
        "groups": user.groups,
        "extra": dict(user.extra),
    }
    return await allowed(cluster, _ACCESS_REVIEWS, asked)


async def allowed(cluster: client.Cluster, path: str, spec: dict[str, Any]) -> bool:
    """Return the result of a review at that path; raises ClusterDownError or RefusedError if there is none."""
    status = await _status(cluster, path, spec)
    return status.get("allowed") is True and status.get("denied") is not True


async def _status(cluster: client.Cluster, path: str, spec: dict[str, Any]) -> dict[str, Any]:
    async with calls.errors():
        body = await calls.request(cluster, "POST", path, body={"spec": spec}, seconds=SECONDS)
    status = body.get("status") if isinstance(body, dict) else None
    if not isinstance(status, dict):
        raise client.ClusterDownError(f"the answer to POST {path} has no status")
    return status

"""The rights in the cluster that the operator needs, by role: the only list of them.

Readiness asks the API server for each of them, roles are generated from them, and tests compare the operator's requests
with them. The question itself (SelfSubjectAccessReview) is open to every authenticated user (`system:basic-user`), and
so is discovery (`system:discovery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from tarsy.config.load import settings
from tarsy.kube import client, reviews
from tarsy.resources import base, chains, investigations

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, kw_only=True)
class Right:
    """To do one thing with one kind of objects."""

    verb: str
    resource: str
    """Its plural name; a subresource behind a slash, as in a role."""
    group: str
    """The API group; "" is the core group."""
    everywhere: bool
    """In the whole cluster; else in the namespace that the operator lives in."""
    needed_by: tuple[settings.Role, ...]
    name: str = ""
    """The one object that needs it; "" is any."""


def _rights(
    resource: str, group: str, /, *, everywhere: bool = False, name: str = "", **verbs: tuple[settings.Role, ...]
) -> Iterator[Right]:
    for verb, roles in verbs.items():
        yield Right(verb=verb, resource=resource, group=group, everywhere=everywhere, name=name, needed_by=roles)


_API: tuple[settings.Role, ...] = ("api",)
_CONTROLLER: tuple[settings.Role, ...] = ("controller",)
_BOTH: tuple[settings.Role, ...] = ("api", "controller")

ALL: tuple[Right, ...] = (
    *_rights(
        investigations.PLURAL,
        base.GROUP,
        create=_API,  # of an alert
        delete=_BOTH,  # purged; its time to live is over
        get=_BOTH,
        list=_CONTROLLER,
        watch=_CONTROLLER,
    ),
    *_rights(f"{investigations.PLURAL}/status", base.GROUP, patch=_CONTROLLER),
    *_rights(chains.PLURAL, base.GROUP, list=_BOTH, watch=_CONTROLLER),
    *_rights(f"{chains.PLURAL}/status", base.GROUP, patch=_CONTROLLER),
    *_rights("events", "", create=_CONTROLLER),
    *_rights("namespaces", "", get=_CONTROLLER),  # its own uid: one that was made again is another
    *_rights("namespaces", "", everywhere=True, name="kube-system", get=_CONTROLLER),  # whose uid is the cluster's
    *_rights("namespaces", "", everywhere=True, get=_API),  # of any caller
    *_rights("tokenreviews", "authentication.k8s.io", everywhere=True, create=_API),
    *_rights("subjectaccessreviews", "authorization.k8s.io", everywhere=True, create=_API),
)
"""A worker needs none: it asks no API server."""

_OF_CALLERS = {"tokenreviews", "subjectaccessreviews"}


def needed(roles: Collection[settings.Role], *, asks_who_calls: bool = True, deployment: str = "") -> list[Right]:
    """Return the rights of a process with these roles; `asks_who_calls` is False if it serves every caller.

    `deployment` is the one that the process belongs to, whose uid its controller puts into events; "" is none.
    """
    own = _rights("deployments", "apps", name=deployment, get=_CONTROLLER) if deployment else ()
    return [
        right
        for right in (*ALL, *own)
        if not set(roles).isdisjoint(right.needed_by) and (asks_who_calls or right.resource not in _OF_CALLERS)
    ]


async def missing(cluster: client.Cluster, rights: Iterable[Right]) -> list[Right]:
    """Those that the operator's account does not have; a ClusterDownError or a RefusedError: it cannot be said."""
    asked = list(rights)
    has = await asyncio.gather(*(_has(cluster, right) for right in asked))
    return [right for right, granted in zip(asked, has, strict=True) if not granted]


async def _has(cluster: client.Cluster, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "namespace": "" if right.everywhere else cluster.served.own,
        "name": right.name,
    }
    return await reviews.allowed(cluster, _REVIEWS, {"resourceAttributes": attributes})

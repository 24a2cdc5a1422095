"""The rights in the cluster that the operator needs, by role: their only list.

Readiness asks the API server for each right but `OWNERS`, and tests compare the chart's roles and the operator's
requests with the list. Every authenticated user may create a SelfSubjectAccessReview (`system:basic-user`) and use
discovery (`system:discovery`), so they are not in the list.
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
    """The right to one verb on one kind of objects."""

    verb: str
    resource: str
    """The plural name; a subresource follows a slash, as in a role."""
    group: str
    """The API group; "" is the core group."""
    everywhere: bool
    """Whether it is needed in the whole cluster; else in the operator's own namespace."""
    needed_by: tuple[settings.Role, ...]
    name: str = ""
    """The name of the one object that it is needed for; "" for any object."""


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
        create=_API,  # for an alert
        delete=_BOTH,  # purge; expiry
        get=_BOTH,
        list=_CONTROLLER,
        watch=_CONTROLLER,
    ),
    *_rights(f"{investigations.PLURAL}/status", base.GROUP, patch=_CONTROLLER),
    *_rights(chains.PLURAL, base.GROUP, list=_BOTH, watch=_CONTROLLER),
    *_rights(f"{chains.PLURAL}/status", base.GROUP, patch=_CONTROLLER),
    *_rights("events", "", create=_CONTROLLER),
    *_rights("namespaces", "", get=_CONTROLLER),  # the namespace's own uid
    *_rights("namespaces", "", everywhere=True, name="kube-system", get=_CONTROLLER),  # the cluster's uid
    *_rights("namespaces", "", everywhere=True, get=_API),  # the namespace of any caller's request
    *_rights("tokenreviews", "authentication.k8s.io", everywhere=True, create=_API),
    *_rights("subjectaccessreviews", "authorization.k8s.io", everywhere=True, create=_API),
)
"""The rights without which a role is not ready. A worker needs none: it sends no requests to the API server."""

OWNERS: tuple[Right, ...] = (
    *_rights("pods", "", everywhere=True, get=_API),
    *_rights("replicasets", "apps", everywhere=True, get=_API),
    *_rights("jobs", "batch", everywhere=True, get=_API),
)
"""The rights for chains that group alerts by owner. Without them such alerts are investigated alone (`kube.owners`)."""

_OF_CALLERS = {"tokenreviews", "subjectaccessreviews"}


def needed(roles: Collection[settings.Role], *, asks_who_calls: bool = True, deployment: str = "") -> list[Right]:
    """Return the rights of a process with these roles.

    `asks_who_calls` is False if its API serves every caller. `deployment` is the name of the process's Deployment, to
    which its controller posts events; "" if there is none.
    """
    own = _rights("deployments", "apps", name=deployment, get=_CONTROLLER) if deployment else ()
    return [
        right
        for right in (*ALL, *own)
        if not set(roles).isdisjoint(right.needed_by) and (asks_who_calls or right.resource not in _OF_CALLERS)
    ]


async def missing(cluster: client.Cluster, rights: Iterable[Right]) -> list[Right]:
    """Return the rights that the operator's account lacks. Raises ClusterDownError or RefusedError if unknown."""
    needed = list(rights)
    granted = await asyncio.gather(*(_has(cluster, right) for right in needed))
    return [right for right, is_granted in zip(needed, granted, strict=True) if not is_granted]


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

"""Who may do what: each route asks here first, and is told who calls and what it is about.

Fails closed: what cannot be found out now is a 503, never a yes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query, Request

from tarsy import errors
from tarsy.api import auth, problems
from tarsy.kube import client, objects
from tarsy.store import database as databases
from tarsy.store import history

ANONYMOUS = "api-client"
"""The author of what came from somebody without a name: who has the webhook's token, or calls `--insecure-dev`."""

Identity = Annotated[
    str,
    Path(
        description="The investigation's id: its object's uid.",
        examples=["6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64"],
        json_schema_extra={"format": "uuid", "maxLength": 36},  # said, and not checked: another one is not found
    ),
]
Namespace = Annotated[
    str | None,
    Query(
        description="The namespace; by default the one that the operator lives in.",
        examples=["shop"],
        json_schema_extra={"maxLength": 63},  # said, and looked at when it is known who calls
    ),
]

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Source: Kubernetes documentation, "Object Names and IDs", RFC 1123 label names."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who sent a request."""

    author: str
    """Their name in specs, lists and the audit."""
    address: str
    """Where the request came from."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """An investigation, of a namespace in which its caller may do what is asked."""

    id: UUID
    namespace: str
    name: str
    caller: Caller


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A namespace as it is now, in which the caller may do what is asked."""

    namespace: str
    uid: str
    """Of the namespace: what is kept of an earlier one of its name is none of its own."""
    caller: Caller


class Access:
    """The rights of callers; its methods are what routes depend on."""

    def __init__(self, *, cluster: client.Cluster, database: databases.Database, token: str | None) -> None:
        """`token` is the webhook's; None serves the programs of this machine, whatever they ask (`--insecure-dev`)."""
        self._cluster = cluster
        self._database = database
        self._token = token

    async def greets(self, request: Request) -> None:
        """What is asked of every request, before anything is known of it."""
        if self._token is None:
            await auth.same_machine(request)

    async def notifies(self, request: Request) -> Caller:
        """Who may send notifications of Alertmanager."""
        return await self._caller(request)

    async def submits(self, request: Request) -> Caller:
        """Who may post an alert."""
        return await self._caller(request)

    async def lists(self, request: Request, namespace: Namespace = None) -> Scope:
        """Who may list the investigations of a namespace."""
        caller = await self._caller(request)
        name = namespace or self._cluster.namespace
        if not _NAMESPACE.fullmatch(name):
            raise problems.invalid([problems.Fault(place="query.namespace", message="no namespace has such a name")])
        return Scope(namespace=name, uid=await self._uid(name) or "", caller=caller)

    async def reads(self, request: Request, identity: Identity) -> Known:
        """Who may read an investigation and its transcript."""
        return await self._known(request, identity)

    async def changes(self, request: Request, identity: Identity) -> Known:
        """Who may cancel an investigation, and ask about it."""
        return await self._known(request, identity)

    async def purges(self, request: Request, identity: Identity) -> Known:
        """Who may have an investigation and its transcript deleted."""
        return await self._known(request, identity)

    async def oversees(self, request: Request) -> Caller:
        """Who may see how TARSy is set up, and what it does for everybody."""
        return await self._caller(request)

    async def _caller(self, request: Request) -> Caller:
        if self._token is not None:
            await auth.bearer(self._token)(request)
        return Caller(author=ANONYMOUS, address=request.client.host if request.client else "")

    async def _known(self, request: Request, identity: str) -> Known:
        caller = await self._caller(request)
        unknown = f"there is no investigation with id {identity[: problems.ECHOED_MAX]}"
        try:
            asked = UUID(identity)
        except ValueError:
            raise problems.Problem(HTTPStatus.NOT_FOUND, unknown) from None
        try:
            found = await history.whereabouts(self._database, asked)
        except errors.TemporaryError as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        if found is None:
            raise problems.Problem(HTTPStatus.NOT_FOUND, unknown)
        return Known(id=asked, namespace=found.namespace, name=found.name, caller=caller)

    async def _uid(self, namespace: str) -> str | None:
        try:
            return await objects.namespace_uid(self._cluster, namespace)
        except errors.TemporaryError as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error

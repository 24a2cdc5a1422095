"""Permissions: each route asks here first, and gets the caller and the object of the request.

Rights are those on the objects themselves, in the objects' namespace, asked of the API server (SubjectAccessReview):
`get` reads a transcript, `list` lists, `create` submits, `update` cancels and asks questions, `delete` purges; `list`
of the operator's chains shows the setup of TARSy. MCP servers are no objects, and have a right of their own: `update`
of `mcpservers` in the operator's namespace. A transcript belongs to the namespace that its object was in, and to no
later one of that name. Once that namespace is gone the transcript can be read by none, and a user with `delete` on
investigations in all namespaces can purge it.

Ids cannot be probed: a caller without the right gets the same answer as for an unknown id.

Fails closed: if the right cannot be checked now, the answer is 503.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query
from starlette.requests import HTTPConnection

from tarsy import errors
from tarsy.auth import api_server, callers, credentials, origins, rights, single_flight
from tarsy.config.model import platforms
from tarsy.kube import client, objects, reviews
from tarsy.resources import chains, investigations
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy.store.reads import summaries

ALLOWED_SECONDS = 30.0
REFUSED_SECONDS = 10.0
"""For so long it holds what the API server says of a right."""
NAMESPACE_SECONDS = 2.0
"""For so long it holds which namespace has a name: until then one that is made again is taken for the one before. That
there is none does not hold: it may be made at any moment, and what is purged of one that is gone has no object."""

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

ServerName = Annotated[
    str,
    Path(
        description="The name of an MCP server in the platform file.",
        examples=["kubernetes-server"],
        json_schema_extra={"maxLength": 253},  # said, and not checked: another one is not found
    ),
]
SERVERS = "mcpservers"
"""The plural of what is no kind: rights on it are granted and asked for as on those that are."""

_EVERYWHERE = ""
"""As a namespace, to SubjectAccessReview: all of them."""
_NAME_MAX = 253
"""Characters of an object's name; who asks about more asks about none."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Source: Kubernetes documentation, "Object Names and IDs", RFC 1123 label names."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of a request."""

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
    is_there: bool = True
    """Its namespace is: else it is to be purged, and there is nothing of it in the cluster."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A namespace as it is now, in which the caller may do what is asked."""

    namespace: str
    uid: str
    """The uid of the namespace: transcripts of an earlier namespace of that name are not its own."""
    caller: Caller


class Access:
    """The rights of callers; its methods are what routes depend on."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        token: str | None,
        settings: platforms.API,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`token` is the webhook's; None serves the programs of this machine, whatever they ask (`--insecure-dev`).

        `clock` tells seconds that only rise: what is kept and counted goes by it.
        """
        self._cluster = cluster
        self._database = database
        self._local_only = token is None
        self._origins = settings.allowed_origins
        self._asking = api_server.Asking(clock=clock)
        self._callers = callers.Callers(
            cluster=cluster, token=token, settings=settings, questions=self._asking, clock=clock
        )
        self._rights = single_flight.Kept[bool](within=reviews.SECONDS, clock=clock)
        self._namespaces = single_flight.Kept[str](within=reviews.SECONDS, clock=clock)

    async def greets(self, request: HTTPConnection) -> None:
        """Check every request, before anything else is known of it."""
        if self._local_only:
            await credentials.same_machine(request)

    async def notifies(self, request: HTTPConnection, _right: rights.Create = None) -> Caller:
        """Return a caller that may send notifications. Alertmanager sends again only after a 503."""
        return await self._creates(await self._callers.sender(request, busy=HTTPStatus.SERVICE_UNAVAILABLE))

    async def submits(self, request: HTTPConnection, _right: rights.Create = None) -> Caller:
        """Return a caller that may post an alert."""
        return await self._creates(await self._callers.sender(request))

    async def lists(self, request: HTTPConnection, namespace: Namespace = None, _right: rights.List = None) -> Scope:
        """Return the scope of a caller that may list the investigations of a namespace."""
        sender = await self._person(request)
        name = self._cluster.served.default if namespace is None else namespace
        if not _NAMESPACE.fullmatch(name):
            raise problems.invalid([problems.Fault(place="query.namespace", message="no namespace has such a name")])
        action = _of_investigations("list", name)
        await self._ensure(sender, action)
        if (uid := await self._uid(sender, name)) is None:
            raise problems.Problem(HTTPStatus.NOT_FOUND, f"there is no namespace {name}")
        return Scope(namespace=name, uid=uid, caller=_caller(sender))

    async def reads(self, request: HTTPConnection, identity: Identity, _right: rights.Get = None) -> Known:
        """Return the investigation, if the caller may read it and its transcript."""
        return await self._target(request, identity, "get")

    async def changes(self, request: HTTPConnection, identity: Identity, _right: rights.Update = None) -> Known:
        """Return the investigation, if the caller may cancel it and ask about it."""
        return await self._target(request, identity, "update")

    async def purges(self, request: HTTPConnection, identity: Identity, _right: rights.Delete = None) -> Known:
        """Return the investigation, if the caller may purge it.

        Without its namespace that needs the right in all namespaces.
        """
        return await self._target(request, identity, "delete")

    async def oversees(self, request: HTTPConnection, _right: rights.ListChains = None) -> Caller:
        """Return a caller that may see the setup of TARSy, and its work for all namespaces."""
        sender = await self._person(request)
        await self._ensure(
            sender, reviews.Action(verb="list", plural=chains.PLURAL, namespace=self._cluster.served.own)
        )
        return _caller(sender)

    async def accepts(self, request: HTTPConnection, name: ServerName, _right: rights.UpdateServer = None) -> Caller:
        """Return a caller that may accept changed tools of an MCP server."""
        sender = await self._person(request)
        account = name if len(name) <= _NAME_MAX else ""
        action = reviews.Action(verb="update", plural=SERVERS, namespace=self._cluster.served.own, name=account)
        await self._ensure(sender, action)
        return _caller(sender)

    async def connects(self, connection: HTTPConnection) -> Caller:
        """Return a caller that may open a WebSocket; each channel has a check of its own."""
        await self.greets(connection)
        sender = await self._person(connection)
        origins.ensure_own(
            connection,
            proxies=self._callers.proxies,
            allowed=self._origins,
            is_vouched_for=sender.is_vouched_for,
        )
        return _caller(sender)

    async def _person(self, request: HTTPConnection) -> callers.Sender:
        """The sender, who has more than the webhook's token."""
        sender = await self._callers.sender(request)
        if sender.who == "webhook":
            message = "this token is for webhooks and posted alerts alone: `kubectl create token` makes others"
            raise problems.Problem(HTTPStatus.FORBIDDEN, message)
        return sender

    async def _creates(self, sender: callers.Sender) -> Caller:
        if sender.who != "webhook":
            await self._ensure(sender, _of_investigations("create", self._cluster.served.default))
        return _caller(sender)

    async def _target(self, request: HTTPConnection, identity: str, verb: reviews.Verb) -> Known:
        sender = await self._person(request)
        whereabouts = await self._whereabouts(identity, verb)
        if whereabouts is None:
            raise await self._absent(sender, identity)
        action = _of_investigations(verb, whereabouts.namespace, whereabouts.name)
        may = await self._may(sender, action)
        learns = may or await self._may(sender, _of_investigations("get", whereabouts.namespace, whereabouts.name))
        if not learns:
            raise await self._absent(sender, identity)
        is_there = await self._is_there(sender, whereabouts)
        if not is_there and not await self._may_everywhere(sender, verb):
            raise await self._absent(sender, identity)
        if not may:
            raise _forbidden(sender, action)
        return Known(
            id=UUID(identity),
            namespace=whereabouts.namespace,
            name=whereabouts.name,
            caller=_caller(sender),
            is_there=is_there,
        )

    async def _whereabouts(self, identity: str, verb: reviews.Verb) -> summaries.Location | None:
        try:
            return await summaries.location(self._database, UUID(identity), purging=verb == "delete")
        except ValueError:
            return None
        except errors.TemporaryError as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; ask again") from error

    async def _may_everywhere(self, sender: callers.Sender, verb: reviews.Verb) -> bool:
        """Whether they may have deleted what is in no namespace any more; nothing else is done to that."""
        return verb == "delete" and await self._may(sender, _of_investigations("delete", _EVERYWHERE))

    async def _is_there(self, sender: callers.Sender, whereabouts: summaries.Location) -> bool:
        """Whether the namespace is the one that the investigation was in; of earlier ones no uid was kept."""
        if sender.who == "anybody":
            return True
        uid = await self._uid(sender, whereabouts.namespace)
        return uid is not None and whereabouts.namespace_uid in (uid, None)

    async def _absent(self, sender: callers.Sender, identity: str) -> problems.Problem:
        """The answer to who asks for what is not there, or not for them."""
        action = _of_investigations("get", self._cluster.served.default)
        if not await self._may(sender, action):
            return _forbidden(sender, action)
        return problems.Problem(
            HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity[: problems.ECHOED_MAX]}"
        )

    async def _uid(self, sender: callers.Sender, namespace: str) -> str | None:
        async def ask() -> single_flight.Answer[str]:
            uid = await objects.namespace_uid(self._cluster, namespace)
            return single_flight.Answer(found=uid, seconds=NAMESPACE_SECONDS if uid else 0.0)

        async with self._asking.whether("what namespaces there are"):
            return await self._namespaces.get(namespace.encode(), ask, by=_asker(sender))

    async def _ensure(self, sender: callers.Sender, action: reviews.Action) -> None:
        if not await self._may(sender, action):
            raise _forbidden(sender, action)

    async def _may(self, sender: callers.Sender, action: reviews.Action) -> bool:
        user = sender.who
        if not isinstance(user, reviews.User):
            return user == "anybody"

        async def review() -> single_flight.Answer[bool]:
            may = await reviews.may(self._cluster, user, action)
            return single_flight.Answer(found=may or None, seconds=ALLOWED_SECONDS if may else REFUSED_SECONDS)

        key = hashlib.sha256(repr((user, action)).encode()).digest()  # of one size, however long the names are
        async with self._asking.whether(f"what User {callers.printable_name(user.name)} may do"):
            return bool(await self._rights.get(key, review, by=user.name))


def _of_investigations(verb: reviews.Verb, namespace: str, name: str = "") -> reviews.Action:
    return reviews.Action(verb=verb, plural=investigations.PLURAL, namespace=namespace, name=name)


def _asker(sender: callers.Sender) -> str:
    return sender.who.name if isinstance(sender.who, reviews.User) else sender.who


def _forbidden(sender: callers.Sender, action: reviews.Action) -> problems.Problem:
    name = callers.printable_name(sender.who.name) if isinstance(sender.who, reviews.User) else sender.author
    may_not = f"may not {action.verb} {action.plural} in namespace {action.namespace}"
    return problems.Problem(HTTPStatus.FORBIDDEN, f"User {name} {may_not}")


def _caller(sender: callers.Sender) -> Caller:
    return Caller(author=sender.author, address=sender.address)

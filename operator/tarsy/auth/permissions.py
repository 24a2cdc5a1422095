"""Permissions: each route depends on a method here, which returns the caller and the object of the request.

Rights are those on the objects themselves, in the objects' namespace, asked of the API server (SubjectAccessReview):
`get` reads a transcript, `list` lists, `create` submits, `update` cancels and asks questions, `delete` deletes,
restores, holds and purges; `create` of their subresource `feedback` gives feedback; `list` of the operator's chains
shows the setup of TARSy. MCP servers are no objects, and have a right of their own: `update` of `mcpservers` in the
operator's namespace. Nor are the rows of the audit: `get` of `auditevents` reads those of a namespace. A list that
names no namespace is of all served ones in which the caller has the right. A transcript belongs to the namespace that
its object was in, and to no later one of that name. Once that namespace is gone, the transcript cannot be read, and
only a user with `delete` on investigations in all namespaces can purge it.

Ids cannot be probed: a caller without the right gets the same answer as for an unknown id.

Checks fail closed: if a right cannot be checked now, the answer is 503.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

from starlette.requests import HTTPConnection

from tarsy import errors
from tarsy.auth import (
    cluster_rights,
    credentials,
    identities,
    origins,
    parameters,
    request_log,
    rights,
    sessions,
    webhook_tokens,
)
from tarsy.config.model import platforms
from tarsy.kube import client, objects, reviews
from tarsy.resources import chains, investigations
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy.store.reads import summaries

_NAME_MAX = 253
"""Characters of an object's name."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""Source: Kubernetes documentation, "Object Names and IDs": RFC 1123 label names, and DNS subdomain names."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An investigation in whose namespace the caller has the right that the request needs."""

    id: UUID
    namespace: str
    name: str
    caller: identities.Caller
    has_namespace: bool = True
    """Whether its namespace still exists. If not, only a purge is allowed, and the cluster has no object of it."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The namespaces in which the caller has the right that the request needs."""

    namespaces: Mapping[str, str]
    """Each with its uid, at least one: transcripts of an earlier namespace of that name do not belong to it."""
    named: tuple[str, ...]
    """The namespaces that the request names, sorted; empty if it asks for all that are served."""
    unchecked: Mapping[str, str]
    """The served namespaces that are left out because they cannot be looked up now, each with the reason."""
    caller: identities.Caller
    is_everywhere: bool = False
    """Whether it has all namespaces, also those that are not served or gone; then `namespaces` is empty."""


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A served namespace in which the caller may create an investigation."""

    namespace: str
    caller: identities.Caller
    source: tuple[str, str] = ("", "")
    """The sender of alerts in the keys of groups: a kind, and its name."""


class Access:
    """The rights of callers; routes depend on its methods."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        tokens: Callable[[], webhook_tokens.Tokens] | None,
        settings: platforms.API,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens` returns those of webhooks; None allows everything to programs of this machine (`--insecure-dev`).

        `clock` is monotonic, in seconds: caches and rates go by it.
        """
        self._cluster = cluster
        self._database = database
        self._local_only = tokens is None
        self._public_url = settings.public_url
        lookups = identities.Lookups(clock=clock)
        self._identities = identities.Identities(
            cluster=cluster, database=database, tokens=tokens, settings=settings, lookups=lookups, clock=clock
        )
        self.sessions = self._identities.sessions
        self._origins = origins.Origins(settings, self._identities.proxies)
        self._rights = cluster_rights.Rights(cluster=cluster, lookups=lookups, clock=clock)

    async def ensure_local(self, request: HTTPConnection) -> None:
        """Refuse requests from other machines if only this one is served. This is the first check of a request."""
        if self._local_only:
            credentials.ensure_same_machine(request)

    async def identified(self, request: HTTPConnection) -> identities.Caller:
        """Return a caller that is known, whatever its rights are."""
        return (await self._identities.identify(request)).caller

    async def notify(self, request: HTTPConnection, _right: rights.Create = None) -> Destination:
        """Return the namespace of a notification that names none. Alertmanager sends again only after a 503."""
        identity = await self._identities.identify(request, busy=HTTPStatus.SERVICE_UNAVAILABLE)
        return await self._destination(identity, self._cluster.served.default)

    async def notify_in(
        self, request: HTTPConnection, namespace: parameters.ServedNamespace, _right: rights.CreateIn = None
    ) -> Destination:
        """Return the namespace that a notification names, if the caller may send alerts to it."""
        request_log.note(request, namespace=namespace[: problems.ECHOED_MAX])
        identity = await self._identities.identify(request, busy=HTTPStatus.SERVICE_UNAVAILABLE)
        return await self._destination(identity, namespace)

    async def submit(
        self, request: HTTPConnection, namespace: parameters.NewNamespace = None, _right: rights.Create = None
    ) -> Destination:
        """Return the namespace in which the caller may post an alert."""
        return await self._destination(await self._identities.identify(request), self._new_namespace(namespace))

    async def submit_in(self, request: HTTPConnection) -> Scope:
        """Return the scope of a caller in the served namespaces in which it may create investigations."""
        return await self._scope(await self._reader(request), (), "create", investigations.PLURAL)

    async def list_in(
        self, request: HTTPConnection, namespaces: parameters.Namespaces = None, _right: rights.List = None
    ) -> Scope:
        """Return the scope of a caller that may list the investigations of namespaces."""
        identity = await self._reader(request)
        _note_namespaces(request, namespaces)
        return await self._scope(identity, namespaces or (), "list", investigations.PLURAL)

    async def also_delete(self, request: HTTPConnection, scope: Scope) -> Scope:
        """Return the part of a scope in which the caller may also delete, and so see what is deleted.

        Raises a Problem if the request names a namespace in which it may not, or if there is none.
        """
        identity = await self._reader(request)
        deletable = await self._scope(identity, scope.named, "delete", investigations.PLURAL)
        namespaces = {name: uid for name, uid in scope.namespaces.items() if name in deletable.namespaces}
        if not namespaces:
            raise cluster_rights.ForbiddenError(identity, _on_investigations("delete", next(iter(scope.namespaces))))
        return dataclasses.replace(scope, namespaces=namespaces, unchecked={**scope.unchecked, **deletable.unchecked})

    async def may_delete(self, request: HTTPConnection, target: Target) -> bool:
        """Return whether the caller may delete an investigation; False also if that cannot be checked now."""
        identity = await self._reader(request)
        try:
            return await self._rights.is_allowed(identity, _on_investigations("delete", target.namespace, target.name))
        except problems.Problem:
            return False

    async def read_audit(
        self, request: HTTPConnection, namespaces: parameters.Namespaces = None, _right: rights.GetAudit = None
    ) -> Scope:
        """Return the scope of a caller that may read the audit of namespaces.

        If it names none and has the right in all namespaces, the scope is the whole audit.
        """
        identity = await self._reader(request)
        _note_namespaces(request, namespaces)
        everywhere = reviews.Action(
            verb="get", plural=cluster_rights.AUDIT_EVENTS, namespace=cluster_rights.ALL_NAMESPACES
        )
        if not namespaces and await self._rights.is_allowed(identity, everywhere):
            return Scope(namespaces={}, named=(), unchecked={}, caller=identity.caller, is_everywhere=True)
        return await self._scope(identity, namespaces or (), "get", cluster_rights.AUDIT_EVENTS)

    async def read(
        self, request: HTTPConnection, investigation_id: parameters.InvestigationId, _right: rights.Get = None
    ) -> Target:
        """Return the investigation, if the caller may read it and its transcript."""
        return await self._target(request, investigation_id, "get")

    async def look_up(
        self,
        request: HTTPConnection,
        namespace: parameters.ObjectNamespace,
        name: parameters.ObjectName,
        _right: rights.Get = None,
    ) -> str | None:
        """Return the uid of an investigation's object, read live, if the caller may read it.

        None if there is none of that name, or its namespace is not served.
        """
        identity = await self._reader(request)
        if not _NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise problems.Problem(HTTPStatus.NOT_FOUND, "no object has such a name")
        await self._rights.ensure(identity, _on_investigations("get", namespace, name))
        if namespace not in self._cluster.served:
            return None
        return await objects.get_investigation_uid(self._cluster, namespace=namespace, name=name)

    async def update(
        self, request: HTTPConnection, investigation_id: parameters.InvestigationId, _right: rights.Update = None
    ) -> Target:
        """Return the investigation, if the caller may cancel it and ask about it."""
        return await self._target(request, investigation_id, "update")

    async def give_feedback(
        self, request: HTTPConnection, investigation_id: parameters.InvestigationId, _right: rights.Feedback = None
    ) -> Target:
        """Return the investigation, if the caller may say whether it was right."""
        return await self._target(request, investigation_id, "create", subresource="feedback")

    async def retry(
        self, request: HTTPConnection, investigation_id: parameters.InvestigationId, _right: rights.Retry = None
    ) -> Target:
        """Return the investigation, if the caller may read it and create others in its namespace."""
        target = await self._target(request, investigation_id, "get")
        await self._rights.ensure(await self._reader(request), _on_investigations("create", target.namespace))
        if target.namespace not in self._cluster.served:
            message = f"it is of namespace {target.namespace}, which is not served any more"
            raise problems.Problem(HTTPStatus.CONFLICT, message)
        return target

    async def delete(
        self, request: HTTPConnection, investigation_id: parameters.InvestigationId, _right: rights.Delete = None
    ) -> Target:
        """Return the investigation, even a deleted one, if the caller may delete, restore, hold and purge it.

        Without its namespace that needs the right in all namespaces.
        """
        return await self._target(request, investigation_id, "delete")

    async def see_setup(self, request: HTTPConnection, _right: rights.ListChains = None) -> identities.Caller:
        """Return a caller that may see the setup of TARSy, and its work for all namespaces."""
        identity = await self._reader(request)
        action = reviews.Action(verb="list", plural=chains.PLURAL, namespace=self._cluster.served.own)
        await self._rights.ensure(identity, action)
        return identity.caller

    async def list_chains_in(
        self, request: HTTPConnection, namespaces: parameters.Namespaces = None, _right: rights.ListChains = None
    ) -> Scope:
        """Return the scope of a caller that may list the chains of namespaces."""
        return await self._scope(await self._reader(request), namespaces or (), "list", chains.PLURAL)

    async def listable(self, request: HTTPConnection) -> frozenset[str]:
        """Return the served namespaces in which the caller may list investigations; none if that is unknown now."""
        try:
            return frozenset((await self.list_in(request)).namespaces)
        except problems.Problem as problem:
            if problem.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
                raise
            return frozenset()

    async def match_chains(
        self, request: HTTPConnection, namespace: parameters.NewNamespace = None, _right: rights.MatchChains = None
    ) -> Destination:
        """Return a namespace of which the caller may see which chain takes an alert.

        It may create investigations there, or list chains.
        """
        identity = await self._reader(request)
        name = self._new_namespace(namespace)
        if not await self._rights.is_allowed(identity, _on_investigations("create", name)):
            await self._rights.ensure(identity, reviews.Action(verb="list", plural=chains.PLURAL, namespace=name))
        self._ensure_served(name)
        return Destination(namespace=name, caller=identity.caller)

    async def accept_tools(
        self, request: HTTPConnection, name: parameters.ServerName, _right: rights.UpdateServer = None
    ) -> identities.Caller:
        """Return a caller that may accept changed tools of an MCP server."""
        identity = await self._reader(request)
        server = name if len(name) <= _NAME_MAX else ""
        request_log.note(request, server=server)
        action = reviews.Action(
            verb="update", plural=cluster_rights.SERVERS, namespace=self._cluster.served.own, name=server
        )
        await self._rights.ensure(identity, action)
        return identity.caller

    async def open_websocket(self, connection: HTTPConnection) -> None:
        """Refuse a caller that may open no WebSocket; each subscription has a check of its own."""
        await self.ensure_local(connection)
        identity = await self._reader(connection)
        self._origins.ensure_own(connection, is_ambient=identity.is_ambient)

    async def sign_in(self, request: HTTPConnection, _right: rights.SignIn = None) -> identities.Identity:
        """Return the identity of a caller with a token, which may begin a session."""
        identity = await self._reader(request)
        if identity.is_ambient:
            message = "a session begins with a token: give it as `Authorization: Bearer <token>`"
            raise problems.Problem(HTTPStatus.FORBIDDEN, message)
        return identity

    async def sign_out(self, request: HTTPConnection) -> str | None:
        """Return the cookie of the session that the request ends, or None if it has none."""
        self._origins.ensure_own_change(request)
        return sessions.cookie_of(request)

    def address(self, request: HTTPConnection) -> str:
        """Return the address that a request came from."""
        address = self._identities.proxies.origin(request).address
        request_log.note(request, address=address)
        return address

    def site(self, request: HTTPConnection) -> str:
        """Return the origin at which browsers reach this API, such as https://tarsy.example."""
        return self._public_url or self._identities.proxies.site(request) or ""

    async def _reader(self, request: HTTPConnection) -> identities.Identity:
        """Return the identity of a caller; refuse a token of webhooks."""
        identity = await self._identities.identify(request)
        if isinstance(identity.principal, webhook_tokens.Webhook):
            message = "the webhook's token only sends alerts: `kubectl create token` makes one for other requests"
            raise problems.Problem(HTTPStatus.FORBIDDEN, message)
        return identity

    def _new_namespace(self, named: str | None) -> str:
        """Return the namespace that a request names for an investigation, or the default one."""
        if named is None:
            return self._cluster.served.default
        if not _NAMESPACE.fullmatch(named):
            raise problems.invalid([problems.Fault(place="query.namespace", message="no namespace has such a name")])
        return named

    async def _destination(self, identity: identities.Identity, namespace: str) -> Destination:
        """Return a served namespace, if the caller may create investigations in it."""
        owner, name = identity.principal, namespace[: problems.ECHOED_MAX]
        if isinstance(owner, webhook_tokens.Webhook) and namespace not in owner.namespaces:
            remedy = "list the namespace with it in `ingest.tokens` of the platform file, or send another token"
            message = f"the token may not send alerts to namespace {name}: {remedy}"
            raise problems.Problem(HTTPStatus.FORBIDDEN, message)
        if isinstance(owner, reviews.User) and _NAMESPACE.fullmatch(namespace):
            await self._rights.ensure(identity, _on_investigations("create", namespace))
        self._ensure_served(namespace)
        source = ("author", owner.name if isinstance(owner, reviews.User) else identity.author)
        if isinstance(owner, webhook_tokens.Webhook):
            source = ("source", owner.source) if owner.source else ("token", owner.name)
        return Destination(namespace=namespace, caller=identity.caller, source=source)

    def _ensure_served(self, namespace: str) -> None:
        if namespace not in self._cluster.served:
            name = namespace[: problems.ECHOED_MAX]
            message = f"namespace {name} is not served: add it to `namespaces` of the platform file, and restart"
            raise problems.Problem(HTTPStatus.FORBIDDEN, message)

    async def _target(
        self, request: HTTPConnection, investigation_id: str, verb: reviews.Verb, *, subresource: str = ""
    ) -> Target:
        identity = await self._reader(request)
        try:
            uid = UUID(investigation_id)
            request_log.note(request, uid=str(uid))
            location = await summaries.location(self._database, uid, deleting=verb == "delete")
        except ValueError:
            location = None
        except errors.TemporaryError as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; try again") from error
        if location is None:
            raise await self._not_found(identity, investigation_id)
        request_log.note(request, investigation=f"{location.namespace}/{location.name}")
        action = reviews.Action(
            verb=verb,
            plural=investigations.PLURAL,
            namespace=location.namespace,
            name=location.name,
            subresource=subresource,
        )
        is_allowed = await self._rights.is_allowed(identity, action)
        if not is_allowed:
            to_read = _on_investigations("get", location.namespace, location.name)
            if not await self._rights.is_allowed(identity, to_read):  # a 403 would tell that the investigation exists
                raise await self._not_found(identity, investigation_id)
        has_namespace = await self._has_namespace(identity, location)
        if not has_namespace:  # nothing but a purge is possible
            everywhere = _on_investigations("delete", cluster_rights.ALL_NAMESPACES)
            if verb != "delete" or not await self._rights.is_allowed(identity, everywhere):
                raise await self._not_found(identity, investigation_id)
        if not is_allowed:
            raise cluster_rights.ForbiddenError(identity, action)
        return Target(
            id=UUID(investigation_id),
            namespace=location.namespace,
            name=location.name,
            caller=identity.caller,
            has_namespace=has_namespace,
        )

    async def _scope(
        self, identity: identities.Identity, named: Sequence[str], verb: reviews.Verb, plural: str
    ) -> Scope:
        """Return the scope of a caller in the namespaces that its request names, or else in all that are served.

        Raises a Problem if it lacks the right in a namespace that it names, or in all that are served.
        """
        if not named:
            return await self._scope_in_served(identity, verb, plural)
        names = tuple(sorted(set(named)))
        if len(names) > parameters.NAMESPACES_MAX or not all(map(_NAMESPACE.fullmatch, names)):
            message = f"give up to {parameters.NAMESPACES_MAX} names of namespaces"
            raise problems.invalid([problems.Fault(place="query.namespace", message=message)])
        actions = [reviews.Action(verb=verb, plural=plural, namespace=name) for name in names]
        await asyncio.gather(*(self._rights.ensure(identity, action) for action in actions))
        uids = await asyncio.gather(*(self._rights.namespace_uid(identity, name) for name in names))
        namespaces = {name: uid for name, uid in zip(names, uids, strict=True) if uid is not None}
        if absent := next((name for name in names if name not in namespaces), None):
            raise problems.Problem(HTTPStatus.NOT_FOUND, f"there is no namespace {absent}")
        return Scope(namespaces=namespaces, named=names, unchecked={}, caller=identity.caller)

    async def _scope_in_served(self, identity: identities.Identity, verb: reviews.Verb, plural: str) -> Scope:
        """Return the scope of a caller in all served namespaces; those that cannot be looked up now are left out."""
        refusals = await self._rights.refusals(identity, verb, plural)
        unchecked = {
            name: why.detail for name, why in refusals.items() if why and why.status is not HTTPStatus.FORBIDDEN
        }
        namespaces = {}

        async def add(namespace: str) -> None:
            try:
                uid = await self._rights.namespace_uid(identity, namespace)
            except problems.Problem as problem:
                unchecked[namespace] = problem.detail
            else:
                if uid is not None:
                    namespaces[namespace] = uid

        await asyncio.gather(*(add(name) for name, why in refusals.items() if why is None))
        if not namespaces:
            if unchecked:
                raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, next(iter(unchecked.values())))
            absent = next(name for name, why in refusals.items() if why is None)
            raise problems.Problem(HTTPStatus.NOT_FOUND, f"there is no namespace {absent}")
        return Scope(namespaces=namespaces, named=(), unchecked=unchecked, caller=identity.caller)

    async def _has_namespace(self, identity: identities.Identity, location: summaries.Location) -> bool:
        """Whether the namespace of the investigation still exists. Old investigations have no recorded uid of it."""
        if identity.principal == "anybody":
            return True
        uid = await self._rights.namespace_uid(identity, location.namespace)
        return uid is not None and location.namespace_uid in (uid, None)

    async def _not_found(self, identity: identities.Identity, investigation_id: str) -> problems.Problem:
        """Return the problem of an id that is unknown, or unknown to this caller.

        It is the same for both: 404 for a caller that may read the investigations of some served namespace, else 403.
        """
        try:
            await self._rights.refusals(identity, "get", investigations.PLURAL)
        except problems.Problem as problem:
            return problem
        excerpt = investigation_id[: problems.ECHOED_MAX]
        return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {excerpt}")


def _note_namespaces(request: HTTPConnection, namespaces: Sequence[str] | None) -> None:
    """Add the namespaces that a request names to its log line."""
    if namespaces:
        request_log.note(request, namespace=",".join(namespaces)[: problems.ECHOED_MAX])


def _on_investigations(verb: reviews.Verb, namespace: str, name: str = "") -> reviews.Action:
    return reviews.Action(verb=verb, plural=investigations.PLURAL, namespace=namespace, name=name)

"""The rights of callers and the uids of namespaces, as the API server answers, each cached for a while.

Checks fail closed: if the API server does not answer, the Problem has status 503.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from http import HTTPStatus

from tarsy.auth import identities, single_flight
from tarsy.kube import client, discovery, reviews
from tarsy.serve import problems

SERVERS = "mcpservers"
"""A plural without a kind: rights on it are granted and checked like rights on kinds."""
AUDIT_EVENTS = "auditevents"
"""Another plural without a kind."""
ALL_NAMESPACES = ""
"""In a SubjectAccessReview."""
ALLOWED_SECONDS = 30.0
REFUSED_SECONDS = 10.0
"""Seconds that the API server's answer about a right is cached: one for a granted, one for a refused right."""
NAMESPACE_SECONDS = 2.0
"""Seconds that a namespace's uid is cached. A namespace that was created again is taken for the earlier one until then.
An absence is not cached: the namespace may be created at any moment, and a purge in an absent one deletes no object."""


class ForbiddenError(problems.Problem):
    """A caller without a right: which one, and in which namespace."""

    def __init__(self, identity: identities.Identity, action: reviews.Action, *, others: int = 0) -> None:
        """`others` is the number of other namespaces in which the caller lacks the right as well."""
        principal = identity.principal
        self.user = (
            identities.printable_name(principal.name) if isinstance(principal, reviews.User) else identity.author
        )
        self.action = action
        self.caller = identity.caller
        may_not = f"may not {action.verb} {action.resource} in namespace {action.namespace}"
        if others:
            may_not += ", nor in another one that is served"
        super().__init__(HTTPStatus.FORBIDDEN, f"User {self.user} {may_not}")


class Rights:
    """The rights of callers in the cluster."""

    def __init__(self, *, cluster: client.Cluster, lookups: identities.Lookups, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds: the caches go by it."""
        self._cluster = cluster
        self._lookups = lookups
        self._allowed = single_flight.Cache[bool](within=reviews.SECONDS, clock=clock)
        self._namespaces = single_flight.Cache[str](within=reviews.SECONDS, clock=clock)

    async def is_allowed(self, identity: identities.Identity, action: reviews.Action) -> bool:
        """Whether the caller may do it. A webhook's token has no rights, and `anybody` has all."""
        user = identity.principal
        if not isinstance(user, reviews.User):
            return user == "anybody"

        async def look_up() -> single_flight.Answer[bool]:
            is_allowed = await reviews.may(self._cluster, user, action)
            seconds = ALLOWED_SECONDS if is_allowed else REFUSED_SECONDS
            return single_flight.Answer(value=is_allowed or None, seconds=seconds)

        key = hashlib.sha256(repr((user, action)).encode()).digest()  # of one size, however long the names are
        async with self._lookups.unavailable_if_failed(f"the rights of User {identities.printable_name(user.name)}"):
            return bool(await self._allowed.get(key, look_up, caller=user.name))

    async def ensure(self, identity: identities.Identity, action: reviews.Action) -> None:
        """Raise a ForbiddenError if the caller may not do it."""
        if not await self.is_allowed(identity, action):
            raise ForbiddenError(identity, action)

    async def refusals(
        self, identity: identities.Identity, verb: reviews.Verb, plural: str
    ) -> Mapping[str, problems.Problem | None]:
        """Return for each served namespace why the caller lacks the right in it, None if it has the right.

        The right in all namespaces is asked for first. Raises a Problem if the caller has the right in none.
        """
        served = self._cluster.served
        actions = {name: reviews.Action(verb=verb, plural=plural, namespace=name) for name in served}
        if len(actions) > 1:
            everywhere = reviews.Action(verb=verb, plural=plural, namespace=ALL_NAMESPACES)
            if await self.is_allowed(identity, everywhere):
                return dict.fromkeys(actions)

        async def refusal(action: reviews.Action) -> problems.Problem | None:
            try:
                await self.ensure(identity, action)
            except problems.Problem as problem:
                return problem
            return None

        refusals = dict(zip(actions, await asyncio.gather(*map(refusal, actions.values())), strict=True))
        if None not in refusals.values():
            for why in refusals.values():
                if why and why.status is not HTTPStatus.FORBIDDEN:
                    raise why
            raise ForbiddenError(identity, actions[served.default], others=len(actions) - 1)
        return refusals

    async def namespace_uid(self, identity: identities.Identity, namespace: str) -> str | None:
        """Return the uid of a namespace, or None if there is none."""

        async def look_up() -> single_flight.Answer[str]:
            uid = await discovery.namespace_uid(self._cluster, namespace)
            return single_flight.Answer(value=uid, seconds=NAMESPACE_SECONDS if uid else 0.0)

        principal = identity.principal
        caller = "anybody" if principal == "anybody" else principal.name
        async with self._lookups.unavailable_if_failed(f"the namespace {namespace}"):
            return await self._namespaces.get(namespace.encode(), look_up, caller=caller)

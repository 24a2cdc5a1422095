"""One subscription: who may have it, for as long as they may."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import HTTPConnection

from tarsy import errors
from tarsy.auth import permissions
from tarsy.live import changing, hubs, outbox, places, wire
from tarsy.serve import problems

ASKED_EVERY = (15.0, 25.0)
"""Seconds between two checks of a subscriber's rights: with the time that a positive answer is cached, a minute."""
UNKNOWN_SECONDS = 20.0
"""For so long it may be that this cannot be found out."""
AGAIN_SECONDS = 5.0
_UNKNOWN = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


class EndedError(Exception):
    """A subscription has ended; the message says why."""


class NobodyError(EndedError):
    """The subscriber's token, or its other identity, is unknown by now."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The subscription that a client asks for."""

    channel: wire.Channel
    namespace: str | None = None
    """The namespace of a list; None is the operator's own."""
    after: int | None = None
    """Where to go on; None is from the beginning of an investigation, and from now on in a list."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The subscription that a client may have."""

    listens: Callable[[outbox.Listener], AbstractAsyncContextManager[None]]
    holds: Callable[[], Awaitable[bool]]
    """Whether they still may; a Problem as when it was asked first."""


class Attending:
    """Lets those watch who may."""

    def __init__(self, *, hub: hubs.Hub, may: permissions.Access) -> None:
        self.hub = hub
        self.places = places.Places()
        self._may = may

    async def ask(self, connection: HTTPConnection, wanted: Wanted) -> Attended:
        """Return the permitted subscription.

        Raises a Problem if it is refused, impossible now, or resumes where nothing is yet.
        """
        try:
            if wanted.channel.investigation is None:
                return await self._list(connection, wanted)
            return await self._one(connection, wanted, wanted.channel.investigation)
        except (hubs.FutureError, changing.FutureError) as error:
            fault = problems.Fault(place="last_event_id", message=str(error))
            raise problems.invalid([fault]) from error
        except hubs.GoneError as error:
            raise problems.Problem(HTTPStatus.NOT_FOUND, str(error)) from error
        except errors.TemporaryError as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error

    async def _one(self, connection: HTTPConnection, wanted: Wanted, identity: str) -> Attended:
        target = await self._may.reads(connection, identity)
        after = wanted.after or 0
        await self.hub.check(target.id, after=after)

        async def holds() -> bool:
            return (await self._may.reads(connection, identity)).id == target.id

        return Attended(listens=lambda listener: self.hub.listens(target.id, listener, after=after), holds=holds)

    async def _list(self, connection: HTTPConnection, wanted: Wanted) -> Attended:
        scope = await self._may.lists(connection, wanted.namespace)
        namespace = changing.Namespace(name=scope.namespace, uid=scope.uid)
        await self.hub.lists.check(namespace, after=wanted.after)

        async def holds() -> bool:
            return (await self._may.lists(connection, wanted.namespace)).uid == scope.uid

        return Attended(
            listens=lambda listener: self.hub.lists.listens(namespace, listener, after=wanted.after), holds=holds
        )

    async def attend(self, attended: Attended, listener: outbox.Listener) -> None:
        """Have the listener told, until cancelled; an EndedError says why that ends before."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_watch(attended, listener))
                group.create_task(_guard(attended))
        except* (EndedError, errors.TemporaryError, hubs.FutureError, hubs.GoneError, changing.FutureError) as ended:
            first = _first(ended)
            kind = NobodyError if isinstance(first, NobodyError) else EndedError
            raise kind(str(first)) from ended


def _first(group: BaseExceptionGroup[Exception]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _watch(attended: Attended, listener: outbox.Listener) -> None:
    async with attended.listens(listener):
        raise EndedError(await listener.over)


async def _guard(attended: Attended) -> None:
    """Check the subscriber's rights at intervals.

    Raises EndedError if they are gone, or could not be checked for a while.
    """
    checked_at = time.monotonic()
    wait = random.uniform(*ASKED_EVERY)  # noqa: S311 - so that not all ask at once
    while True:
        await asyncio.sleep(wait)
        try:
            holds = await attended.holds()
        except problems.Problem as problem:
            if problem.status in _UNKNOWN and time.monotonic() - checked_at < ASKED_EVERY[1] + UNKNOWN_SECONDS:
                wait = AGAIN_SECONDS
                continue
            kind = NobodyError if problem.status is HTTPStatus.UNAUTHORIZED else EndedError
            raise kind(problem.detail) from problem
        if not holds:
            raise EndedError("it is another one by now: subscribe again")
        checked_at = time.monotonic()
        wait = random.uniform(*ASKED_EVERY)  # noqa: S311

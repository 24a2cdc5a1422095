"""Subscriptions: authorized when they begin, and checked again for as long as they last."""

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
from tarsy.live import backlogs, hubs, investigation_feed, live_events
from tarsy.serve import connections, limits, problems
from tarsy.telemetry import metrics

CONNECTIONS_MAX = connections.CONNECTIONS_MAX // 2
"""WebSockets and streams of a process: half of its connections, because each lasts for hours and needs only a token."""
CONNECTIONS_RETRY_SECONDS = 10
CHECKED_EVERY = (15.0, 25.0)
"""Seconds between two checks of a subscription, chosen at random from this range.

A positive answer is also cached, so a subscription ends within a minute after its right was taken away."""
UNCHECKED_SECONDS = 20.0
"""Seconds after a due check for which a subscription lasts while it cannot be checked."""
RETRY_SECONDS = 5.0
_CANNOT_CHECK = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


class EndedError(Exception):
    """A subscription has ended; the message says why."""


class UnauthenticatedError(EndedError):
    """The token or other identity of the subscription's caller is no longer known."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A client's request for a subscription."""

    channel: live_events.Channel
    namespaces: tuple[str, ...] = ()
    """The namespaces of a list; empty for all that are served and that the caller may list."""
    after: int | None = None
    """The cursor to resume after; None is the beginning of an investigation, and the present of a list."""


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """An authorized subscription."""

    feed: Callable[[backlogs.Subscriber], AbstractAsyncContextManager[None]]
    """Sends events to a subscriber inside the block."""
    check: Callable[[], Awaitable[None]]
    """Checks the caller's rights again; raises a Problem as `authorize` does, and EndedError if others apply now."""


class Subscriptions:
    """Authorizes subscriptions and feeds their subscribers."""

    def __init__(self, *, hub: hubs.Hub, may: permissions.Access) -> None:
        self.hub = hub
        self._may = may
        self._connections = 0

    def count_connection(self) -> None:
        """Count a connection until the current request ends. Raises a Problem if there are too many."""
        if self._connections >= CONNECTIONS_MAX:
            raise problems.Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{CONNECTIONS_MAX} live connections are open already: try again in {CONNECTIONS_RETRY_SECONDS} s",
                headers={"Retry-After": str(CONNECTIONS_RETRY_SECONDS)},
            )
        self._connections += 1
        metrics.LIVE_SUBSCRIBERS.add()

        def forget() -> None:
            self._connections -= 1
            metrics.LIVE_SUBSCRIBERS.add(amount=-1)

        limits.at_end_of_request(forget)

    async def authorize(self, connection: HTTPConnection, request: Request) -> Subscription:
        """Return the requested subscription.

        Raises a Problem if it is refused, cannot be checked now, or has a cursor that is ahead of the database.
        """
        try:
            if request.channel.investigation is None:
                return await self._to_list(connection, request)
            return await self._to_investigation(connection, request, request.channel.investigation)
        except live_events.FutureError as error:
            fault = problems.Fault(place="last_event_id", message=str(error))
            raise problems.invalid([fault]) from error
        except investigation_feed.GoneError as error:
            raise problems.Problem(HTTPStatus.NOT_FOUND, str(error)) from error
        except errors.TemporaryError as error:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error

    async def _to_investigation(self, connection: HTTPConnection, request: Request, identity: str) -> Subscription:
        target = await self._may.read(connection, identity)
        after = request.after or 0
        await self.hub.check_cursor(target.id, after=after)

        async def check() -> None:
            await self._may.read(connection, identity)

        return Subscription(feed=lambda subscriber: self.hub.subscribe(target.id, subscriber, after=after), check=check)

    async def _to_list(self, connection: HTTPConnection, request: Request) -> Subscription:
        namespaces = (await self._may.list_in(connection, list(request.namespaces))).namespaces
        await self.hub.lists.check_cursor(namespaces, after=request.after)

        async def check() -> None:
            present = await self._may.list_in(connection, list(request.namespaces))
            for name, message in present.unchecked.items():
                if name in namespaces:
                    raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message)
            if present.namespaces == namespaces:
                return
            if again := [name for name, uid in namespaces.items() if present.namespaces.get(name, uid) != uid]:
                raise EndedError(f"namespace {again[0]} was deleted and created again: subscribe again")
            raise EndedError("the namespaces that you may list are others now: subscribe again")

        return Subscription(
            feed=lambda subscriber: self.hub.lists.subscribe(namespaces, subscriber, after=request.after),
            check=check,
        )


async def follow(subscription: Subscription, subscriber: backlogs.Subscriber) -> None:
    """Feed the subscriber until cancelled. Raises EndedError if the subscription ends before."""

    async def feed() -> None:
        async with subscription.feed(subscriber):
            raise EndedError(await subscriber.ended)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            group.create_task(_check(subscription))
    except* (EndedError, errors.TemporaryError, live_events.FutureError, investigation_feed.GoneError) as ended:
        first: BaseException = ended
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        kind = UnauthenticatedError if isinstance(first, UnauthenticatedError) else EndedError
        raise kind(str(first)) from ended


async def _check(subscription: Subscription) -> None:
    """Check the subscription at intervals. Raises EndedError if it is refused, or cannot be checked for a while."""
    checked_at = time.monotonic()
    wait = random.uniform(*CHECKED_EVERY)  # noqa: S311 - so that not all checks come at once
    while True:
        await asyncio.sleep(wait)
        try:
            await subscription.check()
        except problems.Problem as problem:
            unchecked = time.monotonic() - checked_at
            if problem.status in _CANNOT_CHECK and unchecked < CHECKED_EVERY[1] + UNCHECKED_SECONDS:
                wait = RETRY_SECONDS
                continue
            kind = UnauthenticatedError if problem.status is HTTPStatus.UNAUTHORIZED else EndedError
            raise kind(problem.detail) from problem
        checked_at = time.monotonic()
        wait = random.uniform(*CHECKED_EVERY)  # noqa: S311

"""Live events as Server-Sent Events, for clients that only read: a browser's EventSource, curl.

Source: HTML standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from tarsy.auth import permissions
from tarsy.live import backlogs, live_events, subscriptions
from tarsy.serve import connections, limits, problems, strict

COMMENT_SECONDS = 15.0
"""Seconds without events after which a comment is sent, so that proxies do not take the connection for a dead one."""
_COMMENT = b":\n\n"
_BEGIN = b"retry: 2000\n\n"
_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would collect events before it sends them
}

_Cursor = Annotated[int | None, Query(ge=0, le=2**63 - 1)]
_LastEventID = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]


def routes(subscribing: subscriptions.Subscriptions, may: permissions.Access) -> APIRouter:
    """Return the routes for the events of an investigation, and of a list."""
    router = strict.router(prefix="/api/v1", tag="investigations")

    @router.get("/investigations/{identity}/events", include_in_schema=False)
    async def investigation(
        request: Request,
        target: permissions.Target = Depends(may.read),
        last_event_id: _Cursor = None,
        header: _LastEventID = None,
    ) -> Response:
        """Stream the live events of an investigation."""
        channel = live_events.Channel(str(target.id))
        requested = subscriptions.Request(channel=channel, after=_cursor(header, last_event_id))
        return await _stream(request, requested, subscribing)

    @router.get("/events", include_in_schema=False)
    async def events(
        request: Request,
        scope: permissions.Scope = Depends(may.list_in),
        last_event_id: _Cursor = None,
        header: _LastEventID = None,
    ) -> Response:
        """Stream the changes of the investigations of namespaces."""
        channel, after = live_events.Channel(None), _cursor(header, last_event_id)
        requested = subscriptions.Request(channel=channel, namespaces=scope.named, after=after)
        return await _stream(request, requested, subscribing)

    return router


def _cursor(header: str | None, parameter: int | None) -> int | None:
    """Return the cursor. The header wins: an EventSource that reconnects sends its first parameter again."""
    if not header:
        return parameter
    if not re.fullmatch("[0-9]{1,19}", header, re.ASCII) or int(header) >= 2**63:
        fault = problems.Fault(place="header.Last-Event-ID", message="no event has this id: ids are numbers")
        raise problems.invalid([fault])
    return int(header)


async def _stream(
    request: Request, requested: subscriptions.Request, subscribing: subscriptions.Subscriptions
) -> StreamingResponse:
    subscribing.count_connection()
    subscription = await subscribing.authorize(request, requested)
    backlog = backlogs.Backlog("event stream", subscribing.hub.memory)
    subscriber = backlogs.Subscriber(backlog, requested.channel)
    following = asyncio.create_task(_follow(subscription, subscriber, subscribing.hub.closing))
    # Not in the body's `finally`: if the client has gone, the body is not closed, but collected as garbage later.
    limits.at_end_of_request(following.cancel)
    limits.at_end_of_request(backlog.close)
    connections.limit_reading(request, backlogs.STALLED_SECONDS)
    return StreamingResponse(_body(backlog, following), media_type="text/event-stream", headers=_HEADERS)


async def _follow(
    subscription: subscriptions.Subscription, subscriber: backlogs.Subscriber, closing: asyncio.Event
) -> None:
    """Fill the backlog until the subscription ends, or the process stops."""
    backlog = subscriber.backlog

    async def drop_when_closing() -> None:
        await closing.wait()
        backlog.drop()

    dropping = asyncio.create_task(drop_when_closing())
    try:
        await subscriptions.follow(subscription, subscriber)
    except subscriptions.EndedError as ended:
        body = {"type": "subscription.ended", "channel": subscriber.channel.name, "reason": str(ended)}
        backlog.put(live_events.server_sent_event("subscription.ended", body))
    finally:
        dropping.cancel()
        backlog.end()


async def _body(backlog: backlogs.Backlog, following: asyncio.Task[None]) -> AsyncIterator[bytes]:
    yield _BEGIN
    while True:
        try:
            async with asyncio.timeout(COMMENT_SECONDS):
                event = await backlog.next()
        except TimeoutError:
            event = _COMMENT
        if event is None:
            break
        yield event
    if following.done():
        following.result()  # raises a defect

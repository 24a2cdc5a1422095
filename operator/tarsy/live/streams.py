"""The same as Server-Sent Events, for who has nothing to say: a browser's EventSource, curl.

Source: HTML standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, NoReturn

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from tarsy.auth import permissions
from tarsy.live import attending, outbox, wire
from tarsy.serve import answers, problems, strict

COMMENT_SECONDS = 15.0
"""Seconds between two signs of life without events, so that proxies do not take the connection for a dead one."""
_COMMENT = b":\n\n"
_BEGIN = b"retry: 2000\n\n"
_LAST = b""
"""The end of a stream."""
_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # or nginx keeps what it gets until it has more
}

_After = Annotated[int | None, Query(ge=0, le=2**63 - 1)]
_LastEventID = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]


class _EndError(Exception):
    """The stream is to end."""


def routes(attend: attending.Attending, may: permissions.Access) -> APIRouter:
    """The events of an investigation, and of a list."""
    router = strict.router(prefix="/api/v1", tag="investigations")

    @router.get("/investigations/{identity}/events", include_in_schema=False)
    async def investigation(
        request: Request,
        target: permissions.Known = Depends(may.reads),
        last_event_id: _After = None,
        header: _LastEventID = None,
    ) -> Response:
        """The live events of an investigation."""
        channel = wire.Channel(str(target.id))
        wanted = attending.Wanted(channel=channel, after=_after(header, last_event_id))
        attend.places.take()
        return Stream(attend, await attend.ask(request, wanted), channel)

    @router.get("/events", include_in_schema=False)
    async def events(
        request: Request,
        scope: permissions.Scope = Depends(may.lists),
        last_event_id: _After = None,
        header: _LastEventID = None,
    ) -> Response:
        """Which investigations of a namespace change, while they do."""
        channel = wire.Channel(None)
        wanted = attending.Wanted(channel=channel, namespace=scope.namespace, after=_after(header, last_event_id))
        attend.places.take()
        return Stream(attend, await attend.ask(request, wanted), channel)

    return router


def _after(header: str | None, parameter: int | None) -> int | None:
    """Where to go on: a client that comes again by itself says so by the header, and sends its first parameter too."""
    if not header:
        return parameter
    if not re.fullmatch("[0-9]{1,19}", header, re.ASCII) or int(header) >= 2**63:
        fault = problems.Fault(place="header.Last-Event-ID", message="not an id of ours: they are numbers")
        raise problems.invalid([fault])
    return int(header)


class Stream(Response):
    """An answer that goes on until its client goes, or has to."""

    media_type = "text/event-stream"

    def __init__(self, attend: attending.Attending, attended: attending.Attended, channel: wire.Channel) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._attend = attend
        self._attended = attended
        self._channel = channel
        self._outbox = outbox.Outbox(lambda message, channel: message.event(channel), attend.hub.held)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._outbox.put(_BEGIN)
        try:
            async with asyncio.TaskGroup() as group:
                for part in (_gone(receive), self._write(send), self._tell(), self._mind(), self._closing()):
                    group.create_task(part)
        except* _EndError:
            self._outbox.drop()
            # A client that does not read has as little time as for any answer (`connections.READ_SECONDS`).
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._outbox.close()

    async def _tell(self) -> None:
        listener = outbox.Listener(self._outbox, self._channel)
        try:
            await self._attend.attend(self._attended, listener)
        except attending.EndedError as ended:
            body = {"type": "subscription.ended", "channel": self._channel.name, "reason": str(ended)}
            self._outbox.put(wire.event("subscription.ended", body), _LAST)

    async def _write(self, send: Send) -> NoReturn:
        while True:
            try:
                async with asyncio.timeout(COMMENT_SECONDS):
                    frame = await self._outbox.next()
            except TimeoutError:
                frame = _COMMENT
            if frame == _LAST:
                raise _EndError
            try:
                for start in range(0, len(frame), answers.PIECE):
                    async with asyncio.timeout(outbox.PROGRESS_SECONDS):
                        piece = frame[start : start + answers.PIECE]
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                raise _EndError from None

    async def _mind(self) -> NoReturn:
        await self._outbox.overflown.wait()
        raise _EndError

    async def _closing(self) -> NoReturn:
        await self._attend.hub.closing.wait()
        raise _EndError


async def _gone(receive: Receive) -> NoReturn:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _EndError

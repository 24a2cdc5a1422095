"""Answers on their way: limits for their number and their memory, sent piece by piece.

A transcript's page, or a model call as it was sent, is megabytes, and its client may read slowly. So it is written
piece by piece, each after the one before has gone (`in_pieces`; `connections` cuts off a client that does not read).
Until then it is held, and counted. If too much is held, a request is refused before anything is read for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import Response
from pydantic import BaseModel

from tarsy.serve import problems

PIECE = 64 * 1024
"""Bytes that are written at once; the next ones when nothing is left of them here."""
HELD_MAX = 128 * 1024 * 1024
"""Bytes of all answers that have been made and not yet gone: a quarter of a pod of 512 MiB."""
MADE_MAX = 8
"""Answers that are made at once: what they are made of is there several times meanwhile."""
TURN_SECONDS = 10.0
"""For so long an answer waits until it is made."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Send], Awaitable[None]]
"""An ASGI application."""


class Room:
    """The room for answers that a process has."""

    def __init__(self) -> None:
        self.held = 0
        """Bytes of answers that have not yet gone."""
        self._turns = asyncio.Semaphore(MADE_MAX)

    async def answer(self, find: Callable[[], Awaitable[BaseModel]]) -> Response:
        """The response with what `find` brings; a Problem where there is no room for it, or it takes long.

        It is written in a thread: megabytes of it would hold the loop.
        """
        holding = _Holding(self)
        async with self._turn():
            holding.add(0)
            content = await find()
            body = await asyncio.to_thread(lambda: content.model_dump_json().encode())
            holding.add(len(body))
        return Response(body, media_type="application/json")

    def hold(self, size: int) -> None:
        """Hold so many bytes until the request under way is answered; a Problem where there is no room for them."""
        _Holding(self).add(size)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Be one of those that are made."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            raise _later("too many answers are being made; ask again") from error
        try:
            yield
        finally:
            self._turns.release()


class _Holding:
    """The bytes held for one request, until it has been answered."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0
        answering = asyncio.current_task()
        assert answering  # noqa: S101 - each request has a task of its own
        answering.add_done_callback(self._give_back)

    def add(self, size: int) -> None:
        """Hold so many bytes more."""
        held = self._room.held
        if held and held + max(size, 1) > HELD_MAX:  # an answer that is alone may be larger
            raise _later(f"{HELD_MAX} bytes of answers wait to be read already; read those, and ask again")
        self._size += size
        self._room.held += size

    def _give_back(self, _answered: asyncio.Task[object]) -> None:
        self._room.held -= self._size


def _later(detail: str) -> problems.Problem:
    return problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": "1"})


def in_pieces(application: Application) -> Application:
    """The application, with what it sends cut so that each piece waits until the one before has gone."""

    async def cut(scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        async def send_cut(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= PIECE:
                await send(message)
                return
            for start in range(0, len(body), PIECE):
                more = message.get("more_body", False) or start + PIECE < len(body)
                await send({**message, "body": bytes(body[start : start + PIECE]), "more_body": more})

        await application(scope, receive, send_cut)

    return cut

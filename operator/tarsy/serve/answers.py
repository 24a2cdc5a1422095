"""Answers: limited in number and memory, and sent piece by piece.

A page of a transcript, or the request of a model call, has megabytes, and its client may read slowly. So an answer is
sent in pieces, each after the one before has left the process (`in_pieces`; `connections` aborts a client that does not
read). The rest is held in memory. If too much is held, a request is refused before anything is read for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Response
from pydantic import BaseModel

from tarsy.serve import limits

PIECE = 64 * 1024
"""Bytes that are written at once; the next ones follow when these have left the process."""
HELD_MAX = 128 * 1024 * 1024
"""Bytes of all finished answers that are still held: a quarter of a pod of 512 MiB."""
MADE_MAX = 8
"""Answers that are made at once: while an answer is made, its content is in memory several times."""
WAIT_SECONDS = 10.0
"""Seconds that a request waits until its answer can be made."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Send], Awaitable[None]]
"""An ASGI application."""


class Responder:
    """Makes the large answers of an application."""

    def __init__(self) -> None:
        self._held = limits.HeldBytes()
        self._making = limits.Gate(MADE_MAX)

    @property
    def held(self) -> int:
        """The bytes of answers that are still held."""
        return self._held.held

    async def respond(self, read: Callable[[], Awaitable[BaseModel]]) -> Response:
        """Return a response with the model that `read` returns. Raises a Problem (503) if too much is made or held.

        JSON is written in a thread: megabytes of it would hold the loop.
        """
        async with self._making.slot(seconds=WAIT_SECONDS, refusal="too many answers are being made; try again"):
            self.hold(0)
            content = await read()
            body = await asyncio.to_thread(lambda: content.model_dump_json().encode())
            self.hold(len(body))
        return Response(body, media_type="application/json")

    def hold(self, size: int) -> None:
        """Hold so many bytes until the current request ends. Raises a Problem (503) if there are too many.

        If nothing else is held, a single answer may be larger than the limit.
        """
        refusal = f"clients have {HELD_MAX} bytes of answers to read already; try again later"
        self._held.hold(size, limit=HELD_MAX if self.held else max(HELD_MAX, size), refusal=refusal)


def in_pieces(application: Application) -> Application:
    """Return the application with its bodies cut into pieces; each waits until the one before has left the process."""

    async def send_pieces(
        scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        async def send_message(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= PIECE:
                await send(message)
                return
            for start in range(0, len(body), PIECE):
                more = message.get("more_body", False) or start + PIECE < len(body)
                await send({**message, "body": bytes(body[start : start + PIECE]), "more_body": more})

        await application(scope, receive, send_message)

    return send_pieces

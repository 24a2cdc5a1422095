"""The bodies of requests: bounded while they are read, and worked on beside the loop where they are large."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent import futures
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

from fastapi import Request
from starlette import requests

from tarsy.serve import problems

DONE_AT_ONCE = 4 * 1024
"""Bytes of a request that is read and masked on the loop: a hostile one takes 50 ms."""

LARGE = 256 * 1024
"""Bytes of a request from which on those take turns: threads at work keep the loop waiting, each for its own turn."""
HELD_MAX = 64 * 1024 * 1024
"""The bytes of all bodies that a process holds at once: one caller may send many, slowly."""

T = TypeVar("T")


class _Held:
    """The held part of one request's body, until the request has been answered."""

    by_all: ClassVar[int] = 0
    """Bytes, of all requests."""

    def __init__(self) -> None:
        self._size = 0
        answering = asyncio.current_task()
        assert answering  # noqa: S101 - each request has a task of its own
        answering.add_done_callback(self._give_back)

    def add(self, size: int) -> None:
        """Hold so many bytes more; a 503 where there is no room for them."""
        if _Held.by_all + size > HELD_MAX:
            message = f"bodies of {HELD_MAX} bytes are on their way already; send it again"
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, headers={"Retry-After": "1"})
        self._size += size
        _Held.by_all += size

    def _give_back(self, _answered: asyncio.Task[object]) -> None:
        _Held.by_all -= self._size


async def read(request: Request, *, limit: int, message: str = "") -> bytes:
    """The body; a 413 with `message` where it is over `limit` bytes, a 503 where too many are read at once."""
    body, held = bytearray(), _Held()
    try:
        async for chunk in request.stream():
            held.add(len(chunk))
            body += chunk
            if len(body) > limit:
                raise problems.Problem(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message or f"the body is over {limit} bytes"
                )
    except requests.ClientDisconnect as error:  # no client hears it, and it is no defect
        raise problems.Problem(HTTPStatus.BAD_REQUEST, "the connection was closed before the body was there") from error
    return bytes(body)


async def aside(do: Callable[..., T], *given: Any, size: int, **named: Any) -> T:
    """Do, in a thread, what takes longer than the way there and back; `size` is that of its request, in bytes."""
    if size <= DONE_AT_ONCE:
        return do(*given, **named)
    if size <= LARGE:
        return await asyncio.to_thread(do, *given, **named)
    return await asyncio.get_running_loop().run_in_executor(_ONE_BY_ONE, functools.partial(do, *given, **named))


_ONE_BY_ONE = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")

"""The bodies of requests: limited while they are read, and processed in threads if they are large."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent import futures
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request

from tarsy.serve import limits, problems

ON_LOOP_MAX = 4 * 1024
"""Bytes of a body that is processed on the loop: a hostile one takes 50 ms."""
SIDE_BY_SIDE_MAX = 256 * 1024
"""Bytes of a body that is processed beside others. Larger ones go one by one: each thread at work delays the loop."""
HELD_MAX = 64 * 1024 * 1024
"""Bytes of all bodies that a process holds at once, because one caller may send many slowly."""

T = TypeVar("T")
_ONE_BY_ONE = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")


class Bodies:
    """The bodies that an application holds until their requests are answered."""

    def __init__(self) -> None:
        self._held = limits.HeldBytes()

    async def read(self, request: Request, *, limit: int, message: str = "") -> bytes:
        """Return the body. Raises a Problem: 413 with `message` over `limit` bytes, 503 if too many are held."""
        body = bytearray()
        async for chunk in request.stream():
            refusal = f"request bodies of {HELD_MAX} bytes are held already; send it again later"
            self._held.hold(len(chunk), limit=HELD_MAX, refusal=refusal)
            body += chunk
            if len(body) > limit:
                message = message or f"the body is over {limit} bytes"
                raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        return bytes(body)


async def process(do: Callable[..., T], *arguments: Any, size: int, **named: Any) -> T:
    """Call `do` for a body of `size` bytes, in a thread if the body is large."""
    if size <= ON_LOOP_MAX:
        return do(*arguments, **named)
    if size <= SIDE_BY_SIDE_MAX:
        return await asyncio.to_thread(do, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_ONE_BY_ONE, functools.partial(do, *arguments, **named))

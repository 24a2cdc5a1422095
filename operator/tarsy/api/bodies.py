"""The bodies of requests: bounded while they are read, and worked on beside the loop where they are large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request
from starlette import requests

from tarsy.api import problems

DONE_AT_ONCE = 4 * 1024
"""Bytes of a request that is read and masked on the loop: a hostile one takes 50 ms."""

T = TypeVar("T")


async def read(request: Request, *, limit: int, message: str = "") -> bytes:
    """The body; a 413 with `message` where it is over `limit` bytes."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise problems.Problem(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message or f"the body is over {limit} bytes"
                )
    except requests.ClientDisconnect as error:  # nobody hears it, and it is no defect
        raise problems.Problem(HTTPStatus.BAD_REQUEST, "the connection was closed before the body was there") from error
    return bytes(body)


async def aside(do: Callable[..., T], *given: Any, size: int, **named: Any) -> T:
    """Do, in a thread, what takes longer than the way there and back; `size` is that of its request, in bytes."""
    return do(*given, **named) if size <= DONE_AT_ONCE else await asyncio.to_thread(do, *given, **named)

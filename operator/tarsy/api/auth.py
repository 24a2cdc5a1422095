"""Who may call: whoever holds the webhook token, or anybody on loopback with `--insecure-dev`."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from fastapi import Request

from tarsy.api import problems


def bearer(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets pass who gives `token`, compared in constant time; None lets everybody pass.

    Source: RFC 6750, "Bearer Token Usage".
    """

    async def check(request: Request) -> None:
        if token is None:
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), token.encode()):
            message = "give the token as `Authorization: Bearer <token>`"
            raise problems.Problem(HTTPStatus.UNAUTHORIZED, message, headers={"WWW-Authenticate": "Bearer"})

    return check

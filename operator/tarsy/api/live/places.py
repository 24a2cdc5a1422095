"""The limit of subscribers: half of a process's connections, so that other requests find a place.

A subscriber keeps a connection for hours, and needs no more than a token for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from http import HTTPStatus

from tarsy.api import access, problems, protocol, rates

ALL_MAX = protocol.CONNECTIONS_MAX // 2
"""WebSockets and streams of a process."""
OWN_MAX = ALL_MAX * 3 // 4
"""The limit for one caller (name and address)."""
AGAIN_SECONDS = 10


class Places:
    """The places of a process."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        """By callers."""

    def take(self, caller: access.Caller) -> None:
        """Take one for as long as the request under way; a Problem where none is left."""
        key = f"{caller.author} {rates.place(caller.address)}"
        if self.taken.total() >= ALL_MAX:
            raise _full(HTTPStatus.SERVICE_UNAVAILABLE, f"{ALL_MAX} connections watch here already")
        if self.taken[key] >= OWN_MAX:
            raise _full(HTTPStatus.TOO_MANY_REQUESTS, f"{OWN_MAX} connections of yours watch here already")
        self.taken[key] += 1

        def give_back(_: asyncio.Task[object]) -> None:
            self.taken[key] -= 1
            if not self.taken[key]:
                del self.taken[key]

        watching = asyncio.current_task()
        assert watching  # noqa: S101 - each request has a task of its own
        watching.add_done_callback(give_back)


def _full(status: HTTPStatus, detail: str) -> problems.Problem:
    message = f"{detail}: come again in {AGAIN_SECONDS} s"
    return problems.Problem(status, message, headers={"Retry-After": str(AGAIN_SECONDS)})

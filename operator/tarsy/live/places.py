"""The limit of subscribers: half of a process's connections, so that other requests find a place.

A subscriber keeps a connection for hours, and needs no more than a token for it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from tarsy.serve import connections, problems

ALL_MAX = connections.CONNECTIONS_MAX // 2
"""WebSockets and streams of a process."""
AGAIN_SECONDS = 10


class Places:
    """The places of a process."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> None:
        """Take one for as long as the request under way; a Problem where none is left."""
        if self.taken >= ALL_MAX:
            raise problems.Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{ALL_MAX} connections watch here already: come again in {AGAIN_SECONDS} s",
                headers={"Retry-After": str(AGAIN_SECONDS)},
            )
        self.taken += 1

        watching = asyncio.current_task()
        assert watching  # noqa: S101 - each request has a task of its own
        watching.add_done_callback(self._give_back)

    def _give_back(self, _: asyncio.Task[object]) -> None:
        self.taken -= 1

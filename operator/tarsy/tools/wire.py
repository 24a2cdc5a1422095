"""What a connection of ours to an MCP server is to `mcp.Client`, where the SDK's own does not do."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

import mcp
from anyio.streams import memory
from mcp.shared import message

Received: TypeAlias = message.SessionMessage | Exception
Streams: TypeAlias = tuple[
    memory.MemoryObjectReceiveStream[Received], memory.MemoryObjectSendStream[message.SessionMessage]
]


class Wire(ABC):
    """A transport for `mcp.Client`, which says when it has ended, and why."""

    def __init__(self, *, ended: Callable[[], None]) -> None:
        """`ended` is called once nothing more comes from the server."""
        self.problem = ""
        """Why the connection ended, where the server did not close it; known at its end at the latest."""
        self.ended = ended
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Streams:
        """Connect."""
        return await self._opened.enter_async_context(self._open())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """End the connection, and what was started for it."""
        return await self._opened.__aexit__(kind, error, trace)

    @abstractmethod
    def _open(self) -> contextlib.AbstractAsyncContextManager[Streams]:
        """The connection, while it is entered."""


def why_closed(client: mcp.Client) -> str:
    """Why the connection of `client` ended, where the server did not close it, and that is known; else ""."""
    return client.server.problem if isinstance(client.server, Wire) else ""

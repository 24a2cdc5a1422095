"""Configuration versions: the one in force, the one that is prepared, and those that executions still use.

An execution keeps the runtime that it began with. A client or a server is closed once no living version has it; no
other count of users exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tarsy.transcript import ports


class Client(Protocol):
    """A client of a provider, or the connection to an MCP server."""

    async def close(self) -> None:
        """Close the client or connection."""
        ...


@dataclass(eq=False)
class Version:
    """One configuration version."""

    clients: list[Client]
    runtime: ports.Runtime = field(init=False)
    """Set once the version is in force."""
    users: int = 1
    """The number of executions that use it, and one more while it is prepared or in force."""

    def has(self, client: Client) -> bool:
        """Whether `client` belongs to this version."""
        return any(own is client for own in self.clients)


class Versions:
    """The living configuration versions of a process."""

    def __init__(self, runtime: ports.Runtime, clients: Iterable[Client]) -> None:
        """`runtime`, which is made of `clients`, is in force."""
        self._living: list[Version] = []
        self._unused: asyncio.Queue[Version] = asyncio.Queue()
        self._in_force = self.prepared(clients)
        self._in_force.runtime = runtime

    def prepared(self, clients: Iterable[Client]) -> Version:
        """Return a version to be put in force or released; until then none of its clients is closed."""
        version = Version(list(clients))
        self._living.append(version)
        return version

    @contextmanager
    def held(self) -> Iterator[ports.Runtime]:
        """Hold the runtime that is in force until the block ends."""
        version = self._in_force
        version.users += 1
        try:
            yield version.runtime
        finally:
            self.release(version)

    def exchange(self, version: Version, runtime: ports.Runtime) -> None:
        """Put a prepared version in force."""
        version.runtime = runtime
        former, self._in_force = self._in_force, version
        self.release(former)

    def release(self, version: Version) -> None:
        """Remove one user of a version."""
        version.users -= 1
        if not version.users:
            self._unused.put_nowait(version)

    async def run(self) -> None:
        """End versions without users, until cancelled."""
        while True:
            await self._end(await self._unused.get())

    async def close(self) -> None:
        """End all versions, after all executions have ended."""
        while self._living:
            await self._end(self._living[-1])

    async def _end(self, version: Version) -> None:
        self._living.remove(version)
        for client in version.clients:
            if not any(living.has(client) for living in self._living):
                await client.close()

"""The heartbeat: renews all leases of a process, over a connection of its own.

It runs in the lease thread, on another event loop than the database's pools.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from uuid import UUID

import asyncpg

from tarsy.store.base import databases
from tarsy.store.queue import work

_BEAT = """
  UPDATE work SET lease_until = clock_timestamp() + $2
  WHERE token = ANY($1) AND state <> 'ended'
  RETURNING token, coalesce(cancel, CASE WHEN suspend THEN 'suspend' END) AS request
"""


class Heartbeat:
    """Renews the claims of one process."""

    def __init__(self, url: str, *, lease: timedelta) -> None:
        self._url = url
        self._lease = lease
        self._connection: asyncpg.Connection | None = None

    async def beat(self, tokens: Collection[UUID]) -> Mapping[UUID, work.StopRequest | None]:
        """Renew these claims; return those that are still held, by token, each with the request to stop, if any.

        Raises StoreDownError if it is unknown which claims are held.
        """
        timeout = self._lease.total_seconds() / 2
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await databases.connect(self._url, timeout=timeout, command_timeout=timeout)
            rows = await self._connection.fetch(_BEAT, list(tokens), self._lease)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            await self.close()
            raise databases.StoreDownError(f"no heartbeat: {str(error) or type(error).__name__}") from error
        return {row["token"]: row["request"] for row in rows}

    async def close(self) -> None:
        """Close the connection; the next beat opens another one."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

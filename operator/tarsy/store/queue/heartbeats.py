"""The heartbeat: renews all leases of a process, over a connection of its own.

It runs in the lease thread, on another event loop than the database's pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

import asyncpg

from tarsy.store.base import databases
from tarsy.store.queue import work

_BEAT = """
  WITH held AS (
    SELECT investigation FROM work
    WHERE investigation = ANY($3) AND token = ANY($1) AND nullif(state, 'ended') IS NOT NULL
    ORDER BY investigation FOR NO KEY UPDATE
  )
  UPDATE work SET lease_until = clock_timestamp() + $2 FROM held WHERE work.investigation = held.investigation
  RETURNING token, coalesce(cancel, CASE WHEN suspend THEN 'suspend' END) AS request
"""
# Locked in the order of their ids, as by all that lock several rows (`work`). By ids, and by a function: otherwise a
# plan may read the index of all open runs, which is long in a storm.


class Heartbeat:
    """Renews the claims of one process."""

    def __init__(self, url: str, *, lease: timedelta) -> None:
        self._url = url
        self._lease = lease
        self._connection: asyncpg.Connection | None = None

    async def beat(self, tokens: Mapping[UUID, UUID]) -> Mapping[UUID, work.StopRequest | None]:
        """Renew the claims with these tokens, by investigation.

        Return those that are still held, by token, each with the request to stop, if any. Raises StoreDownError if it
        is unknown which claims are held.
        """
        timeout = self._lease.total_seconds() / 2
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await databases.connect(self._url, timeout=timeout, command_timeout=timeout)
            rows = await self._connection.fetch(_BEAT, list(tokens.values()), self._lease, list(tokens))
        except (OSError, TimeoutError, asyncpg.PostgresError, *databases.BROKEN) as error:
            await self.close()
            raise databases.StoreDownError(f"no heartbeat: {str(error) or type(error).__name__}") from error
        return {row["token"]: row["request"] for row in rows}

    async def close(self) -> None:
        """Close the connection; the next beat opens another one."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

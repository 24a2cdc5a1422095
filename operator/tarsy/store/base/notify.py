"""LISTEN and NOTIFY: hints that there is work. Every part that listens for hints polls as well.

A hint is sent after its transaction, in a statement of its own: NOTIFY inside a transaction takes a lock that all
committing transactions share. If the process dies before it sends the hint, the work is delayed by one poll interval.

NOTIFY is a transaction that writes, and it wakes every replica. So the callbacks of the sending process are called
directly (`hints.Channels`). If they take the work, no NOTIFY is sent.
"""

from __future__ import annotations

import asyncio
import logging

import asyncpg
from sqlalchemy import text

from tarsy.store.base import databases, hints

WORK = "tarsy_work"
"""An investigation can be claimed."""
CANCEL = "tarsy_cancel"
"""A running investigation is to be stopped; the payload is its id."""
STATUS = "tarsy_status"
"""A status is out of date; the payload is the investigation's id."""

RECONNECT_SECONDS = 1.0

log = logging.getLogger(__name__)


_SEND = text("""
  SELECT pg_notify(channel, payload) FROM unnest(CAST(:channels AS text[]), CAST(:payloads AS text[]))
    AS hints (channel, payload)
""")

Hint = tuple[str, str]
"""A channel and a payload."""


async def send(database: databases.Database, *hints: Hint) -> None:
    """Deliver `hints` in this process, and send those that it does not take to the others.

    While the database is unavailable, the hints are lost; the caller's work is committed already.
    """
    remaining = [hint for hint in hints if database.channels is None or not database.channels.deliver(*hint)]
    try:
        await post(database, *remaining)
    except databases.StoreDownError as error:
        names = ", ".join(channel for channel, _ in remaining)
        log.warning("a hint was lost: %s", error, extra={"action": "notify_lost", "channel": names})


async def post(database: databases.Database, *hints: Hint) -> None:
    """Send `hints` to all processes that listen, in one transaction. After a StoreDownError they may be lost."""
    if hints:
        names, payloads = map(list, zip(*hints, strict=True))
        await database.run(_SEND, channels=names, payloads=payloads)


class Listener:
    """Delivers the hints of all processes, on the loop that runs it; reconnects for as long as it runs."""

    def __init__(self, url: str, channels: hints.Channels) -> None:
        self._url = url
        self._channels = channels

    async def run(self) -> None:
        """Listen until cancelled.

        After each connect every callback gets the payload "": hints may have been missed.
        """
        while True:
            try:
                await self._listen()
            except (databases.StoreDownError, OSError, asyncpg.PostgresError, *databases.BROKEN) as error:
                log.warning("not listening: %s", error, extra={"action": "listen_lost"})
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        connection = await databases.connect(self._url)
        try:
            closed = asyncio.Event()
            connection.add_termination_listener(lambda _: closed.set())
            for channel in self._channels:
                await connection.add_listener(
                    channel, lambda _connection, _pid, *message: self._channels.deliver(*message)
                )
                self._channels.deliver(channel, "")
            await closed.wait()
        finally:
            connection.terminate()

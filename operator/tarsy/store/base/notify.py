"""LISTEN and NOTIFY: a hint that there is something to do. Every receiver of hints polls as well.

Hints go out after their transaction, as a statement of their own: NOTIFY inside it would take a lock that all
committing transactions share. A hint that is lost with its process costs a poll interval, no more.

NOTIFY is a transaction that writes, and wakes every replica. A receiver in this process is called directly
(`Database.hinted`), and other processes hear nothing if it takes the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import asyncpg
from sqlalchemy import text

from tarsy.store.base import databases

WORK = "tarsy_work"
"""Something can be claimed."""
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
"""A channel, and what is said there."""


async def send(database: databases.Database, *hints: Hint) -> None:
    """Give `hints`. A database that is down costs the hints, not the caller: what they tell of is committed."""
    others = [hint for hint in hints if not _taken_on(database, *hint)]
    try:
        await post(database, *others)
    except databases.StoreDownError as error:
        channels = ", ".join(channel for channel, _ in others)
        log.warning("a hint was lost: %s", error, extra={"action": "notify_lost", "channel": channels})


async def post(database: databases.Database, *hints: Hint) -> None:
    """Give `hints` to all who listen, in one transaction; a StoreDownError says that they may be lost."""
    if hints:
        channels, payloads = map(list, zip(*hints, strict=True))
        await database.run(_SEND, channels=channels, payloads=payloads)


def both(first: Callable[[str], bool], other: Callable[[str], bool]) -> Callable[[str], bool]:
    """Both are told of a hint, and it is taken on where both take it on."""
    return lambda payload: first(payload) & other(payload)


def _taken_on(database: databases.Database, channel: str, payload: str) -> bool:
    here = database.hinted.get(channel)
    return here is not None and here(payload)


class Listener:
    """Calls back for every hint, on the loop that runs it; reconnects for as long as it runs."""

    def __init__(self, url: str, callbacks: Mapping[str, Callable[[str], object]]) -> None:
        """Listen at `url` on the channels that `callbacks` names; they are given the payload."""
        self._url = url
        self._callbacks = callbacks

    async def run(self) -> None:
        """Listen until cancelled. After a (re)connect every callback is called with "": hints may have been missed."""
        while True:
            try:
                await self._listen()
            except (databases.StoreDownError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("not listening: %s", error, extra={"action": "listen_lost"})
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        connection = await databases.connect(self._url)
        try:
            closed = asyncio.Event()
            connection.add_termination_listener(lambda _: closed.set())
            for channel, callback in self._callbacks.items():
                await connection.add_listener(channel, lambda *given, callback=callback: callback(given[3]))
                callback("")
            await closed.wait()
        finally:
            connection.terminate()

"""Hints over LISTEN and NOTIFY, and over the restart of their server."""

from __future__ import annotations

from support.notifications import hear, listening
from tarsy.store.base import databases, hints, notify


async def test_a_hint_reaches_the_callback_of_its_channel(database_url: str) -> None:
    database = databases.Database(database_url)
    async with listening(database_url) as heard:
        assert await hear(heard, 2) == [notify.WORK, notify.STATUS]
        await notify.send(database, (notify.STATUS, "an investigation's id"))
        await notify.send(database, ("somebody else's", ""))
        await notify.send(database, (notify.WORK, ""))
        assert await hear(heard, 2) == [notify.STATUS, notify.WORK]
    await database.close()


async def test_callback_of_sending_process_is_called_directly_and_takes_or_passes_on_the_hint(
    database_url: str,
) -> None:
    channels = hints.Channels()
    database = databases.Database(database_url, channels=channels)
    delivered: list[str] = []

    def take(payload: str) -> bool:
        delivered.append(payload)
        return payload == "mine"

    async with listening(database_url) as heard:
        await hear(heard, 2)
        channels.listen({notify.STATUS: take})
        await notify.send(database, (notify.STATUS, "mine"))
        await notify.send(database, (notify.WORK, ""))
        await notify.send(database, (notify.STATUS, "another's"))
        assert await hear(heard, 2) == [notify.WORK, notify.STATUS]
    assert delivered == ["mine", "another's"]
    await database.close()

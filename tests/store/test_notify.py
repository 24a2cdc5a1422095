"""Hints over LISTEN and NOTIFY, and over the restart of their server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tarsy.store.base import databases, hints, notify
from tarsy_dev import patience
from tarsy_dev import postgres as launcher


def put(heard: asyncio.Queue[str], channel: str, _payload: str) -> None:
    heard.put_nowait(channel)


@contextlib.asynccontextmanager
async def listening(url: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The channels that a listener was called back for, in order; its start is one call each."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    callbacks: dict[str, Callable[[str], None]] = {
        channel: functools.partial(put, heard, channel) for channel in (notify.WORK, notify.STATUS)
    }
    task = asyncio.create_task(notify.Listener(url, hints.Channels(callbacks)).run())
    try:
        yield heard
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def hear(heard: asyncio.Queue[str], count: int) -> list[str]:
    async with patience.limit():
        return [await heard.get() for _ in range(count)]


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


@pytest.mark.parametrize(("takes", "hears"), [((True, True), False), ((True, False), True), ((False, True), True)])
async def test_hint_stays_in_the_process_only_if_both_of_its_callbacks_take_it(
    database_url: str, takes: tuple[bool, bool], hears: bool
) -> None:
    channels = hints.Channels()
    database = databases.Database(database_url, channels=channels)
    delivered: list[int] = []

    def take(place: int, _: str) -> bool:
        delivered.append(place)
        return takes[place]

    async with listening(database_url) as heard:
        await hear(heard, 2)
        for place in range(2):
            channels.listen({notify.STATUS: functools.partial(take, place)})
        await notify.send(database, (notify.STATUS, "an id"))
        await notify.send(database, (notify.WORK, ""))
        assert await hear(heard, 1 + hears) == [*([notify.STATUS] if hears else []), notify.WORK]
    assert delivered == [0, 1]
    await database.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_after_the_servers_restart_everybody_is_called_once_and_hints_arrive_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_SECONDS", 0.1)
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        database = databases.Database(server.url())
        async with listening(server.url()) as heard:
            await hear(heard, 2)
            await notify.send(database, (notify.WORK, ""))
            assert await hear(heard, 1) == [notify.WORK]
            await asyncio.to_thread(getattr(server, end))
            await notify.send(database, (notify.WORK, ""))  # is lost, and harms nobody
            await asyncio.to_thread(server.start)
            assert await hear(heard, 2) == [notify.WORK, notify.STATUS]
            await notify.send(database, (notify.STATUS, ""))
            assert await hear(heard, 1) == [notify.STATUS]
            assert heard.empty()
        await database.close()


@pytest.mark.slow
async def test_listener_that_starts_before_its_server_listens_once_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_SECONDS", 0.1)
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        await asyncio.to_thread(server.stop)
        async with listening(server.url()) as heard:
            await asyncio.to_thread(server.start)
            assert await hear(heard, 2) == [notify.WORK, notify.STATUS]

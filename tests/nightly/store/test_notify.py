"""Hints over LISTEN and NOTIFY, and over the restart of their server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.notifications import hear, listening
from tarsy.store.base import databases, notify
from tarsy_dev import postgres as launcher


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_listeners_are_called_once_after_the_servers_restart_and_hints_arrive_again(
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
            await notify.send(database, (notify.WORK, ""))  # is lost, and harms no listener
            await asyncio.to_thread(server.start)
            assert await hear(heard, 2) == [notify.WORK, notify.STATUS]
            await notify.send(database, (notify.STATUS, ""))
            assert await hear(heard, 1) == [notify.STATUS]
            assert heard.empty()
        await database.close()

"""Listeners for NOTIFY and what they heard."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable

import pytest
from tarsy.store.base import hints, notify
from tarsy_dev import patience


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

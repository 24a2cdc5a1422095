"""How the lease thread ends; what takes its time is nightly."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from tarsy.store.base import databases
from tarsy.worker import leases
from tarsy_dev import patience

HOUR = timedelta(hours=1)


async def test_a_stop_that_falls_between_two_heartbeats_waits_for_none(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is about to wait for the next hint when its manager is told to end."""
    lease_manager = leases.LeaseManager(database.url, lease=2 * HOUR, heartbeat=HOUR)
    is_at_it, goes_on = threading.Event(), threading.Event()

    class Late(threading.Event):
        """An event that is set just before it is cleared."""

        def clear(self) -> None:
            is_at_it.set()
            goes_on.wait()
            super().clear()

    monkeypatch.setattr(lease_manager, "_beat_now", Late())
    running = asyncio.create_task(lease_manager.run())
    await asyncio.to_thread(is_at_it.wait)
    running.cancel()
    await asyncio.sleep(0)
    assert lease_manager._stopping
    goes_on.set()
    async with patience.limit():
        with pytest.raises(asyncio.CancelledError):
            await running

"""When a run may send a call, by its lease, and how the lease thread ends; time is left to `nightly`."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from datetime import timedelta

import pytest
from support import queue
from tarsy.store.base import databases
from tarsy.transcript import ports
from tarsy.worker import leases
from tarsy_dev import patience

HOUR = timedelta(hours=1)


async def test_no_call_is_sent_in_doubt_until_the_lease_is_renewed_and_none_once_it_is_lost(
    database: databases.Database,
) -> None:
    await queue.admit(database)
    lease = leases.Lease(await queue.claimed(database), certain_until=time.monotonic())
    sending = asyncio.create_task(lease.ensure_lease())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sending.done()
    lease.renew(math.inf)
    await sending
    lease.renew(time.monotonic())
    sending = asyncio.create_task(lease.ensure_lease())
    await asyncio.sleep(0)
    lease.stop("lost")
    with pytest.raises(ports.LeaseLostError):
        await sending


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

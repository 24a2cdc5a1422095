"""Claims investigations while there are free slots: after each hint, and every two seconds.

A claim skips investigations that this worker cannot run (`eligibility`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from uuid import UUID

from tarsy.config.model import platforms
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.worker import eligibility, leases, run

POLL_SECONDS = 2.0
BUSY_SECONDS = 0.05
"""The wait before the next claim if the rows of queued investigations were locked."""

log = logging.getLogger(__name__)


class Claimer:
    """The worker role of one process."""

    def __init__(
        self,
        supervisor: run.Supervisor,
        *,
        database: databases.Database,
        lease_manager: leases.LeaseManager,
        owner: UUID,
        queue: platforms.Queue,
        eligible: eligibility.Eligibility,
    ) -> None:
        """`eligible` claims investigations that this worker can run."""
        self._supervisor = supervisor
        self._database = database
        self._lease_manager = lease_manager
        self._owner = owner
        self._queue = queue
        self._eligible = eligible
        self._hinted = asyncio.Event()
        self._free = asyncio.Semaphore(queue.slots)
        self._running = 0
        self._busy = False
        """Whether the last claim met locked rows."""
        self._retried_unreadable = False
        """Whether the investigations that this program could not read are in the queue again: they may be repaired."""

    def hint(self, _investigation: str = "") -> bool:
        """Try to claim at once; return True if this process runs nothing, so that no other has to be woken."""
        idle = self._running == 0 and not self._hinted.is_set()
        self._hinted.set()
        return idle

    async def run(self) -> None:
        """Claim and run until cancelled; then all runs are cancelled, and their claims are released."""

        def free_slot(_run: asyncio.Task[None]) -> None:
            self._running -= 1
            self._free.release()

        async with asyncio.TaskGroup() as runs:
            while True:
                await self._free.acquire()
                held = await self._claim()
                task = runs.create_task(self._supervisor.run(held), name=f"run {held.claim.investigation}")
                self._running += 1
                task.add_done_callback(free_slot)

    async def _claim(self) -> leases.Lease:
        """Claim an investigation as soon as there is one."""
        while True:
            self._hinted.clear()
            sent = time.monotonic()
            claiming = asyncio.create_task(self._try())
            try:
                claim = await asyncio.shield(claiming)
            except asyncio.CancelledError:
                # The claim may still take effect: unless it is released, no worker runs it before its lease ends.
                with suppress(TimeoutError):
                    async with asyncio.timeout(run.RELEASE_SECONDS):
                        if (claim := await claiming) is not None:
                            await self._supervisor.release(claim)
                raise
            if claim is not None:
                return self._lease_manager.hold(claim, sent=sent)
            try:
                async with asyncio.timeout(BUSY_SECONDS if self._busy else POLL_SECONDS):
                    await self._hinted.wait()
            except TimeoutError:
                continue

    async def _try(self) -> work.Claim | None:
        try:
            if not self._retried_unreadable:
                await work.try_unreadable_again(self._database, build=run.BUILD)
                self._retried_unreadable = True
            self._busy = False
            return await self._eligible.claim(
                self._database,
                owner=self._owner,
                lease=self._queue.lease,
                build=run.BUILD,
                max_running=self._queue.max_running,
            )
        except work.BusyError:
            self._busy = True
        except databases.StoreDownError as error:
            log.warning("nothing can be claimed: %s", error, extra={"action": "claim_failed"})
        return None

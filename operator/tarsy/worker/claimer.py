"""Claims investigations while there are free slots: on every hint that there is work, and every so often without.

A claim passes over what needs an LLM provider that is unusable here (`eligibility`); what is behind it is claimed.
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
"""Until the next try where what waits was being written to."""

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
        """`eligible` claims what this worker can run."""
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
        """Whether the last claim passed over something."""
        self._tried_again = False
        """Whether what this program could not read may be claimed once more: it may have been mended since."""

    def hint(self, _investigation: str = "") -> bool:
        """There may be something to claim; True where that is left to this process, which has nothing else to do."""
        idle = self._running == 0 and not self._hinted.is_set()
        self._hinted.set()
        return idle

    async def run(self) -> None:
        """Claim and run until cancelled; then every run is cancelled and given back."""
        async with asyncio.TaskGroup() as runs:
            while True:
                await self._free.acquire()
                held = await self._claim()
                task = runs.create_task(self._supervisor.run(held), name=f"run {held.claim.investigation}")
                self._running += 1
                task.add_done_callback(self._ended)

    def _ended(self, _run: asyncio.Task[None]) -> None:
        self._running -= 1
        self._free.release()

    async def _claim(self) -> leases.Lease:
        """Wait for something to claim, and claim it."""
        while True:
            self._hinted.clear()
            sent = time.monotonic()
            claiming = asyncio.create_task(self._try())
            try:
                claim = await asyncio.shield(claiming)
            except asyncio.CancelledError:
                # An aborted claim may still take effect: then no worker would run it until its lease ends.
                with suppress(TimeoutError):
                    async with asyncio.timeout(run.RELEASE_SECONDS):
                        if (claim := await claiming) is not None:
                            await self._supervisor.give_back(claim)
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
            if not self._tried_again:
                await work.try_unreadable_again(self._database, build=run.BUILD)
                self._tried_again = True
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

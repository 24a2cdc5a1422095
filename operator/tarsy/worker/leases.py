"""The leases of this process, and the thread that renews them.

The thread has its own loop and its own connection, so that a blocked main loop does not lose leases. A hung main loop
must not keep them: when it has not ticked for 90 s, the thread ends the process.

A worker that is not certain of its lease sends no call. Certainty ends well before the lease does. It counts, by the
monotonic clock, from the moment when the last successful heartbeat was *sent*.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import Context
from datetime import timedelta
from typing import Literal
from uuid import UUID

from tarsy.store.base import databases
from tarsy.store.queue import heartbeats, work
from tarsy.store.reads import phase_rules
from tarsy.telemetry import metrics
from tarsy.transcript import ports

HUNG_SECONDS = 90.0
TICK_SECONDS = 1.0
MISSED_MAX = 1000
"""The number of remembered cancels of investigations that this process does not hold, or whose claim is under way."""

log = logging.getLogger(__name__)


StopReason = phase_rules.Cancellation | Literal["lost", "deadline"]
"""The reason why a run stops: it is cancelled, its lease is lost, or its deadline has passed."""


class Lease:
    """The lease of one claim: whether it is certain, and whether its run must stop."""

    def __init__(self, claim: work.Claim, *, certain_until: float) -> None:
        """`certain_until` is the monotonic time until which no other worker can have claimed the investigation."""
        self.claim = claim
        self.stopped: StopReason | None = None
        self.suspend = False
        """Whether the run has to stop before its next step."""
        self._on_stop: Callable[[], object] | None = None
        self._certain_until = certain_until
        self._renewed = asyncio.Event()
        if claim.cancel:
            self.stop(claim.cancel)

    async def ensure_lease(self) -> None:
        """Return once the lease is certain; raise LeaseLostError if it is lost."""
        while self.stopped != "lost":
            if time.monotonic() < self._certain_until:
                return
            self._renewed.clear()
            await self._renewed.wait()
        raise ports.LeaseLostError(f"the lease of investigation {self.claim.investigation} is lost")

    def renew(self, certain_until: float) -> None:
        """Extend the time for which the lease is certain."""
        self._certain_until = certain_until
        self._renewed.set()

    def on_stop(self, call: Callable[[], object]) -> None:
        """Call `call` when the run must stop, or now if it must already."""
        self._on_stop = call
        if self.stopped:
            call()

    def stop(self, reason: StopReason) -> None:
        """Stop the run. The first reason counts, but a lost lease overrides it: then no commit is possible."""
        already = self.stopped is not None  # each heartbeat repeats it; a second cancel would interrupt a clean-up
        if reason == "lost" or not already:
            self.stopped = reason
        self._renewed.set()
        if self._on_stop is not None and not already:
            self._on_stop()


class LeaseManager:
    """All leases of this process."""

    def __init__(self, url: str, *, lease: timedelta, heartbeat: timedelta) -> None:
        self._heartbeat = heartbeats.Heartbeat(url, lease=lease)
        self._every = heartbeat.total_seconds()
        self._certain = lease.total_seconds() - heartbeat.total_seconds()
        self._leases: dict[UUID, Lease] = {}
        self._missed: OrderedDict[UUID, float] = OrderedDict()
        """Recently cancelled investigations that this process does not hold, with the monotonic time of the hint."""
        self._main = asyncio.get_running_loop()
        self._ticked = time.monotonic()
        self._stopping = False
        self._beat_now = threading.Event()

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        ended = asyncio.Event()
        thread = threading.Thread(target=self._thread, args=(ended,), name="lease", daemon=True)
        thread.start()
        try:
            while not ended.is_set():
                self._ticked = time.monotonic()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self._stopping = True
            self._beat_now.set()
            await asyncio.to_thread(thread.join)
        raise RuntimeError("the lease thread ended by itself")

    def hold(self, claim: work.Claim, *, sent: float) -> Lease:
        """Renew the lease of `claim` from now on; `sent` is the monotonic time before the claim was sent."""
        lease = Lease(claim, certain_until=sent + self._certain)
        if (older := self._leases.get(claim.investigation)) is not None:
            # It ended while the database was down, and this process has claimed the investigation again.
            older.stop("lost")
        self._leases[claim.investigation] = lease
        if self._missed.pop(claim.investigation, -math.inf) >= sent:  # cancelled while the claim was under way
            self._beat_now.set()
        return lease

    def hint(self, investigation: str) -> bool:
        """Send a heartbeat now if this process holds `investigation`, or if it is ""; return whether it holds it."""
        is_held = bool(investigation) and UUID(investigation) in self._leases
        if is_held or not investigation:
            self._beat_now.set()
        else:
            self._missed[UUID(investigation)] = time.monotonic()
            if len(self._missed) > MISSED_MAX:
                self._missed.popitem(last=False)
        return is_held

    def remove(self, lease: Lease) -> None:
        """Stop renewing the lease."""
        if self._leases.get(lease.claim.investigation) is lease:
            del self._leases[lease.claim.investigation]

    def _thread(self, ended: asyncio.Event) -> None:
        try:
            asyncio.run(self._beat())
        finally:
            self._on_main(ended.set)

    async def _beat(self) -> None:
        try:
            while True:
                self._beat_now.clear()  # before the leases are read: a later hint sends another heartbeat
                if self._stopping:  # read after the event is cleared, which `run` sets when it stops
                    return
                if time.monotonic() - self._ticked > HUNG_SECONDS:
                    log.critical("the main loop hangs: ending the process", extra={"action": "hung"})
                    os._exit(70)
                # A copy in one step: the main loop adds and drops leases meanwhile.
                held = {identity: lease.claim.token for identity, lease in self._leases.copy().items()}
                sent = time.monotonic()
                try:
                    stop_requests = await self._heartbeat.beat(held)
                except databases.StoreDownError as error:
                    log.warning("leases are in doubt: %s", error, extra={"action": "heartbeat_failed"})
                    metrics.HEARTBEATS_FAILED.add()
                else:
                    self._on_main(functools.partial(self._learn, held, stop_requests, sent))
                await asyncio.to_thread(self._beat_now.wait, self._every)
        finally:
            await self._heartbeat.close()

    def _learn(
        self, held: Mapping[UUID, UUID], stop_requests: Mapping[UUID, work.StopRequest | None], sent: float
    ) -> None:
        """Apply the answer of a heartbeat to the leases that it renewed, unless they have another claim by now."""
        for identity, token in held.items():
            lease = self._leases.get(identity)
            if lease is None or lease.claim.token != token:
                continue
            if token not in stop_requests:
                lease.stop("lost")
                continue
            lease.renew(sent + self._certain)
            request = stop_requests[token]
            # Once suspended, the claim stays so: its agents have stopped, and only the next claim starts them.
            lease.suspend = lease.suspend or request == "suspend"
            if request is not None and request != "suspend":
                lease.stop(request)

    def _on_main(self, call: Callable[[], object]) -> None:
        self._main.call_soon_threadsafe(call, context=Context())

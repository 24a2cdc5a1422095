"""The duty that lets old transcripts go (`store.operations.retention`).

It works in small batches, and rests after each as long as the batch took, so it takes at most half of one connection,
and the database has time for others. It ends with the leader's lease, and goes on where another replica has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from tarsy.config.model import platforms
from tarsy.store.base import databases
from tarsy.store.operations import retention

EVERY_SECONDS = 60.0
"""The interval of passes."""
DRY_RUN_SECONDS = 3600.0
"""The interval of reports of what would be deleted."""
LOOK_SECONDS = 1.0
"""Seconds between two looks whether this process has the lease."""

log = logging.getLogger(__name__)


class Retention:
    """The duty of this process."""

    def __init__(
        self,
        database: databases.Database,
        *,
        platform: Callable[[], platforms.Platform],
        leads_until: Callable[[], float],
    ) -> None:
        """`platform` returns the platform file in force.

        `leads_until` returns the monotonic time until which this process does the duties.
        """
        self._database = database
        self._platform = platform
        self._leads_until = leads_until

    async def run(self) -> None:
        """Delete what is due while this process does the duties, until cancelled."""
        next_pass = 0.0
        while True:
            if self._leads() and time.monotonic() >= next_pass:
                is_dry = self._platform().retention.dry_run
                next_pass = time.monotonic() + (DRY_RUN_SECONDS if is_dry else EVERY_SECONDS)
                try:
                    await (self.report() if is_dry else self.delete_due())
                except (databases.StoreDownError, databases.TooLongError) as error:
                    next_pass = time.monotonic() + EVERY_SECONDS
                    log.warning("retention waits: %s", error, extra={"action": "retention_waits"})
            await asyncio.sleep(LOOK_SECONDS)

    def _leads(self) -> bool:
        return time.monotonic() < self._leads_until()

    async def delete_due(self) -> None:
        """Delete what is due, and log how much that was. Raises StoreDownError."""
        counts: Counter[retention.Kind] = Counter()
        began = time.monotonic()
        try:
            async for batch in retention.batches(self._database, retention.rule(self._platform())):
                counts[batch.kind] += batch.count
                if not self._leads() or self._platform().retention.dry_run:
                    break
                await asyncio.sleep(time.monotonic() - began)
                began = time.monotonic()
        finally:
            if counts:
                log.info("retention: %s", _listed(counts), extra=_log_fields("retained", counts))

    async def report(self) -> None:
        """Log how much is due. Raises StoreDownError and TooLongError."""
        counts = await retention.due(self._database, retention.rule(self._platform()))
        log.info("retention would delete: %s", _listed(counts), extra=_log_fields("retention_dry_run", counts))


def _listed(counts: Mapping[retention.Kind, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "nothing"


def _log_fields(action: str, counts: Mapping[retention.Kind, int]) -> dict[str, object]:
    return {"action": action, **{str(kind): count for kind, count in counts.items()}}

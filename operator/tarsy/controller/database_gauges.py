"""Gauges of what the database knows: read by the replica that does the duties, and exported until its lease ends.

All replicas would read the same, so a sum over replicas would count everything several times. A replica that has lost
the lease exports none of these gauges, even if it does not know of the loss yet: the time of the lease counts, from
before the statement that renewed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tarsy.config.model import platforms
from tarsy.store.base import databases
from tarsy.store.intake import unserved
from tarsy.store.operations import measures, retention
from tarsy.store.queue import ledgers
from tarsy.telemetry import instruments, metrics

READ_EVERY = 15.0
"""Seconds between two reads."""
DUE_EVERY = 60.0
"""Seconds between two reads of what retention is about to delete."""
LEDGERS_MAX = 100
"""The subjects of each budget that are exported, those that spent most."""
LOOK_SECONDS = 1.0
"""Seconds between two looks whether this process has the lease."""

log = logging.getLogger(__name__)


class DatabaseGauges:
    """The gauges of this process."""

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
        self._due: instruments.Amounts = {}
        self._due_from = 0.0
        """The time of the loop when what is due is read again: it may be many rows."""

    async def run(self) -> None:
        """Read and export while this process does the duties, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                if self._leads_until() <= loop.time():
                    metrics.DUTIES.end()
                    due = loop.time()
                elif loop.time() >= due:
                    due = loop.time() + READ_EVERY
                    await self.read()
                else:
                    metrics.DUTIES.extend(self._leads_until())
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            metrics.DUTIES.end()

    async def read(self) -> None:
        """Read the gauges once; if that fails, none are exported until the next read."""
        try:
            read = await measures.read(self._database)
            unserved_alerts = await unserved.read_counts(self._database)
            await self._read_due()
            used = await self._read_budgets()
        except (databases.StoreDownError, databases.TooLongError) as error:
            log.warning("gauges of the database not read: %s", error, extra={"action": "gauges_wait"})
            metrics.DUTIES.end()
            return
        amounts: dict[instruments.LeasedGauge, instruments.Amounts] = {
            metrics.INVESTIGATIONS: read.investigations,
            metrics.QUEUE_LENGTH: {labels: waiting.count for labels, waiting in read.queue.items()},
            metrics.QUEUE_OLDEST: {labels: waiting.oldest_seconds for labels, waiting in read.queue.items()},
            metrics.ATTEMPTS: read.attempts,
            metrics.UNSERVED: {(namespace,): count for namespace, count in unserved_alerts.items()},
            metrics.FEEDBACK: read.feedback,
            metrics.TABLE_BYTES: {(table,): size for table, size in read.table_bytes.items()},
            metrics.RETENTION_DUE: self._due,
            metrics.BUDGET_USED: used,
        }
        metrics.DUTIES.publish(amounts, until=self._leads_until())

    async def _read_budgets(self) -> instruments.Amounts:
        """Read how much of each calendar budget is used; without one there is no statement."""
        known = {name: budget for name, budget in self._platform().budgets.items() if budget.per != "investigation"}
        if not known:
            return {}
        read = await ledgers.read(self._database, known, limit=LEDGERS_MAX)
        return {
            (ledger.budget, ledger.subject): float(ledger.used / known[ledger.budget].limit) for ledger in read.ledgers
        }

    async def _read_due(self) -> None:
        """Read what is due, at intervals; none is exported if that takes too long."""
        now = asyncio.get_running_loop().time()
        if now < self._due_from:
            return
        self._due_from, self._due = now + DUE_EVERY, {}
        try:
            due = await retention.due(self._database, retention.rule(self._platform()))
        except databases.TooLongError as error:
            log.warning("what is due is not counted: %s", error, extra={"action": "gauges_wait"})
        else:
            self._due = {(kind,): count for kind, count in due.items()}

"""The meters: times, processor time, and what Postgres was given to do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

# Both count for the whole server. Inserted, not written: a commit that does not wait for the disk has its WAL, too.
_COUNTERS = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


@dataclass(frozen=True, kw_only=True)
class Times:
    """Some times, in milliseconds."""

    median: float
    p95: float
    longest: float
    n: int


def times(seconds: Sequence[float]) -> Times:
    """Sum up some times."""
    return Times(
        median=statistics.median(seconds) * 1000,
        p95=statistics.quantiles(seconds, n=20)[-1] * 1000,
        longest=max(seconds) * 1000,
        n=len(seconds),
    )


@dataclass(kw_only=True)
class Spent:
    """What was spent in some windows of time."""

    windows: list[float] = field(default_factory=list)
    """Seconds of each."""
    cpu: float = 0.0
    """Seconds of processor time of the process that was looked at."""
    postgres: float = 0.0
    """The same of all of Postgres's processes, but for the meter's own."""
    transactions: int = 0
    """Those that wrote: that were given an id."""
    wal: int = 0
    """Bytes of it."""


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Looks at a Postgres server, and at one process at a time."""

    database: asyncpg.Connection
    """To any database of the server."""
    postmaster: int
    """Its process id."""

    @asynccontextmanager
    async def adding(self, spent: Spent, *, process: int) -> AsyncIterator[None]:
        """Add what the block takes to `spent`; `process` is the id of the one to look at."""
        transactions, wal = await self._counters()
        postgres, cpu, at = self._postgres(), processor(process), time.perf_counter()
        yield
        spent.windows.append(time.perf_counter() - at)
        spent.cpu += processor(process) - cpu
        spent.postgres += self._postgres() - postgres
        transactions_after, wal_after = await self._counters()
        spent.transactions += transactions_after - transactions
        spent.wal += wal_after - wal

    async def _counters(self) -> tuple[int, int]:
        transactions, wal = await self.database.fetchrow(_COUNTERS)
        return int(transactions), int(wal)

    def _postgres(self) -> float:
        """Seconds of processor time of the postmaster, and of its children, those that have ended included."""
        ours = self.database.get_server_pid()
        while True:
            ended = _ended_children(self.postmaster)
            children = Path(f"/proc/{self.postmaster}/task/{self.postmaster}/children").read_text().split()
            try:
                alive = sum(processor(int(child)) for child in children if int(child) != ours)
            except OSError:  # one has ended since
                continue
            if _ended_children(self.postmaster) == ended:
                return processor(self.postmaster) + ended + alive


def processor(process: int) -> float:
    """Seconds of processor time that a process has taken, with all of its threads, to the nanosecond.

    The clock's id is what clock_getcpuclockid(3) makes, which Python does not offer; /proc counts in steps of 10 ms.
    """
    return time.clock_gettime(~process << 3 | 2)


def _ended_children(process: int) -> float:
    """Seconds of processor time of the children that were waited for. Source: proc(5), fields 16 and 17 of stat."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

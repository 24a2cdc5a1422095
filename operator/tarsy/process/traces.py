"""Traces of investigations: spans of what is committed, for a collector.

The process that commits the end of something sends its span. A worker reads its journal's commits; a run that ends
without its journal (a cancel without a worker, a sweep) is read from the database. A worker that was killed may have
committed ends whose spans it had not sent. So a takeover after a kill sends the spans of the earlier claims again: they
have the same ids and contents, and without them later spans could have parents that are missing. If the killed worker
had committed the end of the run, nobody takes it over: another process sends its spans once the worker counts as gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from tarsy.config.load import traces
from tarsy.config.model import platforms
from tarsy.process import startup
from tarsy.process.runtime import platform_file
from tarsy.store.base import databases
from tarsy.store.fleet import dead_processes
from tarsy.store.queue import journal, work
from tarsy.store.reads import snapshots
from tarsy.telemetry import span_exporter
from tarsy.transcript import entries, log_spans, record

ENDED_MAX = 1000
"""The runs that ended without their journal and wait to be read; the traces of further ones lack their ends."""

LOOK_SECONDS = 15.0
"""The interval of looks for processes that were killed."""

log = logging.getLogger(__name__)


async def begin(
    in_force: platform_file.PlatformFile, *, database: databases.Database, stack: AsyncExitStack
) -> Traces | None:
    """Return the traces of this process, and send what is left of them when `stack` ends; None if none are sent."""
    platform = in_force.platform
    with startup.start_errors():
        destination = await asyncio.to_thread(traces.destination, platform.traces, os.environ)
    if destination is None:
        return None
    exporter = span_exporter.SpanExporter(destination)
    stack.push_async_callback(exporter.close)
    process_traces = Traces(
        database=database,
        exporter=exporter,
        platform=lambda: in_force.platform,
        contents=platform.traces.contents,
    )
    database.run_ended = process_traces.run_ended
    log.info("traces are sent to a collector", extra={"action": "traces_on", "contents": platform.traces.contents})
    return process_traces


@dataclass(kw_only=True)
class Traces:
    """The traces of the investigations that this process works on."""

    database: databases.Database
    exporter: span_exporter.SpanExporter
    platform: Callable[[], platforms.Platform]
    """Returns the platform file in force."""
    contents: bool
    _ended: asyncio.Queue[UUID] = field(default_factory=lambda: asyncio.Queue(ENDED_MAX))

    def follow(self, claim: work.Claim) -> Follower:
        """Return what sends the spans of a claimed run as it goes on."""
        return Follower(claim=claim, traces=self)

    def run_ended(self, investigation: UUID) -> None:
        """Send the spans of a run that has just ended without its journal."""
        try:
            self._ended.put_nowait(investigation)
        except asyncio.QueueFull:
            log.warning("a run's end is missing in its trace: too many end at once", extra={"action": "traces_lost"})

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.exporter.run())
            group.create_task(self._read_ends())
            group.create_task(self._look_for_last_ends())

    async def _read_ends(self) -> None:
        """Read runs that have ended without their journal, one after the other."""
        while True:
            investigation = await self._ended.get()
            await self._send_end(investigation)

    async def _look_for_last_ends(self) -> None:
        """Send the spans of the runs that killed processes had ended last: they may not have sent them."""
        while True:
            try:
                for investigation in await dead_processes.claim_last_ends(self.database):
                    await self._send_end(investigation, whole=True)
            except (databases.StoreDownError, databases.TooLongError) as error:
                log.warning("a run's end may be missing in its trace: %s", error, extra={"action": "traces_lost"})
            await asyncio.sleep(LOOK_SECONDS)

    def fold(self, snapshot: record.Snapshot) -> log_spans.LogSpans:
        """Return the fold of an investigation's log into its spans."""
        return log_spans.LogSpans(
            snapshot=snapshot,
            provider_type=lambda name: getattr(self.platform().llm_providers.get(name), "type", None),
            contents=self.contents,
        )

    async def _send_end(self, investigation: UUID, *, whole: bool = False) -> None:
        """Send the spans of the last commit of an investigation's latest run; of all commits if it is to be `whole`."""
        try:
            snapshot, rows = await journal.read(self.database, investigation)
            ends = [row for row in rows if isinstance(row.entry, entries.RunEnded)]
            if not ends:  # it was purged meanwhile
                return
            end = ends[-1]
            is_whole = whole or await journal.was_interrupted(self.database, investigation, end.run)
        except (databases.StoreDownError, snapshots.UnreadableError) as error:
            log.warning("a run's end is missing in its trace: %s", error, extra={"action": "traces_lost"})
            return
        fold = self.fold(snapshot)
        for row in rows:
            ended = fold.add(row.seq, row.at, row.entry)
            if row.run == end.run and (is_whole or row.at == end.at):
                self.exporter.emit(ended)


@dataclass(kw_only=True)
class Follower:
    """Sends the spans of one claim: a `journal.Follower`."""

    claim: work.Claim
    traces: Traces
    _fold: log_spans.LogSpans | None = None

    def loaded(self, snapshot: record.Snapshot, log: Sequence[entries.Logged]) -> None:
        """Read the log of the earlier claims; if one of them was interrupted, send its run's spans again."""
        self._fold = self.traces.fold(snapshot)
        for row in log:
            ended = self._fold.add(row.seq, row.at, row.entry)
            if self.claim.attempts > 1 and row.run == self.claim.run:
                self.traces.exporter.emit(ended)

    def committed(self, first: int, at: datetime, added: Sequence[entries.Entry]) -> None:
        """Send the spans that these entries end."""
        assert self._fold  # noqa: S101 - a journal is loaded before it commits
        for seq, entry in enumerate(added, first):
            self.traces.exporter.emit(self._fold.add(seq, at, entry))

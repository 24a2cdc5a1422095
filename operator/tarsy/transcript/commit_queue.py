"""The commit queue of one journal, which agents side by side share.

One writer at a time writes all waiting commits as one batch, in the order of arrival. A commit belongs to the journal
from the moment of the call: if its caller is cancelled, the next commit or `settle` still writes it. So no answer that
was paid for is lost, and a batch whose reply was lost is written again unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tarsy.transcript import entries, ports, record
from tarsy.transcript.kinds import registry

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class _Commit(Generic[T]):
    """Entries that are committed together."""

    entries: Sequence[entries.Entry]
    prepared: Sequence[T]
    is_written: bool = False


class CommitQueue(Generic[T]):
    """The commits to one record."""

    def __init__(
        self,
        so_far: record.Record,
        *,
        prepare: Callable[[entries.Entry], T],
        write: Callable[[Sequence[T]], Awaitable[None]],
    ) -> None:
        """`write` stores a batch, or raises LeaseLostError; after a cancellation it gets the same batch again.

        `prepare` converts an entry for `write`. If it raises, that commit is refused, and no other.
        """
        self._record = so_far
        self._prepare = prepare
        self._write = write
        self._lock = asyncio.Lock()
        self._waiting: list[_Commit[T]] = []
        self._batch: list[_Commit[T]] = []
        """The commits that are being written, or were when their writer was cancelled."""
        self._lost: ports.LeaseLostError | None = None

    async def commit(self, *added: entries.Entry) -> None:
        """Commit entries, all or none; afterwards the record has them.

        Raises LeaseLostError if they are not stored: nothing can be any more. Raises OutOfOrderError if they cannot
        follow the log.
        """
        if self._lost:
            raise self._lost
        before = [entry for commit in (*self._batch, *self._waiting) for entry in commit.entries]
        registry.check(self._record, [*before, *added])
        own = _Commit(entries=added, prepared=[self._prepare(entry) for entry in added])
        self._waiting.append(own)
        await self._write_until(own)

    async def settle(self) -> None:
        """Complete the commits of cancelled callers; errors as with `commit`."""
        if unsettled := [*self._batch, *self._waiting]:
            await self._write_until(unsettled[-1])

    async def _write_until(self, commit: _Commit[T]) -> None:
        async with self._lock:
            while not commit.is_written:
                if self._lost:
                    raise self._lost
                if not self._batch:
                    self._batch, self._waiting = self._waiting, []
                try:
                    await self._write([prepared for waiting in self._batch for prepared in waiting.prepared])
                except ports.LeaseLostError as error:
                    self._lost = error
                    raise
                for waiting in self._batch:
                    waiting.is_written = True
                    for entry in waiting.entries:
                        registry.apply(self._record, entry)
                self._batch = []

"""The commit queue of one journal: agents side by side share it, and each commit needs the one before it.

One writer at a time writes everything that waits as one batch, in the order of arrival. A commit belongs to the journal
from the moment of the call: if the caller is cancelled while the commit waits or is being written, it is kept all the
same, by the next commit or by `settle`. So nothing that was paid for is lost, and a batch whose reply was lost is
written again unchanged.
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
    """Some entries that become true together, each as it was prepared."""

    entries: Sequence[entries.Entry]
    prepared: Sequence[T]
    kept: bool = False


class CommitQueue(Generic[T]):
    """The commits to one record."""

    def __init__(
        self,
        so_far: record.Record,
        *,
        prepare: Callable[[entries.Entry], T],
        write: Callable[[Sequence[T]], Awaitable[None]],
    ) -> None:
        """`write` keeps a batch, or raises a LeaseLostError; cancelled, it is called again with the same batch.

        `prepare` makes of an entry what is written. Where it raises, the commit is refused, and no other.
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
        """Keep `added`, all or none; afterwards the record holds them.

        A LeaseLostError says that they are not kept, and that nothing will be any more. An OutOfOrderError says that
        they cannot follow what there is.
        """
        if self._lost:
            raise self._lost
        before = [entry for commit in (*self._batch, *self._waiting) for entry in commit.entries]
        registry.check(self._record, [*before, *added])
        own = _Commit(entries=added, prepared=[self._prepare(entry) for entry in added])
        self._waiting.append(own)
        await self._until_kept(own)

    async def settle(self) -> None:
        """Complete the commits of callers that were cancelled since; errors as with `commit`."""
        if unsettled := [*self._batch, *self._waiting]:
            await self._until_kept(unsettled[-1])

    async def _until_kept(self, commit: _Commit[T]) -> None:
        async with self._lock:
            while not commit.kept:
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
                    waiting.kept = True
                    for entry in waiting.entries:
                        registry.apply(self._record, entry)
                self._batch = []

"""Workload W, whole: an alert from its notification to its status, beside the bare loop's same conversation.

One stage, whose model asks five times for two tools and then concludes; on a Postgres that waits for its disk. Once one
after another, TARSy and the bare loop in turns, the model answering at once; and once many at a time, the model taking
its time, first all of TARSy's and then all of the bare loop's.

Whatever the machine does beside counts to both, and a window of TARSy's ends with the status: what the operator does
later still (it is told of the status that it wrote) falls into the bare loop's, and is in nobody's figures.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench import asked, bare, client, meter, model, rig, sdks

WARM_UP = 5
"""Investigations and conversations of each side that are not counted; of the many, as many as run at once."""
COMMITS_AT_ONCE = 10
"""The bare loop's connections to its database: as many as an operator keeps."""
_ENDED_SECONDS = 120.0  # that all that were posted together may take


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one investigation takes of TARSy, or one conversation of the bare loop; means, but for the times."""

    n: int
    wall: meter.Times | None
    """From the notification to the status, or to the last commit; None of many, where it is a wait for a slot."""
    conversation: meter.Times
    """From the model's first request to the last byte of its conclusion."""
    cpu: float
    """Milliseconds of processor time of its process: the operator, or the bare loop."""
    postgres: float
    """Milliseconds of processor time of Postgres's processes."""
    transactions: float
    """Transactions that wrote."""
    wal: float
    """KiB of it."""
    a_minute: float
    """How many end in a minute."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The two sides of one way to run it."""

    tarsy: Side
    bare: Side


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured."""

    alone: Shape
    many: Shape
    two_a_minute: float
    """How many of the many end in a minute where two operators share them."""
    at_once: int
    """How many of the many ran at a time."""


async def figures(parts: rig.Rig, *, alone: int, many: int, at_once: int) -> Figures:
    """Measure `alone` of each side in turns, then `many` of each, `at_once` at a time."""
    async with client.connected(parts) as alerts:
        watched = meter.Meter(database=alerts.database, postmaster=parts.database.pid)
        async with bare.connected(
            sdk=functools.partial(sdks.gemini, model_url=parts.model_url),
            tools_url=parts.tools_url,
            database_url=parts.bare_database_url,
            connections=COMMITS_AT_ONCE,
        ) as loop:
            bench = _Bench(parts=parts, alerts=alerts, loop=loop, watched=watched)
            one_by_one, together = await bench.alone(alone), await bench.many(many, at_once)
        return Figures(alone=one_by_one, many=together, two_a_minute=await bench.two(many, at_once), at_once=at_once)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Both sides, and what looks at them."""

    parts: rig.Rig
    alerts: client.Client
    loop: bare.Loop
    watched: meter.Meter

    async def alone(self, count: int) -> Shape:
        """One after another, TARSy and the bare loop in turns."""
        spent, bare_spent = meter.Spent(), meter.Spent()
        for _ in range(WARM_UP):
            await self._investigate(model.ALONE, 1, spent=meter.Spent())
            await self._converse(model.ALONE, ["alone-warm-up"], spent=meter.Spent())
        posted: list[client.Posted] = []
        names = [f"alone-{number}" for number in range(count)]
        for name in names:
            posted += await self._investigate(model.ALONE, 1, spent=spent)
            await self._converse(model.ALONE, [name], spent=bare_spent)
        return self._shape(model.ALONE, posted, names, spent=spent, bare_spent=bare_spent)

    async def many(self, count: int, at_once: int) -> Shape:
        """All of TARSy's, then all of the bare loop's, `at_once` at a time."""
        spent, bare_spent = meter.Spent(), meter.Spent()
        await self._investigate(model.MANY, at_once, spent=meter.Spent())
        posted = await self._investigate(model.MANY, count, spent=spent)
        await self._converse(model.MANY, [f"warm-up-{number}" for number in range(at_once)], spent=meter.Spent())
        names = [f"many-{number}" for number in range(count)]
        await self._converse(model.MANY, names, at_once=at_once, spent=bare_spent)
        return self._shape(model.MANY, posted, names, spent=spent, bare_spent=bare_spent)

    async def two(self, count: int, at_once: int) -> float:
        """How many end in a minute with a second operator, each with as many slots."""
        apis = [self.parts.api, self.parts.another("bench-second", "all").api]
        spent = meter.Spent()
        await self._investigate(model.MANY, 2 * at_once, spent=meter.Spent(), apis=apis)
        self.alerts.check(*await self._investigate(model.MANY, count, spent=spent, apis=apis))
        return count / sum(spent.windows) * 60

    async def _investigate(
        self, alert_type: str, count: int, *, spent: meter.Spent, apis: Sequence[str] = ("",)
    ) -> list[client.Posted]:
        """Post `count` notifications at once, and wait for the end of all; the operator's slots say how many run."""
        async with self.watched.adding(spent, process=self.parts.operator.pid):
            posting = (self.alerts.post(alert_type, api=api) for _, api in zip(range(count), itertools.cycle(apis)))
            posted = await asyncio.gather(*posting)
            await self.alerts.ended(*posted, within=_ENDED_SECONDS)
        return posted

    async def _converse(
        self, stage: str, names: Sequence[str], *, at_once: int | None = None, spent: meter.Spent
    ) -> None:
        """Go through the bare conversations of these names, `at_once` (None: all) at a time."""

        async def one_by_one(waiting: Iterator[str]) -> None:
            for name in waiting:
                await self.loop.converse(name, stage=stage)

        waiting = iter(names)
        async with self.watched.adding(spent, process=os.getpid()), asyncio.TaskGroup() as tasks:
            for _ in range(at_once or len(names)):
                tasks.create_task(one_by_one(waiting))

    def _shape(
        self,
        stage: str,
        posted: Sequence[client.Posted],
        names: Sequence[str],
        *,
        spent: meter.Spent,
        bare_spent: meter.Spent,
    ) -> Shape:
        """Check that all went as it must, and sum it up."""
        self.alerts.check(*posted)
        requests = asked.read(self.parts.model_log)
        return Shape(
            tarsy=_side(stage, [requests[one.name] for one in posted], spent),
            bare=_side(stage, [requests[f"bare/{name}"] for name in names], bare_spent),
        )


def _side(stage: str, conversations: Sequence[asked.Requests], spent: meter.Spent) -> Side:
    count = len(conversations)
    return Side(
        n=count,
        wall=meter.times(spent.windows) if len(spent.windows) == count else None,
        conversation=meter.times(list(_seconds(stage, conversations))),
        cpu=spent.cpu / count * 1000,
        postgres=spent.postgres / count * 1000,
        transactions=spent.transactions / count,
        wal=spent.wal / count / 1024,
        a_minute=count / sum(spent.windows) * 60,
    )


def _seconds(stage: str, conversations: Iterable[asked.Requests]) -> Iterator[float]:
    """From the first request of each conversation to the last byte of its conclusion."""
    for requests in conversations:
        asked.check(requests, stage=stage)
        yield requests[-1]["ended"] - requests[0]["arrived"]

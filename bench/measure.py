"""How fast one alert is taken up, and what TARSy adds to an iteration.

Times between two requests are the model's; a webhook's start is ours, on the same clock.

Machines are noisy, so these are medians, over many repetitions, and TARSy and the bare loop take turns: what disturbs
one disturbs the other, and their ratio says more than either figure.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import statistics
import time
from dataclasses import dataclass

from bench import asked, bare, client, meter, model, rig, sdks

WARM_UP = 3  # notifications and conversations that are not counted: connections, imports, plans
SENDERS = 10
_ENDED_SECONDS = 30.0  # that one investigation may take, its status included
_TURNS = model.STAGES[model.ITERATIONS].turns


@dataclass(frozen=True, kw_only=True)
class Side:
    """The iterations of TARSy, or of the bare loop."""

    added: meter.Times
    """From the last byte of an answer to the next request."""
    cpu: float
    """Milliseconds of processor time an iteration, answer and tools included; of their process alone."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured."""

    arrival: meter.Times
    """From a webhook's post to the model's first request."""
    intake: Intake
    tarsy: Side
    bare: Side
    providers: dict[str, Sides]
    """The same of the providers beside Gemini, each with its own SDK on both sides."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two sides of one provider."""

    tarsy: Side
    bare: Side


@dataclass(frozen=True, kw_only=True)
class Intake:
    """What it takes to take an alert in: of an operator that does nothing else, with several senders."""

    answer: meter.Times
    """From a webhook's post to its answer."""
    cpu: float
    """Milliseconds of processor time an alert."""


@dataclass(frozen=True, kw_only=True)
class _Investigated:
    """An investigation that ran to its end."""

    posted: client.Posted
    cpu: float
    """Seconds of the operator's processor time that it took."""


async def figures(parts: rig.Rig, *, notifications: int, conversations: int) -> Figures:
    """Measure: `notifications` one after another, then `transcript_pages` of each side in turns."""
    async with client.connected(parts) as alerts:
        taken = await _taken(alerts, parts.another("bench-intake", "api"), count=4 * notifications)
    async with client.connected(parts) as alerts:
        arrivals = [await _investigate(alerts, model.ARRIVAL) for _ in range(WARM_UP + notifications)]
        rest = statistics.mean(one.cpu for one in arrivals[WARM_UP:])
        gemini = await _sides(alerts, model.ITERATIONS, sdks.gemini, conversations=conversations, rest=rest)
        others = {
            name: await _sides(alerts, rig.iterations_of(name), sdk, conversations=conversations // 2, rest=rest)
            for name, sdk in sdks.SDKS.items()
        }
    requests = asked.read(parts.model_log)
    return Figures(
        arrival=meter.times([requests[one.posted.name][0]["arrived"] - one.posted.at for one in arrivals[WARM_UP:]]),
        intake=taken,
        tarsy=gemini.tarsy,
        bare=gemini.bare,
        providers=others,
    )


async def _sides(alerts: client.Client, alert_type: str, sdk: sdks.SDK, *, conversations: int, rest: float) -> Sides:
    """Measure so many conversations of each side in turns; `rest` is what an investigation costs beside iterations."""
    parts = alerts.parts
    names = [f"{alert_type}-{number}" for number in range(WARM_UP + conversations)]
    iterated, bare_cpu = [], []
    connecting = bare.connected(
        sdk=functools.partial(sdk, model_url=parts.model_url),
        tools_url=parts.tools_url,
        database_url=parts.bare_database_url,
    )
    async with connecting as loop:
        for name in names:
            iterated.append(await _investigate(alerts, alert_type))
            started = time.process_time()
            await loop.converse(name, stage=model.ITERATIONS)
            bare_cpu.append(time.process_time() - started)
    requests = asked.read(parts.model_log)
    cpu = statistics.mean(one.cpu for one in iterated[WARM_UP:]) - rest
    counted = range(WARM_UP, len(names))
    return Sides(
        tarsy=Side(
            added=meter.times([gap for number in counted for gap in _gaps(requests[iterated[number].posted.name])]),
            cpu=cpu / _TURNS * 1000,
        ),
        bare=Side(
            added=meter.times([gap for number in counted for gap in _gaps(requests[f"bare/{names[number]}"])]),
            cpu=statistics.mean(bare_cpu[WARM_UP:]) / (_TURNS + 1) * 1000,
        ),
    )


async def _taken(alerts: client.Client, intake: rig.Another, *, count: int) -> Intake:
    """Post `count` new alerts to `intake`, from several senders; the other operator investigates them."""
    for _ in range(WARM_UP):
        await alerts.post(model.ARRIVAL, api=intake.api)
    seconds: list[float] = []
    posted: list[client.Posted] = []
    left = iter(range(count))

    async def send() -> None:
        for _ in left:
            at = time.perf_counter()
            posted.append(await alerts.post(model.ARRIVAL, api=intake.api))
            seconds.append(time.perf_counter() - at)

    cpu = meter.processor(intake.operator.pid)
    await asyncio.gather(*(send() for _ in range(SENDERS)))
    cpu = meter.processor(intake.operator.pid) - cpu
    await alerts.ended(*posted, within=_ENDED_SECONDS * 2)
    return Intake(answer=meter.times(seconds), cpu=cpu / count * 1000)


async def _investigate(alerts: client.Client, alert_type: str) -> _Investigated:
    """Post one new alert and wait until nothing is left to do for it, its status included."""
    cpu = meter.processor(alerts.parts.operator.pid)
    posted = await alerts.post(alert_type)
    await alerts.ended(posted, within=_ENDED_SECONDS)
    return _Investigated(posted=posted, cpu=meter.processor(alerts.parts.operator.pid) - cpu)


def _gaps(requests: asked.Requests) -> list[float]:
    """Seconds from the last byte of each answer to the next request of the conversation."""
    asked.check(requests, stage=model.ITERATIONS)
    return [after["arrived"] - before["ended"] for before, after in itertools.pairwise(requests)]

"""The model of the bench, as a process of its own: fixed, tiny answers.

What it is asked is in its log, with the times of arrival and of the last byte of each answer: all that is measured of
an iteration comes from there, so that neither side's own clock or bookkeeping is in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import signal
from dataclasses import dataclass
from pathlib import Path

from tarsy_dev import model


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What the agent of a stage is answered."""

    turns: int
    """How often it is asked for two tool calls, before it is given a conclusion."""
    delay: float = 0.0
    """Seconds before each answer."""


ARRIVAL = "arrival"
ITERATIONS = "iterations"
ALONE = "alone"
MANY = "many"
STAGES = {
    ARRIVAL: Stage(turns=0),
    ITERATIONS: Stage(turns=10),
    ALONE: Stage(turns=5),
    MANY: Stage(turns=5, delay=0.2),
}

SERVER = "tools"  # the MCP server's name in the platform file
_CALLS = tuple(model.Call(name=f"{SERVER}__lookup", args={"name": name}) for name in ("web-0", "web-1"))
_USAGE = model.Usage(input=100, output=10)


def script(turn: model.Turn, *, seconds: float = 0.0) -> model.Answer:
    """Answer by the stage that the prompt names, so many seconds later than the stage says."""
    stage = STAGES[turn.key.stage]
    delay = stage.delay + seconds
    if turn.iteration < stage.turns:
        return model.Answer(calls=_CALLS, usage=_USAGE, delay=delay)
    return model.Answer(text="The pod lacks memory.", usage=_USAGE, delay=delay)


async def _main(*, port: int, log: Path, seconds: float) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with model.serve(functools.partial(script, seconds=seconds), port=port, log=log, keep=0):
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.model", description="The model of the bench.")
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    parser.add_argument("--log", type=Path, required=True, help="append every request to this file, as JSON lines")
    parser.add_argument("--seconds", type=float, required=True, help="before each answer, beside its stage's")
    asyncio.run(_main(**vars(parser.parse_args())))

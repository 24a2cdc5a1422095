"""Twelve hundred watchers of twenty runs, which go on as if nothing watched them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import manifests, pace
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = pytest.mark.timeout(480)

RUNS, TURNS = 20, 14
IDLE, EACH = 1000, 10
"""The watchers of what has ended, and the watchers of each run."""
SLOWER = 0.1
"""The share of a turn that watchers may add on an idle core of 2024. It is work, and grows with what work takes here,
while a turn is a second of waiting on any machine.
"""
ROUNDS = 5
"""The rounds: a slow one is measured again, because other programs may have the machine just now."""
WATCHERS = Path(__file__).parents[2] / "support" / "watchers.py"
TEXT = "The container was killed by the kernel, which had no memory left for it. " * 3


def script(model_call: model.Turn) -> model.Answer:
    """A call in each turn but the last, beside words that take a second."""
    calls = [model.Call(name="tools__lookup", args={"name": f"web-{model_call.iteration}"})]
    asked = model.keyed(model_call, calls) if model_call.tools and model_call.iteration < TURNS - 1 else ()
    return model.Answer(text=TEXT, calls=asked, chunk=10, pause=0.04)


async def begun(operator: Operator, process: Process, batch: str) -> list[str]:
    """Have runs begin; their uids."""
    names = [f"{batch}-{number}" for number in range(RUNS)]
    await operator.apply(*map(manifests.investigation, names))
    listing = json.loads(await operator.kubectl("get", "inv", *names, "-o", "json"))
    return [manifest["metadata"]["uid"] for manifest in listing["items"]]


async def iteration(process: Process, uids: Sequence[str]) -> float:
    """Wait until all have ended: the seconds that a turn took, in the middle of them."""
    seconds = []
    async with patience.limit():
        for uid in uids:
            while True:
                status, detail = await process.request("GET", f"/api/v1/investigations/{uid}")
                if status == 200 and detail["ended_at"]:
                    break
                await asyncio.sleep(1)  # to look is work, too
            assert detail["phase"] == "Completed"
            started, ended = (datetime.fromisoformat(detail[at]) for at in ("started_at", "ended_at"))
            seconds.append((ended - started).total_seconds() / TURNS)
    return statistics.median(seconds)


@contextlib.asynccontextmanager
async def watched(process: Process, channels: Sequence[str]) -> AsyncIterator[dict[str, int]]:
    """Have a program watch, a connection for each channel: all are confirmed in here, and told behind it."""
    watchers = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(WATCHERS)),  # beside it are modules with names of Python's own
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert watchers.stdin
    assert watchers.stdout
    request = {"url": process.url, "token": process.editor, "channels": list(channels)}
    watchers.stdin.write(json.dumps(request).encode() + b"\n")
    assert await asyncio.wait_for(watchers.stdout.readline(), 60) == b"watching\n"
    heard: dict[str, int] = {}
    try:
        yield heard
    finally:
        watchers.stdin.close()
        heard |= json.loads(await watchers.stdout.read() or "{}")
        await watchers.wait()


async def test_runs_are_no_slower_where_many_watch(operator: Operator, llm: model.Server) -> None:
    llm.script = script
    await operator.apply(manifests.chain(stages=[manifests.stage("look")]))
    process = await operator.start()
    alone: list[float] = []
    beside: list[float] = []
    for times in range(ROUNDS):
        uids = await begun(operator, process, f"alone-{times}")
        alone.append(await iteration(process, uids))
        ended = [f"investigation:{uids[number % RUNS]}" for number in range(IDLE)]
        async with watched(process, ended) as idle:
            runs = await begun(operator, process, f"beside-{times}")
            async with watched(process, [f"investigation:{uid}" for uid in runs for _ in range(EACH)]) as active:
                beside.append(await iteration(process, runs))
        assert (idle["lost"], idle["completed"]) == (0, IDLE)
        assert (active["lost"], active["completed"]) == (0, RUNS * EACH)
        assert active["chunks"] > RUNS * EACH * TURNS
        allowed = 1 + SLOWER * max(1.0, pace.slowness())
        if min(beside) < allowed * min(alone):
            break
    print(f"a turn: {min(alone):.3f} s alone, {min(beside):.3f} s beside {IDLE} idle and {RUNS * EACH} active watchers")
    assert min(beside) < allowed * min(alone)

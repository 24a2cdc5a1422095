"""Operators that are killed at every failpoint and at random: nothing is lost, nothing committed is sent again.

The oracle is outside the operator (`support.repeats`).
"""

from __future__ import annotations

import asyncio
import functools
import random
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support import manifests, repeats
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = pytest.mark.once

LEASE = timedelta(seconds=3)

KILLS = 12

SIDE_BY_SIDE = manifests.chain(
    stages=[{"name": "collect", "agent": "KubernetesAgent", "replicas": 3}, manifests.stage("analysis")],
    executiveSummary={"enabled": True},
)

AGENTS_SIDE_BY_SIDE = {
    **{("collect", f"KubernetesAgent-{number}"): repeats.TURNS for number in (1, 2, 3)},
    ("collect", "SynthesisAgent"): 1,
    ("analysis", "KubernetesAgent"): repeats.TURNS,
    ("", ""): 1,  # the summary, of no stage and of no agent
}

FAILPOINTS = (
    "journal.commit.before",
    "journal.commit.after",
    "model.ask.before",
    "tool.call.before",
    "tool.call.after",
)


def _asked_about(investigation: str, requests: Sequence[model.Request]) -> bool:
    return any(request.key.investigation == investigation for request in requests)


@pytest.mark.parametrize("hit", [1, 2, 3, 5])
@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_an_operator_that_dies_at_a_failpoint_is_followed_by_one_that_goes_on(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, *, failpoint: str, hit: int
) -> None:
    llm.script = repeats.investigate
    await operator.apply(repeats.CHAIN, manifests.investigation())
    first = await operator.start(env={"TARSY_FAILPOINTS": f"{failpoint}=exit@{hit}"})
    await first.ended()
    await operator.let_leases_pass()
    await operator.start()
    await operator.finished("web-crash")
    await repeats.check(operator, llm, toolbox, names=["web-crash"])


@pytest.mark.parametrize(
    ("chain", "agents"),
    [
        pytest.param(repeats.CHAIN, repeats.AGENTS, id="one agent"),
        pytest.param(SIDE_BY_SIDE, AGENTS_SIDE_BY_SIDE, id="side by side"),
    ],
)
async def test_two_operators_under_random_kills_lose_nothing_and_repeat_nothing_committed(
    operator: Operator,
    llm: model.Server,
    toolbox: mcp_server.Server,
    *,
    chain: dict[str, Any],
    agents: Mapping[tuple[str, str], int],
) -> None:
    llm.script = repeats.investigate
    names = [f"crash-{number:02}" for number in range(KILLS)]
    chance = random.Random(20261121)  # noqa: S311 - the same kills each time
    running: list[Process] = [await operator.start(lease=LEASE), await operator.start(lease=LEASE)]
    await operator.apply(chain)
    for name in names:
        await operator.apply(manifests.investigation(name))
        await llm.wait_for(functools.partial(_asked_about, f"{operator.namespace}/{name}"))
        await asyncio.sleep(chance.uniform(0, 1.0))  # not for the test's sake: where in the run the kill falls
        victim = chance.randrange(2)
        await running[victim].kill()
        running[victim] = await operator.start(lease=LEASE)
    await operator.finished(*names)
    await repeats.check(operator, llm, toolbox, names=names, agents=agents)


async def test_an_operator_that_was_stopped_writes_and_sends_nothing_when_it_wakes_after_a_takeover(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    """Its answer is there when it wakes, and the one that took over has committed nothing yet: only the fence holds."""
    is_stopped, has_lost = asyncio.Event(), asyncio.Event()

    async def script(turn: model.Turn) -> model.Answer:
        if (turn.key.stage, turn.iteration) == ("collect", 1):
            await (has_lost if turn.repeats else is_stopped).wait()
        return repeats.investigate(turn)

    llm.script = script
    first = await operator.start()
    await operator.apply(repeats.CHAIN, manifests.investigation())
    await llm.wait_for(lambda _: llm.of(stage="collect", iteration=1))
    first.send(signal.SIGSTOP)
    await first.stopped()
    is_stopped.set()
    await operator.let_leases_pass()
    second = await operator.start()
    await llm.wait_for(lambda _: len(llm.of(stage="collect", iteration=1)) >= 2)
    first.send(signal.SIGCONT)
    await first.logged("action=lease_lost")
    has_lost.set()
    await operator.finished("web-crash")
    await repeats.check(operator, llm, toolbox, names=["web-crash"])
    await second.stop()

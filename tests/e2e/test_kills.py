"""Operators that are killed at every failpoint and at random: nothing is lost, nothing committed is sent again.

The oracle is outside the operator (`support.repeats`).
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from support import manifests, repeats, waiting
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = pytest.mark.once

KILLS = 12
STEPS = 12
"""The model requests and tool calls of a run of `repeats.CHAIN`."""

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


async def _start(operator: Operator, all_owners: set[UUID]) -> tuple[Process, UUID]:
    """One more operator, and what its leases are owned by, which is added to the `known`."""
    process = await operator.start()

    async def has_told() -> bool:
        return bool(await operator.owners() - all_owners)

    await waiting.seen(has_told)
    (owner,) = await operator.owners() - all_owners
    all_owners.add(owner)
    return process, owner


@pytest.mark.parametrize("hit", [1, 2, 3, 5])
@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_next_operator_continues_after_an_operator_dies_at_a_failpoint(
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
    all_owners: set[UUID] = set()
    running = [await _start(operator, all_owners) for _ in range(2)]
    await operator.apply(chain)

    def steps(name: str) -> int:
        about = f"{operator.namespace}/{name}"
        asked = sum(request.key.investigation == about for request in llm.requests)
        return asked + sum(call.key.partition("|")[0] == about for call in toolbox.calls)

    for name in names:
        await operator.apply(manifests.investigation(name))
        last = chance.randint(1, STEPS)
        await waiting.until(lambda name=name, last=last: steps(name) >= last)  # type: ignore[misc]
        victim = chance.randrange(2)
        process, owner = running[victim]
        await process.kill()
        await operator.let_leases_pass(owner)
        running[victim] = await _start(operator, all_owners)
    for owner in all_owners - {owner for _, owner in running}:  # Postgres may have ended a claim of one after its death
        await operator.let_leases_pass(owner)
    await operator.finished(*names)
    await repeats.check(operator, llm, toolbox, names=names, agents=agents)


async def test_an_operator_that_was_stopped_writes_and_sends_nothing_when_it_wakes_after_a_takeover(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    """Its answer is there when it wakes, and the one that took over has committed nothing yet: only the fence holds."""
    is_stopped, has_lost = asyncio.Event(), asyncio.Event()

    async def script(model_call: model.Turn) -> model.Answer:
        if (model_call.key.stage, model_call.iteration) == ("collect", 1):
            await (has_lost if model_call.repeats else is_stopped).wait()
        return repeats.investigate(model_call)

    llm.script = script
    first = await operator.start()
    await operator.apply(repeats.CHAIN, manifests.investigation())
    await llm.wait_for(lambda _: llm.requests_of(stage="collect", iteration=1))
    first.send(signal.SIGSTOP)
    await first.stopped()
    is_stopped.set()
    await operator.let_leases_pass()
    second = await operator.start()
    await llm.wait_for(lambda _: len(llm.requests_of(stage="collect", iteration=1)) >= 2)
    first.send(signal.SIGCONT)
    await first.logged("action=lease_lost")
    has_lost.set()
    await operator.finished("web-crash")
    await repeats.check(operator, llm, toolbox, names=["web-crash"])
    await second.stop()

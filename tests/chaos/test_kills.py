"""Operators that are killed at every failpoint and at random: nothing is lost, nothing committed is sent again.

The oracle is outside the operator: the logs of the model and of the tools, held against the times of the commits. A
request that arrived after its result was committed was sent again.
"""

from __future__ import annotations

import asyncio
import functools
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from support import manifests
from tarsy_dev import keys, mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LEASE = timedelta(seconds=3)
KILLS = 40
STAGES = ("collect", "analysis")
CHAIN = manifests.chain(stages=[manifests.stage(name) for name in STAGES])
TURNS = 3
"""Of an agent: two calls, one more, a conclusion."""
AGENTS = {(stage, "KubernetesAgent"): TURNS for stage in STAGES}
"""How often each execution asks its model."""
SIDE_BY_SIDE = manifests.chain(
    stages=[{"name": "collect", "agent": "KubernetesAgent", "replicas": 3}, manifests.stage("analysis")],
    executiveSummary={"enabled": True},
)
AGENTS_SIDE_BY_SIDE = {
    **{("collect", f"KubernetesAgent-{number}"): TURNS for number in (1, 2, 3)},
    ("collect", "SynthesisAgent"): 1,
    ("analysis", "KubernetesAgent"): TURNS,
    ("", ""): 1,  # the summary, of no stage and of no agent
}
FAILPOINTS = (
    "journal.commit.before",
    "journal.commit.after",
    "model.ask.before",
    "tool.call.before",
    "tool.call.after",
)


def investigate(turn: model.Turn) -> model.Answer:
    """Two reads side by side, a write, a conclusion; slow enough to be hit in the middle."""
    if turn.kind != "agent":
        return model.Answer(text=f"A {turn.kind}.", delay=0.15)
    calls = {
        0: [model.Call(name="tools__lookup", args={"name": "a"}), model.Call(name="tools__lookup", args={"name": "b"})],
        1: [model.Call(name="tools__restart", args={"name": "web"})],
    }.get(turn.iteration, [])
    text = "" if calls else f"Findings of {turn.key.stage}."
    return model.Answer(thoughts="Hm.", text=text, calls=model.keyed(turn, calls), delay=0.15)


async def rows(operator: Operator, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(operator.database_url)
    try:
        found: list[asyncpg.Record] = await connection.fetch(query)
        return found
    finally:
        await connection.close()


async def check(
    operator: Operator,
    llm: model.Server,
    toolbox: mcp_server.Server,
    *,
    names: Sequence[str],
    agents: Mapping[tuple[str, str], int] = AGENTS,
) -> None:
    """Hold the logs of model and tools against what was committed."""
    namespace = operator.namespace
    outcomes = await rows(
        operator,
        "SELECT name, runs.ending, attempts FROM investigations JOIN work ON investigation = id "
        "JOIN runs ON runs.investigation = id ORDER BY name",
    )
    assert [(row["name"], row["ending"]) for row in outcomes] == [(name, "Completed") for name in sorted(names)]
    takeovers = {f"{namespace}/{row['name']}": row["attempts"] - 1 for row in outcomes}

    answered = {
        (f"{namespace}/{row['name']}", row["stage"], row["agent"], row["turn"]): row["committed"].timestamp()
        for row in await rows(
            operator,
            "SELECT known.name, call.stage, CASE agent.kind WHEN 'summary' THEN '' ELSE agent.name END AS agent, turn, "
            "created_at AS committed FROM llm_interactions AS call "
            "JOIN investigations AS known ON known.id = call.investigation "
            "JOIN executions AS agent ON agent.investigation = call.investigation AND agent.id = call.execution "
            "WHERE failure IS NULL",
        )
    }
    assert set(answered) == {
        (f"{namespace}/{name}", *execution, turn)
        for name in names
        for execution, turns in agents.items()
        for turn in range(turns)
    }
    asked: Counter[tuple[str, str, str, int]] = Counter()
    for request in llm.requests:
        which = (*request.key, request.iteration)
        asked[which] += 1
        assert request.arrived <= answered[which] + CLOCKS, f"{which} was asked again after its answer was committed"
    assert set(asked) == set(answered)
    again: Counter[tuple[str, str, str]] = Counter()
    for which, times in asked.items():
        again[which[:3]] += times - 1
    for execution, times in again.items():
        assert times <= takeovers[execution[0]], f"{execution} has one call in flight at most for each takeover"

    called = {
        str(
            keys.CallKey(
                investigation=f"{namespace}/{row['name']}",
                stage=row["stage"],
                agent=row["agent"],
                iteration=int(row["call_id"].split(".")[0]),
                call=int(row["call_id"].split(".")[1]),
            )
        ): row
        for row in await rows(
            operator,
            "SELECT known.name, call.stage, agent.name AS agent, call_id, created_at AS committed, in_doubt "
            "FROM mcp_interactions AS call JOIN investigations AS known ON known.id = call.investigation "
            "JOIN executions AS agent ON agent.investigation = call.investigation AND agent.id = call.execution",
        )
    }
    assert len(called) == len(names) * sum(turns == TURNS for turns in agents.values()) * 3
    made: Counter[str] = Counter()
    for entry in toolbox.calls:
        made[entry.key] += 1
        late = entry.arrived - called[entry.key]["committed"].timestamp()
        assert late <= CLOCKS, f"{entry.key} was called again after its result was committed"
        if entry.tool == "restart":
            assert made[entry.key] == 1, f"{entry.key} writes, and was called twice"
    for key, times in made.items():
        assert times <= 1 + takeovers[key.partition("|")[0]], f"{key} was repeated without a takeover"
    undone = [key for key in called if not made[key]]
    assert all(called[key]["in_doubt"] for key in undone)


def _asked_about(investigation: str, requests: Sequence[model.Request]) -> bool:
    return any(request.key.investigation == investigation for request in requests)


CLOCKS = 0.001
"""Seconds: `created_at` is in the middle of a transaction, by the same machine's clock."""


@pytest.mark.parametrize("hit", [1, 2, 3, 5])
@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_an_operator_that_dies_at_a_failpoint_is_followed_by_one_that_goes_on(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, *, failpoint: str, hit: int
) -> None:
    llm.script = investigate
    await operator.apply(CHAIN, manifests.investigation())
    first = await operator.start(lease=LEASE, env={"TARSY_FAILPOINTS": f"{failpoint}=exit@{hit}"})
    await first.ended()
    await operator.start(lease=LEASE)
    await operator.finished("web-crash")
    await check(operator, llm, toolbox, names=["web-crash"])


@pytest.mark.parametrize(
    ("chain", "agents"),
    [pytest.param(CHAIN, AGENTS, id="one agent"), pytest.param(SIDE_BY_SIDE, AGENTS_SIDE_BY_SIDE, id="side by side")],
)
async def test_two_operators_under_random_kills_lose_nothing_and_repeat_nothing_committed(
    operator: Operator,
    llm: model.Server,
    toolbox: mcp_server.Server,
    *,
    chain: dict[str, Any],
    agents: Mapping[tuple[str, str], int],
) -> None:
    llm.script = investigate
    names = [f"crash-{number:02}" for number in range(KILLS)]
    chance = random.Random(20261121)  # noqa: S311 - the same kills each time
    running: list[Process] = [await operator.start(lease=LEASE), await operator.start(lease=LEASE)]
    await operator.apply(chain)
    for name in names:
        await operator.apply(manifests.investigation(name))
        await llm.wait_for(functools.partial(_asked_about, f"{operator.namespace}/{name}"), timeout=60)
        await asyncio.sleep(chance.uniform(0, 1.0))  # not for the test's sake: where in the run the kill falls
        victim = chance.randrange(2)
        await running[victim].kill()
        running[victim] = await operator.start(lease=LEASE)
    await operator.finished(*names, within=timedelta(seconds=120))
    await check(operator, llm, toolbox, names=names, agents=agents)


async def test_an_operator_that_was_stopped_for_three_leases_writes_and_sends_nothing_when_it_wakes(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = investigate
    first = await operator.start(lease=LEASE)
    await operator.apply(CHAIN, manifests.investigation())
    await llm.wait_for(lambda requests: len(requests) >= 2, timeout=60)
    first.send(signal.SIGSTOP)
    second = await operator.start(lease=LEASE)
    await operator.finished("web-crash")
    first.send(signal.SIGCONT)
    # Awake again, it serves; what it had been about to send or write is settled by then.
    await first.request("GET", "/healthz")
    await first.logged("action=lease_lost")
    await check(operator, llm, toolbox, names=["web-crash"])
    await second.stop()

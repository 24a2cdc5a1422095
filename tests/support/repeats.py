"""Repeats that killed operators may make: the logs of the model and of the tools, held against the commits.

A request that arrived after its result was committed was sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import asyncpg
from support import manifests
from tarsy_dev import keys, mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

STAGES = ("collect", "analysis")
CHAIN = manifests.chain(stages=[manifests.stage(name) for name in STAGES])
TURNS = 3
"""The model calls of an agent: two tool calls, one more, a conclusion."""
AGENTS = {(stage, "KubernetesAgent"): TURNS for stage in STAGES}
"""How often each execution asks its model."""
CLOCKS = 0.001
"""Seconds: `created_at` is in the middle of a transaction, by the same machine's clock."""


def investigate(request: model.Turn) -> model.Answer:
    """Two reads side by side, a write, a conclusion; slow enough to be hit in the middle."""
    if request.kind != "agent":
        return model.Answer(text=f"A {request.kind}.", delay=0.15)
    calls = {
        0: [model.Call(name="tools__lookup", args={"name": "a"}), model.Call(name="tools__lookup", args={"name": "b"})],
        1: [model.Call(name="tools__restart", args={"name": "web"})],
    }.get(request.iteration, [])
    text = "" if calls else f"Findings of {request.key.stage}."
    return model.Answer(thoughts="Hm.", text=text, calls=model.keyed(request, calls), delay=0.15)


async def rows(operator: Operator, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(operator.database_url)
    try:
        records: list[asyncpg.Record] = await connection.fetch(query)
        return records
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
        (f"{namespace}/{name}", *execution, call_number)
        for name in names
        for execution, turns in agents.items()
        for call_number in range(turns)
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

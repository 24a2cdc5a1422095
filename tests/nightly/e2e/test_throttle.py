"""Two operators, and one provider that may be asked so often a minute: they keep to it together; nobody times out."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

import asyncpg
from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

INVESTIGATIONS, CALLS, REQUESTS = 4, 2, 5
STAGE_SECONDS, ITERATION = 30, "20s"
"""Less than whoever waits for the next minute has to."""
SENT_WITHIN = 5.0
"""Seconds from a grant to the request's arrival on a busy machine."""


def answer(turn: model.Turn) -> model.Answer:
    """A tool call in each turn but the last."""
    calls = [model.Call(name="tools__lookup", args={"name": "web-0"})] if turn.iteration < CALLS - 1 else []
    return model.Answer(text="I see.", calls=model.keyed(turn, calls), delay=0.5)


async def test_the_requests_a_minute_of_a_provider_are_counted_over_two_operators(
    operator: Operator, llm: model.Server
) -> None:
    async def script(turn: model.Turn) -> model.Answer:
        """Until all investigations have asked, each operator has as many as it has slots, so both of them have some."""
        await llm.wait_for(lambda seen: len({request.key for request in seen}) == INVESTIGATIONS or None)
        return answer(turn)

    llm.script = script
    await operator.apply(manifests.chain(stages=[manifests.stage("analysis", timeoutSeconds=STAGE_SECONDS)]))
    names = [f"web-{number}" for number in range(INVESTIGATIONS)]
    settings = {"scripted": {"requests_per_minute": REQUESTS}}
    for role in ("all", "worker"):
        process = await operator.start(
            role=role,
            providers=settings,
            queue={"slots": INVESTIGATIONS // 2},
            limits={"iteration": ITERATION},
        )
        await process.logged("action=mcp_connected")
    await operator.apply(*(manifests.investigation(name=name) for name in names))
    await llm.wait_for(lambda seen: len(seen) == INVESTIGATIONS * CALLS or None)
    found = await operator.finished()
    assert Counter(one["status"]["phase"] for one in found.values()) == {"Completed": INVESTIGATIONS}
    database = await asyncpg.connect(operator.database_url)
    assert await database.fetchval("SELECT count(DISTINCT owner) FROM work") == 2
    await database.close()
    arrived = sorted(request.arrived for request in llm.requests)
    assert len(arrived) == INVESTIGATIONS * CALLS
    within = [bisect_right(arrived, at + 60 - SENT_WITHIN) - place for place, at in enumerate(arrived)]
    assert max(within) == REQUESTS
    assert "action=throttled" in operator.log

"""One budget for fifty investigations in three operators, two of which are killed: it is not overshot.

The oracle is outside the program: the log of the scripted provider.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

INVESTIGATIONS, CALLS, LIMIT = 50, 4, 120
"""Without a budget there would be 200 calls."""
KILLED_AT = (30, 60)
"""The numbers of requests at which an operator is killed."""
REQUESTS = """
  SELECT coalesce(sum(1 + coalesce(json_array_length(body -> 'call' -> 'attempts'), 0)), 0)
  FROM entries WHERE kind = 'Answered'
"""


def script(model_call: model.Turn) -> model.Answer:
    """A tool call in each turn but the last."""
    calls = [model.Call(name="tools__lookup", args={"name": "web-0"})] if model_call.iteration < CALLS - 1 else []
    return model.Answer(text="I see.", calls=model.keyed(model_call, calls), delay=0.1)


def has_seen(number: int, seen: Sequence[object]) -> bool | None:
    return len(seen) >= number or None


async def test_fifty_runs_in_one_budget_never_exceed_it_despite_operator_kills(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = script
    await operator.apply(manifests.chain(stages=[manifests.stage("analysis")], executiveSummary={"enabled": False}))
    budgets = {"all": {"scope": "all", "per": "month", "model_calls": LIMIT, "at_limit": "Refuse"}}
    processes = [
        await operator.start(role=role, budgets=budgets, queue={"slots": 10}, lease=timedelta(seconds=3))
        for role in ("all", "worker", "worker")
    ]
    for process in processes:
        await process.logged("action=mcp_connected")
    await operator.apply(*(manifests.investigation(name=f"web-{number}") for number in range(INVESTIGATIONS)))
    for process, number in zip(processes[1:], KILLED_AT, strict=True):
        await llm.wait_for(functools.partial(has_seen, number))
        await process.kill()
    await operator.finished()
    database = await asyncpg.connect(operator.database_url)
    used, settled = await database.fetchrow("SELECT used, settled FROM budget_ledgers")
    answered = await database.fetchval(REQUESTS)
    live = await database.fetchval(
        "SELECT count(*) FROM budget_reservations AS reserved JOIN work USING (investigation, token)"
    )
    await database.close()
    assert (settled, live) == (answered, 0)
    assert answered <= len(llm.requests) <= used == LIMIT

"""A model that never has enough, in a real operator: its tool calls come to what there may be, and no more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support import manifests
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

AT_ONCE, IN_ALL = 2, 8
ASKED = 5
"""Calls of each answer."""


def insatiable(model_call: model.Turn) -> model.Answer:
    """Looks for something else with each call, as long as it has tools."""
    if not model_call.tools:
        return model.Answer(text="It is out of memory.")
    names = [f"{model_call.iteration}-{index}" for index in range(ASKED)]
    return model.Answer(calls=tuple(model.Call(name="tools__lookup", args={"name": name}) for name in names))


async def test_budget_is_kept_when_another_operator_continues_an_execution(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    """The first operator dies with the second calls of the first answer in its hands."""
    llm.script = insatiable
    limits = {"execution_calls": AT_ONCE, "tool_calls": IN_ALL}
    first = await operator.start(limits=limits, env={"TARSY_FAILPOINTS": "tool.call.after=exit@3"})
    await operator.apply(manifests.chain(stages=[manifests.stage("analysis")]), manifests.investigation())
    await first.ended()
    await operator.let_leases_pass()
    successor = await operator.start(limits=limits)
    manifest = (await operator.finished("web-crash"))["web-crash"]
    assert (manifest["status"]["phase"], manifest["status"]["finalAnalysis"]) == ("Completed", "It is out of memory.")
    made = [call.args["name"] for call in toolbox.calls]
    assert sorted(set(made)) == [*(f"0-{index}" for index in range(5)), *(f"1-{index}" for index in range(3))]
    assert len(made) - len(set(made)) <= AT_ONCE, "what was under way, once more"
    last = json.dumps(llm.requests[-1].body)
    assert last.count("This call was not made. All 8 tool calls that there may be are made.") == 2
    assert "All 8 tool calls that there may be are made. Call no more tools. Conclude now" in last
    await successor.stop()

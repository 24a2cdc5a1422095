"""Operators that die around a summary or a search of a long result: no server is asked again for it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support import manifests
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

LEASE = timedelta(seconds=3)
LENGTH = 100_000
SUMMARY = "All work and no play, 4,762 times."


def looking(model_call: model.Turn) -> model.Answer:
    if model_call.kind == "tool_summary":
        return model.Answer(text=SUMMARY)
    calls = () if model_call.iteration else (model.Call(name="tools__flood", args={"size": LENGTH}),)
    return model.Answer(text="" if calls else "It is dull.", calls=model.keyed(model_call, calls))


@pytest.mark.parametrize(
    ("failpoint", "summaries"),
    [
        ("journal.commit.after=exit@3", 1),
        ("model.summary.after=exit@1", 2),
        ("journal.commit.after=exit@4", 1),
    ],
    ids=["the result is committed", "the summary is there", "the summary is committed"],
)
async def test_an_operator_that_dies_around_a_summary_is_followed_by_one_that_goes_on(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, *, failpoint: str, summaries: int
) -> None:
    llm.script = looking
    server = {"transport": {"type": "http", "url": toolbox.url}, "summarization": {"mode": "summary"}}
    operator.configure(mcp_servers={"tools": server})
    await operator.apply(manifests.chain(), manifests.investigation())
    first = await operator.start(lease=LEASE, env={"TARSY_FAILPOINTS": failpoint})
    await first.ended()
    second = await operator.start(lease=LEASE)
    by_name = await operator.finished("web-crash")
    assert by_name["web-crash"]["status"]["phase"] == "Completed"
    assert len(toolbox.calls) == 1, "its result was committed"
    assert len(llm.requests_of(kind="tool_summary")) == summaries
    assert len(llm.requests_of(kind="agent")) == 2
    read = llm.requests_of(kind="agent")[-1].body["contents"][-1]["parts"][0]["functionResponse"]["response"]["output"]
    assert read.endswith(SUMMARY)
    usage = by_name["web-crash"]["status"]["usage"]
    assert usage["llmCalls"] == 3
    await second.stop()


def searching(model_call: model.Turn) -> model.Answer:
    if model_call.iteration == 0:
        return model.Answer(calls=model.keyed(model_call, (model.Call(name="tools__flood", args={"size": LENGTH}),)))
    if model_call.iteration == 1:
        return model.Answer(calls=(model.Call(name="result__search", args={"call": "0.0", "pattern": "dull|play"}),))
    return model.Answer(text="It is dull.")


@pytest.mark.parametrize(
    "failpoint",
    ["tool.call.before=exit@2", "tool.call.after=exit@2", "journal.commit.after=exit@5"],
    ids=["before the search", "the search is not committed", "the search is committed"],
)
async def test_an_operator_that_dies_around_a_search_is_followed_by_one_that_finds_the_same(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, *, failpoint: str
) -> None:
    llm.script = searching
    await operator.apply(manifests.chain(), manifests.investigation())
    first = await operator.start(lease=LEASE, env={"TARSY_FAILPOINTS": failpoint})
    await first.ended()
    second = await operator.start(lease=LEASE)
    by_name = await operator.finished("web-crash")
    assert by_name["web-crash"]["status"]["phase"] == "Completed"
    assert by_name["web-crash"]["status"]["usage"]["toolCalls"] == 2
    assert len(toolbox.calls) == 1, "its result was committed"
    last = llm.requests_of(kind="agent")[-1]
    read = last.body["contents"][-1]["parts"][0]["functionResponse"]["response"]["output"]
    lines = LENGTH // len("all work and no play\n")
    assert read.startswith(f"[{lines} lines match; searched: {lines + 1} lines.")
    await second.stop()

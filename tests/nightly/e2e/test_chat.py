"""Questions about investigations that have ended, over HTTP: answered, stopped, and taken over."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import aiohttp
import pytest
from support import manifests
from support.chats import ask, ended
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

LEASE = timedelta(seconds=3)

DEATHS = [
    *(("model.ask.before", hit) for hit in (1, 2)),
    *((failpoint, 1) for failpoint in ("tool.call.before", "tool.call.after")),
    *((f"journal.commit.{when}", hit) for when in ("before", "after") for hit in (1, 2, 3, 4)),
]
"""Everywhere in a question's run: its start, two answers with the call between them, and its end are four commits."""


@pytest.mark.parametrize(("failpoint", "hit"), DEATHS)
async def test_a_question_whose_operator_dies_at_a_failpoint_is_answered_and_nothing_committed_is_sent_again(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, failpoint: str, hit: int
) -> None:
    def script(turn: model.Turn) -> model.Reply:
        if turn.kind != "chat":
            return model.Answer(text="root cause")
        calls = [] if turn.iteration else [model.Call(name="tools__lookup", args={"name": "web-0"})]
        return model.Answer(text="" if calls else "shop/web:broken", calls=tuple(calls))

    llm.script = script
    first = await operator.start(lease=LEASE)
    await operator.apply(manifests.chain(), manifests.investigation())
    uid = str((await operator.finished("web-crash"))["web-crash"]["metadata"]["uid"])
    await first.stop()
    doomed = await operator.start(lease=LEASE, env={"TARSY_FAILPOINTS": f"{failpoint}=exit@{hit}"})
    with contextlib.suppress(aiohttp.ClientError):  # it may die before it has answered
        assert (await ask(doomed, uid))[0] == 202
    await doomed.ended()
    process = await operator.start(lease=LEASE)
    answer = await ended(process, uid, run=1)
    assert (answer["ending"], answer["final_analysis"]) == ("Completed", "shop/web:broken")
    asked = Counter(request.iteration for request in llm.of(kind="chat"))
    assert asked.keys() == {0, 1}
    assert asked.total() <= 3, "one call in flight is made once more"
    assert 1 <= len(toolbox.calls) <= 2
    assert asked.total() + len(toolbox.calls) <= 4
    _, read = await process.request("GET", f"/api/v1/investigations/{uid}/timeline")
    types = Counter(event["type"] for event in read["events"])
    assert (types["user_question"], types["tool_result"]) == (1, 1)
    await process.stop()

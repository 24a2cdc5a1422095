"""A chain's `activeDeadlineSeconds`, with a model that never answers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

DEADLINE = 10
"""Seconds, in which the first stage has to end on a busy machine, too."""
LOOK = model.Answer(calls=(model.Call(name="tools__lookup"),))
MESSAGE = f"not finished within the {DEADLINE} s of activeDeadlineSeconds"


def hang_in_the_second_stage(model_call: model.Turn) -> model.Reply:
    if model_call.key.stage == "analysis":
        return model.Hang(after=2)
    return LOOK if model_call.iteration == 0 else model.Answer(text="collected")


async def test_hanging_model_call_ends_at_the_deadline_and_the_object_shows_the_timeout(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = hang_in_the_second_stage
    process = await operator.start()
    await process.logged("action=mcp_connected")
    stages = [manifests.stage("collect"), manifests.stage("analysis")]
    await operator.apply(manifests.chain(activeDeadlineSeconds=DEADLINE, stages=stages), manifests.investigation())
    await operator.kubectl("wait", "inv/web-crash", "--for=condition=Failed", "--timeout=60s")
    manifest = (await operator.finished("web-crash"))["web-crash"]
    status: dict[str, Any] = manifest["status"]

    *collected, hung = llm.requests
    assert [request.end for request in collected] == ["completed", "completed"]
    assert await llm.wait_for(lambda _: hung.end) == "client closed"
    started = datetime.fromisoformat(status["startTime"]).timestamp()
    assert hung.ended is not None
    assert hung.ended - started >= DEADLINE

    conditions = {
        condition["type"]: (condition["status"], condition["reason"], condition["message"])
        for condition in status["conditions"]
    }
    ended = ("True", "DeadlineExceeded", MESSAGE)
    assert conditions == {"Accepted": ("True", "Admitted", ""), "Finished": ended, "Failed": ended, "Stalled": ended}
    assert (status["phase"], status["message"], status["progress"]) == ("TimedOut", MESSAGE, "1/2")
    assert {stage["name"]: stage["phase"] for stage in status["stages"]} == {
        "collect": "Completed",
        "analysis": "TimedOut",
    }
    event = await operator.event("web-crash", "TimedOut")
    assert (event["type"], event["message"]) == ("Warning", MESSAGE)

    # The process goes on, and nothing more is sent for what has ended.
    llm.script = model.answers(LOOK, "root cause")
    await operator.apply(manifests.chain(stages=stages), manifests.investigation("next"))
    assert (await operator.finished("next"))["next"]["status"]["phase"] == "Completed"
    assert len(llm.requests) == 3 + 2 * 2
    await process.stop()

"""Agents side by side in a real operator: their status, their timeline while they run, and suspension between calls."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import mcp_server, model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

CHAIN = manifests.chain(
    stages=[
        {"name": "collect", "agent": "KubernetesAgent", "replicas": 3},
        manifests.stage("analysis"),
    ]
)
NAMES = ["KubernetesAgent-1", "KubernetesAgent-2", "KubernetesAgent-3"]


def investigate(turn: model.Turn) -> model.Answer:
    """Two calls side by side, one more, a conclusion; each agent at its own pace. Their work is joined at once."""
    if turn.kind == "synthesis":
        return model.Answer(thoughts="Hm.", text="All three found it.")
    calls = {
        0: [model.Call(name="tools__lookup", args={"name": "a"}), model.Call(name="tools__flaky", args={"name": "b"})],
        1: [model.Call(name="tools__restart", args={"name": "web"})],
    }.get(turn.iteration, [])
    text = "I look." if calls else f"{turn.key.agent} found it."
    delay = 0.02 * len(turn.key.agent + turn.key.stage) * (turn.iteration + int(turn.key.agent[-1] == "2"))
    return model.Answer(thoughts="Hm.", text=text, calls=model.keyed(turn, calls), delay=delay)


async def timeline(process: Process, uid: str, *, after: int = 0, limit: int = 500) -> dict[str, Any]:
    status, page = await process.request("GET", f"/api/v1/investigations/{uid}/timeline?after={after}&limit={limit}")
    assert status == 200, page
    return dict(page)


async def whole(process: Process, uid: str) -> dict[str, dict[str, Any]]:
    """The newest form of all events, in pages as large as may be."""
    events: dict[str, dict[str, Any]] = {}
    page: dict[str, Any] = {"last": 0, "more": True}
    while page["more"]:
        page = await timeline(process, uid, after=page["last"])
        events |= {event["id"]: event for event in page["events"]}
    return events


async def test_a_timeline_read_in_steps_of_five_during_a_run_is_the_one_read_at_its_end(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = investigate
    seen = asyncio.Event()

    async def until_seen(_call: mcp_server.Call) -> None:
        await seen.wait()

    toolbox.hold = until_seen
    process = await operator.start()
    await operator.apply(CHAIN)
    applied = await operator.kubectl("apply", "-f", "-", "-o", "json", input=json.dumps(manifests.investigation()))
    uid = json.loads(applied)["metadata"]["uid"]
    await llm.wait_for(lambda requests: requests or None)

    merged: dict[str, dict[str, Any]] = {}
    last, ended = 0, False
    while True:
        page = await timeline(process, uid, after=last, limit=5)
        by_entry = [event["seq"] for event in page["events"]]
        assert by_entry == sorted(by_entry)
        assert all(last < seq <= page["last"] for seq in by_entry)
        merged |= {event["id"]: event for event in page["events"]}
        if any(event["status"] == "streaming" for event in page["events"]):
            seen.set()
        last = page["last"]
        if not page["more"]:
            if ended:
                break
            _, read = await process.request("GET", f"/api/v1/investigations/{uid}")
            ended = read["phase"] == "Completed"
    assert merged == await whole(process, uid)
    assert seen.is_set(), "some calls were seen while they ran"

    types = {
        kind: sum(event["type"] == kind for event in merged.values()) for kind in {e["type"] for e in merged.values()}
    }
    assert types == {
        "llm_thinking": 13,
        "llm_response": 8,
        "llm_tool_call": 12,
        "mcp_tool_call": 12,
        "tool_result": 12,
        "final_analysis": 5,
    }
    assert {event["status"] for event in merged.values() if event["type"] == "mcp_tool_call"} == {"completed", "failed"}
    await process.stop()


async def test_agents_side_by_side_are_told_apart_in_status_prompts_and_result(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    together = asyncio.Barrier(3)

    async def script(turn: model.Turn) -> model.Answer:
        if turn.key.stage == "collect" and turn.kind == "agent" and turn.iteration == 0:
            async with patience.limit():
                await together.wait()  # none is answered before all three have asked
        return investigate(turn)

    llm.script = script
    process = await operator.start()
    await operator.apply(CHAIN, manifests.investigation())
    status = (await operator.finished("web-crash"))["web-crash"]["status"]
    assert {stage["name"]: (stage["phase"], stage["agents"]) for stage in status["stages"]} == {
        "collect": ("Completed", "3/3"),
        "analysis": ("Completed", "1/1"),
    }
    assert (status["phase"], status["progress"]) == ("Completed", "2/2")
    assert sorted({request.key.agent for request in llm.of(stage="collect", kind="agent")}) == NAMES
    (joining,) = llm.of(stage="collect", kind="synthesis")
    task = joining.body["contents"][0]["parts"][0]["text"]
    found = [task.index(f"#### Agent {number}: {name}\n") for number, name in enumerate(NAMES, 1)]
    assert task.index("# The agents of this stage") < found[0] < found[1] < found[2]
    assert task.count("**Status**: completed") == 3
    (request,) = llm.of(stage="analysis", iteration=0)
    task = request.body["contents"][0]["parts"][0]["text"]
    assert "### Results from 'collect' stage:" in task
    assert "All three found it." in task
    assert "#### Agent" not in task, "what joins their results takes their place"
    await process.stop()


async def test_suspended_with_two_of_three_agents_in_a_call_it_goes_on_later_and_repeats_nothing(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    answer = asyncio.Event()

    async def script(turn: model.Turn) -> model.Answer:
        if turn.key.stage == "collect" and turn.iteration == 1 and turn.key.agent != NAMES[0]:
            await answer.wait()
        if turn.key.agent == NAMES[0] and turn.iteration == 1:
            return model.Answer(
                text="", calls=model.keyed(turn, [model.Call(name="tools__lookup", args={"name": "c"})]), delay=0.5
            )
        if turn.key.agent == NAMES[0] and turn.iteration == 2:
            return model.Answer(
                text="", calls=model.keyed(turn, [model.Call(name="tools__lookup", args={"name": "d"})]), delay=0.5
            )
        return investigate(turn)

    llm.script = script
    process = await operator.start()
    await operator.apply(CHAIN, manifests.investigation())

    def in_the_middle(requests: Any) -> bool:
        return {(request.key.agent, request.iteration) for request in requests} >= {(NAMES[1], 1), (NAMES[2], 1)}

    await llm.wait_for(in_the_middle)
    await operator.kubectl("patch", "inv", "web-crash", "--type=merge", "--patch", '{"spec":{"suspend":true}}')
    await operator.kubectl("wait", "inv/web-crash", "--for=jsonpath={.status.observedGeneration}=2", "--timeout=60s")
    answer.set()
    await operator.kubectl("wait", "inv/web-crash", "--for=jsonpath={.status.phase}=Suspended", "--timeout=60s")
    asked = len(llm.requests)
    assert all(request.end == "completed" for request in llm.requests), "what was under way was finished"
    await operator.kubectl("patch", "inv", "web-crash", "--type=merge", "--patch", '{"spec":{"suspend":false}}')
    found = (await operator.finished("web-crash"))["web-crash"]
    assert (found["status"]["phase"], found["status"]["attempts"]) == ("Completed", 1)
    assert len(llm.requests) > asked
    seen = [(*request.key, request.iteration) for request in llm.requests]
    assert len(seen) == len(set(seen)), "no call was sent twice"
    events = (await whole(process, found["metadata"]["uid"])).values()
    assert [event["type"] for event in events].count("resumed") == 1
    await process.stop()

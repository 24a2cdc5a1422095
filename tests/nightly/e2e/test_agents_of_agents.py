"""A TARSy whose agents investigate with TARSy: its own MCP endpoint is one of its servers."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

OUTER = "something is wrong, and another TARSy may know"


def ask_the_other() -> model.Script:
    """Let the other TARSy investigate, wait for its end, and conclude what it concluded.

    The other one concludes nothing before the first knows that it has begun.
    """
    has_begun = asyncio.Event()

    async def answer(model_call: model.Turn) -> model.Answer:
        if model_call.kind != "agent" or OUTER not in str(model_call.messages[0]):
            await has_begun.wait()
            return model.Answer(text="root cause: the node has no memory")
        seen = str(model_call.messages)
        if not (begun := re.search(r"id\W+([0-9a-f-]{36})", seen)):
            arguments = {"alert_type": "kubernetes", "data": "is the node well?", "seconds": 0}
            return model.Answer(calls=(model.Call(name="other__investigate", args=arguments),))
        has_begun.set()
        if not re.search(r"ended\W+true", seen):
            return model.Answer(calls=(model.Call(name="other__wait", args={"id": begun[1], "seconds": 20}),))
        (analysis,) = {*re.findall("root cause: the node has no memory", seen)}
        return model.Answer(text=f"The other one knows [tool 0.0]: {analysis}")

    return answer


async def test_an_agent_has_another_tarsy_investigate_and_waits_for_its_conclusion(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = ask_the_other()
    api = await operator.start(role="api")
    transport = {"type": "http", "url": f"{api.url}/mcp", "bearer_token_env": "AGENTS_TOKEN"}
    server = {"transport": transport, "write_tools": ["investigate"]}
    operator.configure(mcp_servers={"other": server}, agents={"Asker": {"mcp_servers": ["other"]}})
    await operator.start(env={"AGENTS_TOKEN": operator.editor})
    asking = manifests.chain("outer", name="outer", stages=[{"name": "asking", "agent": "Asker"}])
    await operator.apply(
        manifests.chain(), asking, manifests.investigation("outer", alertType="outer", alertData=OUTER)
    )

    outer = (await operator.finished("outer"))["outer"]
    assert outer["status"]["phase"] == "Completed"
    assert "the node has no memory" in outer["status"]["finalAnalysis"]
    investigations_by_depth = {manifest["spec"].get("depth", 0) for manifest in (await operator.finished()).values()}
    assert investigations_by_depth == {0, 1}
    _, page = await api.request("GET", f"/api/v1/investigations/{outer['metadata']['uid']}/timeline")
    called = [event["metadata"]["tool_name"] for event in page["events"] if event["type"] == "mcp_tool_call"]
    assert called[0] == "investigate"
    assert set(called[1:]) == {"wait"}

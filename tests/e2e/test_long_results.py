"""A log of 50,000 tokens in a real operator: masked, kept whole, summed up, and without a summary cut in its middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

LINES = 4_200
ODD = 1_234
"""The one line that matters, which is neither at the beginning nor at the end."""
SECRET = "cnryKd9xQwZZ7fGh"
SUMMARY = "It was killed once, at line 1234; since then it is up."


def log() -> str:
    """Lines of some fifty characters, with a secret in a hundred of them."""

    def line(number: int) -> str:
        if number == ODD:
            return "FATAL: out of memory, killed"
        if number % 40 == 7:
            return f"level=info msg=connected DB_PASSWORD={SECRET}"
        return f"level=info msg=ok path=/healthz status=200 n={number:05}"

    return "\n".join([*map(line, range(LINES)), "level=info msg=the newest line"])


def looking(turn: model.Turn) -> model.Reply:
    if turn.kind == "tool_summary":
        fails = turn.key.investigation.endswith("/without")
        return model.HttpError(status=400, message="not today") if fails else model.Answer(text=SUMMARY)
    if turn.iteration == 0:
        return model.Answer(text="I read its log.", calls=(model.Call(name="tools__read_log"),))
    return model.Answer(text="It is the memory.")


def result(request: model.Request) -> str:
    """What the agent's model read of its call."""
    parts = request.body["contents"][-1]["parts"]
    (found,) = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    return str(found["output"])


async def told(process: Process, found: dict[str, Any], path: str) -> dict[str, Any]:
    _, answer = await process.request("GET", f"/api/v1/investigations/{found['metadata']['uid']}/{path}")
    assert isinstance(answer, dict)
    return answer


async def test_a_log_of_fifty_thousand_tokens_is_summed_up_kept_whole_and_read_cut_where_that_fails(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    async def read_log() -> str:
        """Read a log."""
        return log()

    toolbox.mcp.add_tool(read_log, annotations=mcp_server.READ_ONLY, structured_output=False)
    masked = log().replace(SECRET, "[MASKED:password]")
    assert len(log()) > 200_000
    llm.script = looking
    process = await operator.start()
    await operator.apply(manifests.chain(), *(manifests.investigation(name) for name in ("with", "without")))
    found = await operator.finished("with", "without")
    assert {one["status"]["phase"] for one in found.values()} == {"Completed"}
    assert SECRET not in "".join(str(request.body) for request in llm.requests)

    name = f"{operator.namespace}/with"
    (asked,) = llm.of(investigation=name, kind="tool_summary")
    text = asked.body["contents"][0]["parts"][0]["text"]
    assert f"\n{masked}\n<!-- DATA " in text, "it is made of all of it"
    assert "I read its log." in text
    assert result(llm.of(investigation=name, kind="agent")[-1]).endswith(f"\n{SUMMARY}")
    called = await told(process, found["with"], "trace/tool/1")
    assert (called["whole"], called["cut"], called["summary"]) == (masked, True, SUMMARY)
    assert found["with"]["status"]["usage"]["llmCalls"] == 3
    events = (await told(process, found["with"], "timeline"))["events"]
    (event,) = [one for one in events if one["type"] == "mcp_tool_summary"]
    assert (event["status"], event["content"], event["metadata"]["tool_name"]) == ("completed", SUMMARY, "read_log")
    shown = (await told(process, found["with"], "trace/llm/2"))["request"]["messages"]
    assert shown[1]["text"] == text, "what was sent is what is shown"

    name = f"{operator.namespace}/without"
    assert len(llm.of(investigation=name, kind="tool_summary")) == 1, "it is tried once"
    read = result(llm.of(investigation=name, kind="agent")[-1])
    beginning, _, end = read.partition("\n[cut: ")
    assert (masked.startswith(beginning), masked.endswith(end.partition("]\n")[2])) == (True, True)
    assert read.endswith("level=info msg=the newest line")
    assert 60_000 < len(read) < 66_000
    events = (await told(process, found["without"], "timeline"))["events"]
    (event,) = [one for one in events if one["type"] == "mcp_tool_summary"]
    assert (event["status"], "not today" in event["content"]) == ("failed", True)
    assert (await told(process, found["without"], "trace/tool/1"))["whole"] == masked
    await process.stop()

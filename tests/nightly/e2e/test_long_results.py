"""A log of 50,000 tokens in a real operator: masked, kept whole, read as an excerpt, searched, summed up."""

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
    name = turn.key.investigation.rpartition("/")[2]
    if turn.kind == "tool_summary":
        return model.HttpError(status=400, message="not today") if name == "failing" else model.Answer(text=SUMMARY)
    if turn.iteration == 0:
        server = "tools" if name == "excerpt" else "summed"
        return model.Answer(text="I read its log.", calls=(model.Call(name=f"{server}__read_log"),))
    if turn.iteration == 1 and name == "excerpt":
        search = model.Call(name="result__search", args={"call": "0.0", "pattern": "(?i)out of memory"})
        return model.Answer(text="I search it.", calls=(search,))
    return model.Answer(text="It is the memory.")


def offered(request: model.Request) -> bool:
    """Whether a request offers the tools that look into results."""
    names = {declared["name"] for tool in request.body["tools"] for declared in tool["functionDeclarations"]}
    assert ("result__read" in names) == ("result__search" in names)
    return "result__search" in names


def result(request: model.Request) -> str:
    """What the agent's model read of its call."""
    parts = request.body["contents"][-1]["parts"]
    (found,) = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    return str(found["output"])


async def told(process: Process, found: dict[str, Any], path: str) -> dict[str, Any]:
    _, answer = await process.request("GET", f"/api/v1/investigations/{found['metadata']['uid']}/{path}")
    assert isinstance(answer, dict)
    return answer


async def test_log_of_fifty_thousand_tokens_is_read_as_an_excerpt_and_looked_into_or_summed_up(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    async def read_log() -> str:
        """Read a log."""
        return log()

    toolbox.mcp.add_tool(read_log, annotations=mcp_server.READ_ONLY, structured_output=False)
    server = {"transport": {"type": "http", "url": toolbox.url}}
    operator.configure(
        mcp_servers={"summed": server | {"summarization": {"mode": "summary"}}},
        agents={"KubernetesAgent": {"mcp_servers": ["tools", "summed"]}},
    )
    masked = log().replace(SECRET, "[MASKED:password]")
    assert len(log()) > 200_000
    llm.script = looking
    process = await operator.start()
    names = ("excerpt", "summed", "failing")
    await operator.apply(manifests.chain(), *map(manifests.investigation, names))
    found = await operator.finished(*names)
    assert {one["status"]["phase"] for one in found.values()} == {"Completed"}
    assert SECRET not in "".join(str(request.body) for request in llm.requests)

    requests = llm.of(investigation=f"{operator.namespace}/excerpt")
    assert [offered(request) for request in requests] == [False, True, True], "once there is something to look into"
    read = result(requests[1])
    assert len(read) <= 20_000
    assert read.startswith(f"[an excerpt of {len(masked)} characters in {LINES + 1} lines: ")
    assert ("FATAL: out of memory, killed" in read, read.endswith("the newest line")) == (True, True)
    assert result(requests[2]).startswith("[1 line matches; searched: 4201 lines.")
    assert f"\n{ODD + 1}: FATAL: out of memory, killed" in result(requests[2])
    called = await told(process, found["excerpt"], "trace/tool/1")
    assert (called["result"], called["whole"], called["cut"]) == (read, masked, True)
    assert (called["excerpt"]["lines"], called["excerpt"]["length"]) == (LINES + 1, len(masked))
    assert any(shown["first"] <= ODD + 1 <= shown["last"] for shown in called["excerpt"]["shown"])
    searched = await told(process, found["excerpt"], "trace/tool/2")
    assert (searched["server_name"], searched["tool_name"], searched["excerpt"]) == ("result", "search", None)
    assert found["excerpt"]["status"]["usage"]["toolCalls"] == 2
    events = (await told(process, found["excerpt"], "timeline"))["events"]
    first, second = [event for event in events if event["type"] == "tool_result"]
    assert (first["metadata"]["excerpt"]["lines"], "excerpt" in second["metadata"]) == (LINES + 1, False)
    shown = (await told(process, found["excerpt"], "trace/llm/2"))["request"]
    assert (shown["messages"][-1]["text"], [tool["name"] for tool in shown["tools"]][-2:]) == (
        read,
        ["result.search", "result.read"],
    )

    name = f"{operator.namespace}/summed"
    (asked,) = llm.of(investigation=name, kind="tool_summary")
    text = asked.body["contents"][0]["parts"][0]["text"]
    assert ("FATAL: out of memory, killed" in text, len(text) < 45_000) == (True, True), "it is made of an excerpt"
    assert "I read its log." in text
    assert result(llm.of(investigation=name, kind="agent")[-1]).endswith(f"\n{SUMMARY}")
    called = await told(process, found["summed"], "trace/tool/1")
    assert (called["whole"], called["cut"], called["summary"]) == (masked, True, SUMMARY)
    assert found["summed"]["status"]["usage"]["llmCalls"] == 3
    events = (await told(process, found["summed"], "timeline"))["events"]
    (event,) = [one for one in events if one["type"] == "mcp_tool_summary"]
    assert (event["status"], event["content"], event["metadata"]["tool_name"]) == ("completed", SUMMARY, "read_log")
    request = (await told(process, found["summed"], "trace/llm/2"))["request"]["messages"]
    assert request[1]["text"] == text, "what was sent is what is shown"

    name = f"{operator.namespace}/failing"
    assert len(llm.of(investigation=name, kind="tool_summary")) == 1, "it is tried once"
    read = result(llm.of(investigation=name, kind="agent")[-1])
    assert (read.startswith("[an excerpt of "), len(read) <= 40_000) == (True, True)
    events = (await told(process, found["failing"], "timeline"))["events"]
    (event,) = [one for one in events if one["type"] == "mcp_tool_summary"]
    assert (event["status"], "not today" in event["content"]) == ("failed", True)
    assert (await told(process, found["failing"], "trace/tool/1"))["whole"] == masked
    await process.stop()

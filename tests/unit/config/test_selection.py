"""An alert that narrows its agents' tools, from its entry in the log to what they are offered, and what people see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tarsy.config.model import platforms
from tarsy.engine import chat, investigation
from tarsy.resources import chains, investigations
from tarsy.transcript import entries, memory, messages, ports, record, timeline

LOOKS = messages.Message(
    role="assistant",
    calls=tuple(
        messages.ToolCall(id="", name=name, arguments="{}") for name in ("k8s.get", "k8s.list", "prom.query", "web.get")
    ),
)
CONCLUDES = messages.Message(role="assistant", text="It is out of memory.")
TOOLS = dict.fromkeys(("k8s.get", "k8s.list", "prom.query", "web.get"), "seen")


class Opened(memory.DictToolbox):
    """The tools of these servers that are admitted; a call of another is a failure of the test's."""

    def __init__(self, servers: Sequence[str], admits: ports.ToolPredicate) -> None:
        own = {name: text for name, text in TOOLS.items() if name.partition(".")[0] in servers and admits(name)}
        super().__init__(own)

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        assert call.name in self.answers, call.name
        return await super().call(call, scope)


@pytest.fixture
def platform(platform: platforms.Platform) -> platforms.Platform:
    k8s = platform.mcp_servers["k8s"]
    servers = {"k8s": k8s, "prom": k8s, "web": k8s.model_copy(update={"selectable": True}), "vault": k8s}
    agents = {"KubernetesAgent": platforms.Agent(mcp_servers=["k8s", "prom"])}
    return platform.model_copy(update={"mcp_servers": servers, "agents": {**platform.agents, **agents}})


@pytest.fixture
def snapshot(snapshot: record.Snapshot) -> record.Snapshot:
    stages = [chains.Stage(name="look", agent="KubernetesAgent")]
    return replace(snapshot, chain=snapshot.chain.model_copy(update={"stages": stages}))


def opening(opened: list[Opened]) -> Any:
    def toolbox(servers: Sequence[str], admits: ports.ToolPredicate) -> Opened:
        opened.append(Opened(servers, admits))
        return opened[-1]

    return toolbox


async def investigated(
    platform: platforms.Platform, journal: memory.MemoryJournal, mcp: dict[str, Any] | None
) -> tuple[record.Execution, list[str]]:
    """The one execution of an investigation with that selection, and the tools that it called."""
    if mcp is not None:
        await journal.commit(entries.ToolsSelected(mcp=investigations.MCP.model_validate(mcp)))
    opened: list[Opened] = []
    model = memory.ScriptedModel(LOOKS, CONCLUDES)
    runtime = ports.Runtime(platform=platform, model=lambda _: model, toolbox=opening(opened))
    await investigation.run(runtime=runtime, journal=journal)
    (execution,) = journal.record.executions.values()
    return execution, [call.name for box in opened for call in box.called]


@pytest.mark.parametrize(
    ("mcp", "called"),
    [
        (None, "k8s.get k8s.list prom.query"),
        ({"servers": [{"name": "k8s", "tools": ["get"]}]}, "k8s.get"),
        ({"servers": [{"name": "web"}]}, "web.get"),
        ({"servers": [{"name": "web"}, {"name": "k8s", "tools": ["l*"]}]}, "k8s.list web.get"),
        ({"servers": []}, ""),
        ({"tools": {"deny": ["k8s.*"]}}, "prom.query"),
    ],
)
async def test_an_agent_is_offered_and_calls_what_the_alert_leaves(
    platform: platforms.Platform, journal: memory.MemoryJournal, mcp: dict[str, Any] | None, called: str
) -> None:
    execution, calls = await investigated(platform, journal, mcp)
    assert execution.ended is not None
    assert execution.ended.outcome == "Completed"
    assert {tool.name for tool in execution.started.tools} == set(calls) == set(called.split())
    refused = {entry.tool_name for entry in execution.log if isinstance(entry, messages.Message) and entry.failed}
    assert refused == TOOLS.keys() - set(calls)


async def test_takeover_has_the_same_tools_after_the_platform_file_changed(
    platform: platforms.Platform, journal: memory.MemoryJournal
) -> None:
    mcp = investigations.MCP.model_validate({"servers": [{"name": "k8s", "tools": ["get"]}]})
    await journal.commit(entries.ToolsSelected(mcp=mcp))
    opened: list[Opened] = []
    runtime = ports.Runtime(platform=platform, model=lambda _: memory.ScriptedModel(LOOKS), toolbox=opening(opened))
    one_turn = journal.commit

    async def commit(*added: entries.Entry) -> None:
        await one_turn(*added)
        if any(isinstance(entry, entries.Answered) for entry in added):
            journal.suspend()

    journal.commit = commit  # type: ignore[method-assign]
    await investigation.run(runtime=runtime, journal=journal)
    taken_over = journal.taken_over()
    agents = platform.agents | {"KubernetesAgent": platforms.Agent(mcp_servers=["k8s", "prom", "web", "vault"])}
    wider = replace(
        runtime,
        platform=platform.model_copy(update={"agents": agents}),
        model=lambda _: memory.ScriptedModel(LOOKS, CONCLUDES),
    )
    await investigation.run(runtime=wider, journal=taken_over)
    assert taken_over.record.ended is not None
    assert list(opened[-1].answers) == ["k8s.get"]
    assert [call.name for box in opened for call in box.called] == ["k8s.get"]


async def test_a_question_has_no_more_tools_than_the_investigation_had(
    platform: platforms.Platform, journal: memory.MemoryJournal
) -> None:
    await investigated(platform, journal, {"servers": [{"name": "k8s", "tools": ["get"]}, {"name": "web"}]})
    agents = platform.agents | {
        "ChatAgent": platforms.Agent(mcp_servers=["vault"], tools=platforms.Tools(deny=["web.*"]))
    }
    await journal.commit(entries.RunStarted(run=1, question="Why?"))
    opened: list[Opened] = []
    runtime = ports.Runtime(
        platform=platform.model_copy(update={"agents": agents}),
        model=lambda _: memory.ScriptedModel(LOOKS, CONCLUDES),
        toolbox=opening(opened),
    )
    await chat.run(runtime=runtime, journal=journal, run=1)
    assert [call.name for call in opened[0].called] == ["k8s.get"]


async def test_selected_tool_that_has_disappeared_is_reported_as_missing(
    platform: platforms.Platform, journal: memory.MemoryJournal
) -> None:
    named = {"servers": [{"name": "k8s", "tools": ["get", "events"]}, {"name": "web"}]}
    execution, calls = await investigated(platform, journal, named)
    assert (execution.started.agent, calls) != (None, [])
    assert execution.started.agent
    assert execution.started.agent.problems == (
        "MCP server 'k8s' has no tool for this agent that mcp.servers calls events",
    )
    assert journal.record.ended is not None
    assert [gap.tool for gap in journal.record.ended.gaps if "events" in gap.reason] == ["k8s"]


@pytest.mark.parametrize(
    ("mcp", "content"),
    [
        ({}, "the alert does not select tools"),
        ({"servers": [{"name": "k8s", "tools": ["get", "l*"]}, {"name": "web"}]}, "MCP servers: k8s (get, l*), web"),
        (
            {"tools": {"allow": ["k8s.*"], "deny": ["*.list"]}, "nativeTools": {"google_search": False}},
            "allowed tools: k8s.*; denied tools: *.list; native tools switched off: google_search",
        ),
    ],
)
def test_timeline_event_shows_the_tool_selection_of_the_alert(mcp: dict[str, Any], content: str) -> None:
    selected = entries.ToolsSelected(mcp=investigations.MCP.model_validate(mcp))
    at = datetime(2026, 11, 23, tzinfo=UTC)
    logged = entries.Logged(seq=1, at=at, claim=1, run=0, stage="", execution="", entry=selected)
    (event,) = timeline.fold([logged])
    assert (event.type, event.status, event.content) == ("mcp_selection", "completed", content)
    assert investigations.MCP.model_validate(event.metadata) == selected.mcp
    started = entries.StageStarted(stage="look", clock=0.0)
    followed = replace(logged, seq=2, stage="look", entry=started)
    assert [timeline_event.type for timeline_event in timeline.fold([logged, followed])] == ["mcp_selection"], (
        "the first claim is no takeover"
    )

"""Tool selection of agents and alerts: each level can take tools away, and none can grant them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis
import pydantic
import pytest
from hypothesis import strategies as st
from tarsy.config import resolve
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, tool_filters
from tarsy.config.tool_selection import grants, ineffective
from tarsy.resources import chains, investigations, tool_patterns

READS = ("get", "list", "pods.log")
WRITES = ("delete", "pods_exec", "run")
TOOLS = [*(tool_filters.Tool(name=name, read_only=True) for name in READS)] + [
    tool_filters.Tool(name=name, read_only=False) for name in WRITES
]
CATALOGUE = {"k8s": TOOLS, "prom": [tool_filters.Tool(name="query", read_only=True)]}
NATIVE = ["google_search", "code_execution", "url_context"]


def server(**fields: Any) -> platforms.MCPServer:
    return platforms.MCPServer.model_validate({"transport": {"type": "http", "url": "http://s/mcp"}, **fields})


def admitted_names(names: str, tools: dict[str, Any]) -> list[str]:
    (tool_filter,) = tool_filters.filters(chains.Tools.model_validate(tools)) or (tool_filters.Filter(),)
    return [name for name in names.split() if tool_filter.admits(name)]


@pytest.mark.parametrize(
    ("tools", "admitted"),
    [
        ({}, "k8s.get k8s.GET k8s.delete prom.query"),
        ({"allow": []}, ""),
        ({"allow": ["k8s.*"]}, "k8s.get k8s.GET k8s.delete"),
        ({"allow": ["*.get", "prom.quer[xy]"]}, "k8s.get prom.query"),
        ({"deny": ["k8s.[!g]*", "prom.*"]}, "k8s.get"),
        ({"allow": ["k8s.delete", "k8s.get"], "deny": ["*.delete"]}, "k8s.get"),
    ],
)
def test_deny_wins_over_allow_and_case_counts(tools: dict[str, list[str]], admitted: str) -> None:
    assert admitted_names("k8s.get k8s.GET k8s.delete prom.query", tools) == admitted.split()


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({}, "get list pods.log"),
        ({"write_tools": ["delete"]}, "get list pods.log delete"),
        ({"write_tools": ["*"]}, "get list pods.log delete pods_exec run"),
        ({"tools": {"allow": ["delete", "get"]}}, "get"),
        ({"tools": {"allow": ["delete", "get"]}, "write_tools": ["pods_*"]}, "get"),
        ({"tools": {"deny": ["pods*"]}, "write_tools": ["*"]}, "get list delete run"),
        ({"tools": {"allow": []}, "write_tools": ["*"]}, ""),
    ],
)
def test_a_tool_that_may_write_is_offered_only_where_the_platform_file_names_it(
    settings: dict[str, Any], offered: str
) -> None:
    assert [tool.name for tool in TOOLS if tool_filters.is_offered(tool, server(**settings))] == offered.split()


WORDS = ["*", "k8s.*", "*.get", "k8s.[!g]*", "prom.query", "*.pods?*", "*.delete", "k8s.pods.log"]
PATTERNS = st.lists(st.sampled_from(WORDS), max_size=3)
CHOICES = st.fixed_dictionaries({}, optional={"allow": PATTERNS, "deny": PATTERNS})


@hypothesis.given(
    levels=st.tuples(CHOICES, CHOICES, CHOICES, CHOICES),
    own=st.booleans(),
    write=st.lists(st.sampled_from(["*", "delete", "r?n"]), max_size=2),
)
def test_each_tool_filter_level_only_removes_tools(
    levels: tuple[dict[str, Any], ...], own: bool, write: Sequence[str]
) -> None:
    """Over all levels at once: what is left is what each one by itself leaves."""
    agent, stage, member, alert = levels

    def left(agent: dict[str, Any], stage: dict[str, Any], member: dict[str, Any], alert: dict[str, Any]) -> set[str]:
        platform = platform_of(agent=None if own else agent, write_tools=list(write))
        spec = spec_of(agent=agent if own else None, stage=stage, member=member)
        mcp = investigations.MCP(tools=chains.Tools.model_validate(alert)) if alert else None
        (granted_agent,) = grants.agents(platform, chain_name="c", chain=spec, mcp=mcp)
        return set(grants.granted(granted_agent, platform, CATALOGUE))

    alone = [left(agent, {}, {}, {}), left({}, stage, {}, {}), left({}, {}, member, {}), left({}, {}, {}, alert)]
    together = left(agent, stage, member, alert)
    assert together == set.intersection(*alone)
    everything = left({}, {}, {}, {})
    assert together <= everything
    assert {name.partition(".")[2] for name in everything}.isdisjoint(
        tool.name for tool in TOOLS if not tool_filters.is_offered(tool, server(write_tools=list(write)))
    )


def platform_of(*, agent: dict[str, Any] | None, **k8s: Any) -> platforms.Platform:
    """Servers k8s, prom and web, of which the last one is selectable; one agent, which has the first two."""
    transport = {"type": "http", "url": "http://s/mcp"}
    return platforms.Platform.model_validate(
        {
            "defaults": {"llm_provider": "first", "fallback_providers": ["second"]},
            "llm_providers": {
                name: {"type": "google", "model": "gemini-3-pro", "native_tools": NATIVE}
                for name in ("first", "second")
            },
            "mcp_servers": {
                "k8s": {"transport": transport, **k8s},
                "prom": {"transport": transport},
                "web": {"transport": transport, "selectable": True, "instructions": "Ask little."},
                "vault": {"transport": transport},
            },
            "agents": {} if agent is None else {"A": {"mcp_servers": ["k8s", "prom"], "tools": agent}},
        }
    )


def spec_of(
    *, agent: dict[str, Any] | None = None, stage: dict[str, Any] | None = None, member: dict[str, Any] | None = None
) -> chains.Spec:
    own = {} if agent is None else {"agents": [{"name": "A", "mcpServers": ["k8s", "prom"], "tools": agent}]}
    members = [{"name": "A", **({"tools": member} if member else {})}]
    stages = [{"name": "look", "agents": members, **({"tools": stage} if stage else {})}]
    return chains.Spec.model_validate({"alertTypes": ["T"], "stages": stages, **own})


TWO = chains.Spec.model_validate(
    {
        "alertTypes": ["T"],
        "agents": [{"name": "K", "mcpServers": ["k8s"]}, {"name": "P", "mcpServers": ["prom"]}, {"name": "N"}],
        "stages": [
            {"name": "one", "agent": "K"},
            {"name": "two", "agent": "P"},
            {"name": "three", "agent": "N"},
            {"name": "four", "agent": "K", "mcpServers": []},
        ],
    }
)
"""Agents with one server, with another, with none, and one whose stage clears them."""


def selected(mcp: dict[str, Any]) -> list[resolve.ResolvedAgent]:
    platform = platform_of(agent={})
    return grants.agents(platform, chain_name="c", chain=TWO, mcp=investigations.MCP.model_validate(mcp))


@pytest.mark.parametrize(
    ("mcp", "servers"),
    [
        ({}, [("k8s",), ("prom",), (), ()]),
        ({"servers": []}, [(), (), (), ()]),
        ({"servers": [{"name": "k8s"}]}, [("k8s",), (), (), ()]),
        ({"servers": [{"name": "prom"}, {"name": "k8s"}]}, [("k8s",), ("prom",), (), ()]),
        ({"servers": [{"name": "web"}]}, [("web",)] * 4),
        ({"servers": [{"name": "web"}, {"name": "k8s"}]}, [("web", "k8s"), ("web",), ("web",), ("web",)]),
        ({"tools": {"allow": ["k8s.get"]}}, [("k8s",), ("prom",), (), ()]),
    ],
)
def test_alert_adds_only_selectable_servers_to_an_agent(mcp: dict[str, Any], servers: list[tuple[str, ...]]) -> None:
    agents = selected(mcp)
    assert [agent.servers for agent in agents] == servers
    for agent in agents:
        instructions = (("web", "Ask little."),) if "web" in agent.servers else ()
        assert agent.server_instructions == instructions


def test_an_alerts_tools_are_those_of_the_servers_that_it_names() -> None:
    named = [{"name": "k8s", "tools": ["get", "pods*"]}, {"name": "web"}]
    (agent, *_) = selected({"servers": named, "tools": {"deny": ["web.post"]}})
    names = ["k8s.get", "k8s.pods.log", "k8s.list", "web.get", "web.post", "prom.query", "prom.get"]
    assert [name for name in names if agent.admits(name)] == ["k8s.get", "k8s.pods.log", "web.get"]


@pytest.mark.parametrize(
    ("switches", "left"),
    [
        (None, NATIVE),
        ({}, NATIVE),
        ({"google_search": False}, ["code_execution", "url_context"]),
        ({"google_search": True, "web_search": True}, NATIVE),
        (dict.fromkeys([*NATIVE, "web_search"], False), []),
    ],
)
def test_native_tools_are_only_switched_off_and_so_for_fallbacks_and_questions(
    switches: dict[str, bool] | None, left: list[str]
) -> None:
    mcp = investigations.MCP.model_validate({"nativeTools": switches})
    platform = platform_of(agent={})
    (agent,) = grants.agents(platform, chain_name="c", chain=spec_of(), mcp=mcp)
    chats = platform.model_copy(update={"agents": {**platform.agents, "ChatAgent": platforms.Agent()}})
    chat = resolve.chat_for(chats, chain_name="c", chain=spec_of(), mcp=mcp)
    for settled in (agent, chat):
        assert list(settled.native.offered) == left
        assert [list(fallback.native.offered) for fallback in settled.fallbacks] == [left]


def test_an_alert_does_not_switch_on_what_an_agent_has_switched_off() -> None:
    bare = platform_of(agent={})
    agents = {"A": bare.agents["A"].model_copy(update={"native_tools": []})}
    mcp = investigations.MCP(native_tools=dict.fromkeys(["google_search", "code_execution"], True))
    (agent,) = grants.agents(bare.model_copy(update={"agents": agents}), chain_name="c", chain=spec_of(), mcp=mcp)
    assert (agent.native.offered, agent.fallbacks[0].native.offered) == ((), ())


AVAILABLE = "Available MCP servers: k8s, prom, web"
NOT_THERE = f"which no agent of chain 'c' has and which is not selectable. {AVAILABLE}"
NOT_HAD = "that the agents of chain 'c' get"
EVERY = "Available tools: k8s.get, k8s.list, k8s.pods.log, k8s.delete, k8s.pods_exec, k8s.run, prom.query"
NONE = "stage 'look' agent 'A' gets no tool of its MCP servers (k8s, prom)"
OWN = "Available tools: get, list, pods.log"
WRITES_ONLY = "'delete' may write, and mcp_servers.k8s.write_tools does not name it"
ALL = "Available tools: k8s.get, k8s.list, k8s.pods.log, prom.query"


@pytest.mark.parametrize(
    ("mcp", "problem"),
    [
        (
            {"servers": [{"name": "k8s"}, {"name": "vault"}]},
            f"mcp.servers.1 references MCP server 'vault', {NOT_THERE}",
        ),
        (
            {"servers": [{"name": "k8s", "tools": ["get", "pods_list"]}]},
            f"mcp.servers.0.tools.1: MCP server 'k8s' has no tool 'pods_list' {NOT_HAD}. {OWN}",
        ),
        (
            {"servers": [{"name": "k8s", "tools": ["delete"]}]},
            f"mcp.servers.0.tools.0: MCP server 'k8s' has no tool 'delete' {NOT_HAD}: {WRITES_ONLY}. {OWN}",
        ),
        (
            {"tools": {"allow": ["k8s.get", "prom.range"]}},
            f"mcp.tools.allow.1: 'prom.range' is no tool {NOT_HAD}. {ALL}",
        ),
        ({"tools": {"deny": ["k8s.get", "pods_*"]}}, f"mcp.tools.deny.1: {tool_patterns.misfit('pods_*')}"),
        ({"servers": [{"name": "web", "tools": ["[x"]}]}, f"mcp.servers.0.tools.0: {tool_patterns.own_misfit('[x')}"),
        (
            {"servers": [{"name": "web"}], "tools": {"deny": ["k8s.pods_*"]}},
            f"mcp.tools.deny.0: 'k8s.pods_*' is no tool {NOT_HAD}. Available tools: none",
        ),
        ({"servers": [{"name": "web"}], "tools": {"deny": ["web.anything", "*_log"]}}, None),
        ({"tools": {"deny": ["*.delete", "k8s.pods_*", "k?s.[!g]*"]}}, None),
        ({"servers": [{"name": "k8s", "tools": ["[gl]*", "pods.*"]}, {"name": "web", "tools": ["anything"]}]}, None),
        ({"servers": [], "tools": {"deny": ["k8s.*"]}}, None),
        ({}, None),
    ],
)
def test_unknown_name_in_an_alert_is_refused_with_the_available_names(mcp: dict[str, Any], problem: str | None) -> None:
    """Nothing is known of a server that has not been connected to yet (web), and nothing is refused."""
    asked = investigations.MCP.model_validate(mcp)
    refusal = grants.selection_problem(asked, platform_of(agent={}), CATALOGUE, chain_name="c", chain=TWO)
    assert refusal == problem


@pytest.mark.parametrize(
    ("agent", "settings", "stopped", "why"),
    [
        ({}, {}, True, "'get' is stopped until an admin accepts it, because it is not what was pinned"),
        ({}, {"tools": {"deny": ["g*"]}}, False, "'get' is left out by mcp_servers.k8s.tools"),
        ({"deny": ["*.get"]}, {}, False, "'get' is left out by the tools of the chain or of its agents"),
    ],
)
def test_alert_that_selects_a_tool_without_any_agent_is_refused_with_the_reason(
    agent: dict[str, Any], settings: dict[str, Any], stopped: bool, why: str
) -> None:
    there = {"k8s": [tool_filters.Tool(name="get", read_only=True, stopped=stopped), TOOLS[1]]}
    for mcp in ({"servers": [{"name": "k8s", "tools": ["get"]}]}, {"tools": {"allow": ["k8s.get"]}}):
        asked = investigations.MCP.model_validate({"servers": [{"name": "k8s"}], **mcp})
        platform, spec = platform_of(agent=agent, **settings), spec_of()
        refusal = grants.selection_problem(asked, platform, there, chain_name="c", chain=spec)
        assert refusal is not None
        assert refusal.endswith((f"{NOT_HAD}: {why}. Available tools: list", f"{why}. Available tools: k8s.list"))
        denies = investigations.MCP(tools=chains.Tools(deny=["k8s.get"]))
        assert grants.selection_problem(denies, platform, there, chain_name="c", chain=spec) is None


@pytest.mark.parametrize(
    ("mcp", "location"),
    [
        ({"servers": [{"name": "k8s"}, {"name": "k8s"}]}, "servers: Value error, MCP server 'k8s' is named twice"),
        ({"servers": [{"name": "k8s", "tools": []}]}, "servers.0.tools: List should have at least 1 item"),
        ({"servers": [{"name": str(number)} for number in range(21)]}, "servers: List should have at most 20 items"),
        ({"nativeTools": {"browser": False}}, "nativeTools.browser.[key]: Input should be 'google_search'"),
    ],
)
def test_senseless_tool_selection_is_refused_with_its_location(mcp: dict[str, Any], location: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        investigations.MCP.model_validate(mcp)
    (error_details,) = error.value.errors()
    assert f"{'.'.join(map(str, error_details['loc']))}: {error_details['msg']}".startswith(location)


def index_of(platform: platforms.Platform, spec: chains.Spec) -> tuple[chain_index.ChainIndex, chains.AgentChain]:
    made = chains.AgentChain.model_validate({"metadata": {"name": "c", "namespace": "tarsy", "uid": "u"}, "spec": spec})
    return chain_index.ChainIndex(
        [made], platform=platform, unusable_providers={}, namespace="tarsy", own="tarsy"
    ), made


def test_chain_reports_tools_that_are_not_offered_to_its_agents() -> None:
    platform = platform_of(agent={}, write_tools=["run"], tools={"deny": ["list"]})
    index, made = index_of(platform, spec_of())
    status = index.status(made, CATALOGUE)
    assert (status.problem, index.statuses["u"].warning) == (None, None)
    assert status.warning == chain_index.Problem(
        reason="ToolsNotOffered",
        message="MCP server 'k8s' has tools that are not offered, because they may write, and "
        "mcp_servers.k8s.write_tools does not name them: delete, pods_exec; MCP server 'k8s' has tools that are not "
        "offered, because mcp_servers.k8s.tools leaves them out: list",
    )


@pytest.mark.parametrize(
    ("tool_settings", "expected"),
    [
        ({"agent": {"deny": ["p*.pod_*"]}}, f"spec.agents.0.tools.deny.0: 'p*.pod_*' matches no tool. {EVERY}"),
        (
            {"member": {"deny": ["k8s.pod_*"]}},
            f"spec.stages.0.agents.0.tools.deny.0: 'k8s.pod_*' matches no tool. {EVERY}",
        ),
        (
            {"stage": {"allow": ["prom.quer"]}},
            f"spec.stages.0.tools.allow.0: 'prom.quer' matches no tool. {EVERY}; {NONE}",
        ),
        ({"agent": {"allow": ["k8s.*"]}, "stage": {"allow": ["prom.*"]}}, NONE),
        ({"stage": {"allow": []}}, None),
        ({"agent": {"deny": ["*.delete", "web.post", "w*.*"]}, "member": {"allow": ["*"]}}, None),
    ],
)
def test_chain_reports_patterns_that_match_no_tool_and_agents_without_tools(
    tool_settings: dict[str, Any], expected: str | None
) -> None:
    """The tools of a server that an alert may add (web) are not known: no pattern that may fit one is told."""
    index, made = index_of(
        platform_of(agent={}, tools={"allow": ["get", "list"]}), spec_of(**{"agent": {}, **tool_settings})
    )
    status = index.status(made, CATALOGUE)
    assert status.problem is None
    reason, message = (status.warning.reason, status.warning.message) if status.warning else ("", "")
    if expected is None:
        assert reason in ("", "ToolsNotOffered")
    else:
        assert (reason, message.split("; MCP server")[0]) == ("PatternsMatchNothing", expected)


def test_unmatched_patterns_of_platform_agents_are_reported_by_chains_and_file_check() -> None:
    platform = platform_of(agent={"deny": ["k8s.pods"], "allow": ["prom.*", "k8s.drop"]}, tools={"deny": ["query"]})
    unfit_patterns = ["agents.A.tools.allow.1: 'k8s.drop' matches no tool"]
    unfit_patterns += [f"agents.A.tools.deny.0: 'k8s.pods' matches no tool. {EVERY}"]
    assert list(ineffective.unfit_in_file(platform, CATALOGUE)) == unfit_patterns
    index, made = index_of(platform, spec_of())
    warning = index.status(made, CATALOGUE).warning
    assert warning is not None
    assert warning.message.startswith("; ".join(f"platform file: {pattern}" for pattern in unfit_patterns))
    nothing = platform_of(agent={"allow": ["*.delete"]})
    assert list(ineffective.unfit_in_file(nothing, CATALOGUE)) == [
        "agents.A gets no tool of its MCP servers (k8s, prom)"
    ]
    assert list(ineffective.unfit_in_file(nothing, {})) == []


def test_the_index_refuses_what_an_alert_cannot_have() -> None:
    index, made = index_of(platform_of(agent={}), TWO)
    index.check_tool_selection(made, None, CATALOGUE)
    index.check_tool_selection(made, investigations.MCP(servers=[investigations.MCPServer(name="web")]), CATALOGUE)
    with pytest.raises(chain_index.UnservedError) as error:
        index.check_tool_selection(
            made, investigations.MCP(servers=[investigations.MCPServer(name="vault")]), CATALOGUE
        )
    assert error.value.problem.reason == "MCPSelectionInvalid"
    assert str(error.value).endswith(AVAILABLE)

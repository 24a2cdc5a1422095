"""Access of namespaces: for a chain, all that it can reach, and for two namespaces, what both may use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.config import resolve
from tarsy.config.check import chain_index, lint
from tarsy.config.load import loader
from tarsy.config.model import budgets, deliveries, platforms, reach
from tarsy.resources import chains, files, investigations

OWN, TEAM, OTHER = "tarsy", "team-a", "team-b"
MODEL = {"type": "google", "model": "gemini-2.5-flash"}
STDIO = {"transport": {"type": "stdio", "command": "mcp"}}
EVERYWHERE = {"allowed_namespaces": ["*"]}
STAGE = {"name": "look", "agent": "A"}


def platform(*, providers: dict[str, Any] | None = None, servers: dict[str, Any] | None = None) -> platforms.Platform:
    """A platform whose provider `main` and server `k8s` are for all; and these, with their settings."""
    given_providers = {"main": EVERYWHERE} | (providers or {})
    given_servers = {"k8s": EVERYWHERE} | (servers or {})
    return platforms.Platform.model_validate(
        {
            "defaults": {"llm_provider": "main"},
            "llm_providers": {name: MODEL | settings for name, settings in given_providers.items()},
            "mcp_servers": {name: STDIO | settings for name, settings in given_servers.items()},
            "agents": {"A": {"mcp_servers": ["k8s"]}, "SynthesisAgent": {}, "ChatAgent": {}},
        }
    )


def chain(*, namespace: str = OWN, name: str = "c", types: tuple[str, ...] = ("A",), **spec: Any) -> chains.AgentChain:
    described = {"alertTypes": list(types), "stages": [STAGE]} | spec
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "generation": 1}
    return chains.AgentChain.model_validate({"metadata": metadata, "spec": described})


def index(
    *listed: chains.AgentChain, of: platforms.Platform, namespace: str = TEAM, own: str = OWN
) -> chain_index.ChainIndex:
    return chain_index.ChainIndex(listed, platform=of, unusable_providers={}, namespace=namespace, own=own)


def problem(
    of: chains.AgentChain, settings: platforms.Platform, *, namespace: str = TEAM
) -> chain_index.Problem | None:
    return index(of, of=settings, namespace=namespace).statuses[of.metadata.uid].problem


PAIR = [{"name": "look", "agents": [{"name": "A"}, {"name": "A"}]}]
REACHED: dict[str, dict[str, Any]] = {
    "the chain's provider": {"llmProvider": "x"},
    "a stage's provider": {"stages": [STAGE | {"llmProvider": "x"}]},
    "a replica's provider": {"stages": [STAGE | {"replicas": 3, "llmProvider": "x"}]},
    "an agent of a stage": {"stages": [{"name": "look", "agents": [{"name": "A"}, {"name": "A", "llmProvider": "x"}]}]},
    "an agent of the chain, in use or not": {"agents": [{"name": "B", "llmProvider": "x"}]},
    "a fallback": {"fallbackProviders": ["x"]},
    "a fallback of a stage": {"stages": [STAGE | {"fallbackProviders": ["main", "x"]}]},
    "the synthesis": {"stages": [PAIR[0] | {"synthesis": {"llmProvider": "x"}}]},
    "a synthesis that is not due": {"stages": [STAGE | {"synthesis": {"llmProvider": "x"}}]},
    "the summary": {"executiveSummary": {"llmProvider": "x"}},
    "a summary that is off": {"executiveSummary": {"enabled": False, "llmProvider": "x"}},
    "the chat": {"chat": {"llmProvider": "x"}},
    "the chain's servers": {"mcpServers": ["x"]},
    "a stage's servers": {"stages": [STAGE | {"mcpServers": ["k8s", "x"]}]},
    "servers of an agent of the chain": {"agents": [{"name": "B", "mcpServers": ["x"]}]},
}


@pytest.mark.parametrize("spec", REACHED.values(), ids=REACHED)
@pytest.mark.parametrize("allowed", [None, [OWN], [TEAM], [OTHER], []], ids=str)
def test_all_that_a_chain_reaches_has_to_be_allowed_in_its_namespace_and_the_investigations(
    spec: dict[str, Any], allowed: list[str] | None
) -> None:
    settings = {} if allowed is None else {"allowed_namespaces": allowed}
    platform_settings = platform(providers={"x": settings}, servers={"x": settings})
    of_operator = chain(**spec)
    here = problem(of_operator, platform_settings)
    assert here is not None
    assert here.reason == "ReferenceNotPermitted"
    excluded = TEAM if OWN in (allowed if allowed is not None else [OWN]) else OWN
    listed = ", ".join(allowed) or "none" if allowed is not None else OWN
    assert f" 'x', which is not allowed in namespace '{excluded}'. Allowed namespaces: {listed}" in here.message
    assert here.message.startswith("Chain 'c'")
    # Where it belongs, only its own namespace counts: that is what its conditions say.
    at_home = problem(of_operator, platform_settings, namespace=OWN)
    assert (at_home is None) == (allowed is None or OWN in allowed)
    of_team = problem(chain(namespace=TEAM, **spec), platform_settings)
    assert (of_team is None) == (allowed is not None and TEAM in allowed)


@pytest.mark.parametrize("allowed", [["*"], [OWN, TEAM], [TEAM, "x", OWN]], ids=str)
@pytest.mark.parametrize("spec", REACHED.values(), ids=REACHED)
def test_names_that_both_namespaces_may_use_are_usable(spec: dict[str, Any], allowed: list[str]) -> None:
    settings = {"allowed_namespaces": allowed}
    assert problem(chain(**spec), platform(providers={"x": settings}, servers={"x": settings})) is None


def test_providers_of_the_defaults_and_of_summaries_count_too() -> None:
    fallback = platform(providers={"x": {}}).model_copy(
        update={"defaults": platforms.Defaults(llm_provider="main", fallback_providers=["x"])}
    )
    found_problem = problem(chain(), fallback)
    assert found_problem is not None
    assert (
        "fallbackProviders references LLM provider 'x', which is not allowed in namespace 'team-a'"
        in found_problem.message
    )
    summarizer = {"allowed_namespaces": ["*"], "summarization": {"llm_provider": "x"}}
    found_problem = problem(chain(), platform(providers={"x": {}}, servers={"k8s": summarizer}))
    assert found_problem is not None
    assert found_problem.message == (
        "Chain 'c' stage 'look' references MCP server 'k8s', whose summaries need LLM provider 'x', which is not "
        "allowed in namespace 'team-a'. Allowed namespaces: tarsy"
    )


def test_an_alert_cannot_select_a_server_that_its_namespace_may_not_use() -> None:
    settings = platform(servers={"mine": {"selectable": True}, "open": {"selectable": True, **EVERYWHERE}})
    used = chain()
    team = index(used, of=settings)
    assert [choice.name for choice in team.selectable_servers(used, catalogue={})] == ["k8s", "open"]
    team.check_tool_selection(used, investigations.MCP(servers=[investigations.MCPServer(name="open")]), {})
    with pytest.raises(chain_index.UnservedError) as refused:
        team.check_tool_selection(used, investigations.MCP(servers=[investigations.MCPServer(name="mine")]), {})
    assert str(refused.value) == (
        "mcp.servers.0 references MCP server 'mine', which is not allowed in namespace 'team-a'. "
        "Allowed namespaces: tarsy"
    )
    home = index(used, of=settings, namespace=OWN)
    home.check_tool_selection(used, investigations.MCP(servers=[investigations.MCPServer(name="mine")]), {})


def test_a_process_that_does_not_know_its_namespace_allows_nothing_without_a_list() -> None:
    restricted = reach.platform_for(platform(providers={"x": {}}), ["", OWN], own="")
    assert restricted.llm_providers.keys() == {"main"}
    assert "set TARSY_NAMESPACE" in restricted.not_allowed("LLM provider", "x")


def test_a_chain_of_the_team_comes_before_the_operators() -> None:
    listed = [
        chain(name="c", types=("A", "B")),
        chain(name="c", types=("B", "C"), namespace=TEAM, llmProvider="x"),
        chain(name="d", types=("A",)),
    ]
    team = index(*listed, of=platform(providers={"x": {}}))
    assert team.chain_for("A").metadata.namespace == OWN
    for look_up, name in ((team.chain_for, "B"), (team.chain_named, "c")):  # also if it is not ready
        with pytest.raises(chain_index.UnservedError) as refused:
            look_up(name)
        assert refused.value.problem.reason == "ChainNotReady"
        assert str(refused.value).startswith("Chain 'c' is not ready: Chain 'c' stage 'look' references LLM provider")
    conflict = team.statuses[f"{OWN}/d"].acceptance
    assert conflict is not None
    assert "chain 'c' has it" in conflict.message, "types conflict within a namespace only"
    assert team.statuses[f"{TEAM}/c"].acceptance is None
    with pytest.raises(chain_index.UnservedError, match="Available alert types: A, B, C"):
        team.chain_for("Z")
    with pytest.raises(chain_index.UnservedError) as refused:
        index(chain(llmProvider="x"), of=platform(providers={"x": {}})).chain_for("A")
    assert str(refused.value).startswith("Chain 'c' of namespace 'tarsy' is not ready here: Chain 'c' stage")


NAMES = st.sampled_from([OWN, TEAM, OTHER, "*"])
ALLOWED = st.none() | st.lists(NAMES, max_size=3, unique=True)


@given(
    allowed=st.tuples(*[ALLOWED] * 4),
    home=st.sampled_from([OWN, TEAM]),
    spec=st.fixed_dictionaries(
        {},
        optional={
            "llmProvider": st.sampled_from(["p", "q"]),
            "fallbackProviders": st.lists(st.sampled_from(["p", "q"]), max_size=2),
            "mcpServers": st.lists(st.sampled_from(["s", "t"]), max_size=2, unique=True),
        },
    ),
    selected=st.none() | st.lists(st.sampled_from(["s", "t"]), max_size=2, unique=True),
)
def test_name_is_resolved_only_if_allowed_in_both_namespaces(
    allowed: tuple[list[str] | None, ...], home: str, spec: dict[str, Any], selected: list[str] | None
) -> None:
    lists = dict(zip("pqst", allowed, strict=True))
    settings = {name: {} if names is None else {"allowed_namespaces": names} for name, names in lists.items()}
    platform_settings = platform(
        providers={name: settings[name] for name in "pq"},
        servers={name: settings[name] | {"selectable": True} for name in "st"},
    )
    restricted = reach.platform_for(platform_settings, [home, TEAM], own=OWN)
    parsed = chain(namespace=home, **spec).spec
    stage = parsed.stages[0]
    mcp = None if selected is None else investigations.MCP(servers=[investigations.MCPServer(name=n) for n in selected])
    try:
        agents = [
            resolve.agent_for(restricted, chain_name="c", chain=parsed, stage=stage, member=stage.members[0], mcp=mcp),
            resolve.summary_for(restricted, chain_name="c", chain=parsed),
            resolve.chat_for(restricted, chain_name="c", chain=parsed, mcp=mcp),
        ]
    except resolve.NotAllowedError:
        return
    for agent in agents:
        for name in {agent.provider, *(fallback.provider for fallback in agent.fallbacks), *agent.servers}:
            names = lists.get(name, ["*"])
            listed = [OWN] if names is None else names
            assert "*" in listed or {home, TEAM} <= {*listed}, name


def test_lint_checks_allowed_namespaces_for_chains_that_name_a_namespace() -> None:
    settings = platform(providers={"x": {"allowed_namespaces": [TEAM]}, "own": {}})

    def linted(namespace: str, provider: str) -> list[str]:
        text = (
            "apiVersion: tarsy.dev/v1alpha1\nkind: AgentChain\n"
            f"metadata: {{name: c{namespace and f', namespace: {namespace}'}}}\n"
            f"spec: {{alertTypes: [A], stages: [{{name: look, agent: A, llmProvider: {provider}}}]}}\n"
        )
        return [str(each) for each in lint.problems(files.parse(text, file="f"), platform=settings)]

    assert linted("", "x") == linted(TEAM, "x") == linted(OTHER, "own") == []
    (line,) = linted(OTHER, "x")
    assert line == (
        "f:4: Chain 'c' stage 'look' references LLM provider 'x', which is not allowed in namespace 'team-b'. "
        "Allowed namespaces: team-a"
    )


def test_a_list_of_namespaces_has_names_or_the_asterisk() -> None:
    def refused(value: str) -> str:
        text = f"llm_providers: {{g: {{type: google, model: m, allowed_namespaces: {value}}}}}"
        with pytest.raises(files.FileError) as error:
            loader.loaded(files.parse(text, file="f")[0], environment={})
        return str(error.value)

    assert "llm_providers.g.allowed_namespaces.1: neither the name of a namespace, such as team-a, nor *" in refused(
        "[a, Team_A]"
    )
    assert "allowed_namespaces.0: neither" in refused("['team-*']")
    assert "allowed_namespaces" in refused("team-a")


def test_namespaces_that_are_not_served_are_reported() -> None:
    settings = platform(
        providers={"x": {"allowed_namespaces": [TEAM, OWN, "*"]}}, servers={"s": {"allowed_namespaces": ["team-x"]}}
    ).model_copy(
        update={
            "deliveries": {"hook": deliveries.Webhook(type="webhook", url="http://hook/", allowed_namespaces=[TEAM])},
            "budgets": {
                "all": budgets.Budget(scope="all", per="day", model_calls=10),
                "team": budgets.Budget(scope="namespace", of="team-x", per="day", model_calls=10),
                "own": budgets.Budget(scope="chain", of=f"{OWN}/crash", per="day", model_calls=10),
            },
        }
    )
    assert reach.unserved(settings, own="") == [], "one that is not known may be the operator's own"
    remedy = "is not served and has no effect: add it to namespaces, or remove it"
    assert reach.unserved(settings, own=OWN) == [
        f"llm_providers.x.allowed_namespaces: '{TEAM}' {remedy}",
        f"mcp_servers.s.allowed_namespaces: 'team-x' {remedy}",
        f"deliveries.hook.allowed_namespaces: '{TEAM}' {remedy}",
        f"budgets.team.of: 'team-x' {remedy}",
    ]
    assert reach.unserved(settings.model_copy(update={"namespaces": [TEAM, "team-x"]}), own=OWN) == []

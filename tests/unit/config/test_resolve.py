from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.resources import base, chains


def settle(
    platform: platforms.Platform,
    *,
    agent: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    stage: dict[str, Any] | None = None,
) -> resolve.ResolvedAgent:
    """Resolve an agent of the one stage of a chain, with these fields set on agent, chain and stage."""
    own = platforms.Agent.model_validate({"mcp_servers": ["k8s"], **(agent or {})})
    alone = {} if stage and "agents" in stage else {"agent": "KubernetesAgent"}
    described = {"alertTypes": ["A"], "stages": [{"name": "look", **alone, **(stage or {})}], **(spec or {})}
    parsed = chains.Spec.model_validate(described)
    changed = platform.model_copy(update={"agents": {"KubernetesAgent": own, "Other": own}})
    look = parsed.stages[0]
    return resolve.agent_for(changed, chain_name="c", chain=parsed, stage=look, member=look.members[0])


def test_missing_provider_is_reported_with_where_to_set_it(platform: platforms.Platform) -> None:
    with pytest.raises(resolve.UnresolvedError, match=r"Chain 'c' stage 'look' has no LLM provider: set llmProvider"):
        settle(platform.model_copy(update={"defaults": platforms.Defaults()}))


def test_instructions_of_the_agents_own_servers_come_along(platform: platforms.Platform) -> None:
    server = platform.mcp_servers["k8s"].model_copy(update={"instructions": "Prefer namespaced queries."})
    changed = platform.model_copy(update={"mcp_servers": {"k8s": server, "silent": platform.mcp_servers["k8s"]}})
    settled = settle(changed, agent={"mcp_servers": ["silent", "k8s"], "custom_instructions": "Be brief."})
    assert settled.server_instructions == (("k8s", "Prefer namespaced queries."),)
    assert settled.custom_instructions == "Be brief."


# Every level for every setting: each level of `LEVELS` says something else, and every choice of them is tried.

LEVELS = ("defaults", "agent", "chain", "stage", "stage agent")
SERVERS = ("k8s", "one", "two", "three")
SAID: dict[str, dict[str, Any]] = {
    "llm_provider": dict(zip(LEVELS, ("first", "second", "third", "fourth", "fifth"), strict=True)),
    "iteration_strategy": dict(
        zip(LEVELS, ("react-stage", "native-thinking", "react", "synthesis", "react-final-analysis"), strict=True)
    ),
    "max_iterations": dict(zip(LEVELS, (1, 2, 3, 4, 5), strict=True)),
    "mcp_servers": {"agent": ["k8s", "one"], "chain": ["two"], "stage": [], "stage agent": ["three", "k8s"]},
}
"""By setting, what each level says of it; a level that is missing cannot say anything."""
UNSAID: dict[str, Any] = {
    "llm_provider": None,
    "iteration_strategy": "native-thinking",
    "max_iterations": 20,
    "mcp_servers": [],
}


def subsets(levels: Iterable[str]) -> list[tuple[str, ...]]:
    """Every choice of these levels, each in their order."""
    named_levels = tuple(levels)
    return [chosen for size in range(len(named_levels) + 1) for chosen in itertools.combinations(named_levels, size)]


def wire(fields: dict[str, Any]) -> dict[str, Any]:
    return {base.camel(name): value for name, value in fields.items()}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A platform and a chain of one stage with one agent, where some levels say something."""

    platform: platforms.Platform
    spec: chains.Spec

    @classmethod
    def from_levels(cls, levels: dict[str, dict[str, Any]], *, own: bool, **blocks: Any) -> Case:
        """`said` by level; `own` makes the agent one of the chain's; `blocks` are added to chain and stage."""
        google = {"type": "google", "model": "gemini-2.5-flash"}
        server = {"transport": {"type": "stdio", "command": "server"}}
        agent = levels.get("agent", {})
        platform = platforms.Platform.model_validate(
            {
                "llm_providers": dict.fromkeys((*SAID["llm_provider"].values(), "sixth"), google),
                "defaults": levels.get("defaults", {}),
                "mcp_servers": dict.fromkeys(SERVERS, server),
                "agents": {} if own else {"Agent": agent},
            }
        )
        members = [{"name": "Agent", **wire(levels.get("stage agent", {}))}]
        stage = {"name": "look", "agents": members, **wire(levels.get("stage", {}))}
        spec = {"alertTypes": ["A"], **wire(levels.get("chain", {}))}
        if own:
            spec["agents"] = [{"name": "Agent", **wire(agent)}]
        synthesis = {"synthesis": blocks.pop("synthesis")} if "synthesis" in blocks else {}
        parsed = chains.Spec.model_validate({**spec, "stages": [{**stage, **synthesis}], **blocks})
        return cls(platform=platform, spec=parsed)

    @property
    def stage(self) -> chains.Stage:
        return self.spec.stages[0]

    def settled(self) -> resolve.ResolvedAgent:
        (member,) = self.stage.members
        return resolve.agent_for(self.platform, chain_name="c", chain=self.spec, stage=self.stage, member=member)


@pytest.mark.parametrize("own", [False, True], ids=["the platform's agent", "the chain's own agent"])
@pytest.mark.parametrize("setting", SAID)
def test_last_of_any_levels_that_say_something_wins(setting: str, own: bool) -> None:
    values_by_level = SAID[setting]
    for levels in subsets(values_by_level):
        if setting == "llm_provider" and not levels:
            continue  # nothing can be settled then
        settings = {level: {setting: values_by_level[level]} for level in levels}
        if setting != "llm_provider":
            settings["defaults"] = {"llm_provider": "first", **settings.get("defaults", {})}
        case = Case.from_levels(settings, own=own)
        wanted = values_by_level[levels[-1]] if levels else UNSAID[setting]
        agent = case.settled()
        match setting:
            case "llm_provider":
                assert agent.provider == wanted, levels
            case "iteration_strategy":
                assert agent.strategy == wanted, levels
            case "max_iterations":
                assert agent.max_iterations == wanted, levels
            case "mcp_servers":
                assert agent.servers == tuple(wanted), levels


ELSEWHERE = {
    level: {setting: SAID[setting][level] for setting in SAID if level in SAID[setting]}
    for level in ("chain", "stage", "stage agent")
}
"""A chain, a stage and a stage agent that say something of everything: nothing of it is for what follows."""


def follow(kind: str, case: Case) -> resolve.ResolvedAgent:
    match kind:
        case "synthesis":
            return resolve.synthesis_for(case.platform, chain_name="c", chain=case.spec, stage=case.stage)
        case "chat":
            return resolve.chat_for(case.platform, chain_name="c", chain=case.spec)
        case _:
            return resolve.summary_for(case.platform, chain_name="c", chain=case.spec)


@pytest.mark.parametrize("own", [False, True], ids=["the platform's agent", "the chain's own agent"])
@pytest.mark.parametrize(
    ("kind", "setting", "values_by_level", "unsaid"),
    [
        ("synthesis", "llm_provider", {"defaults": "first", "agent": "second", "block": "sixth"}, None),
        (
            "synthesis",
            "iteration_strategy",
            {"defaults": "synthesis", "agent": "synthesis-native-thinking", "block": "synthesis"},
            "synthesis-native-thinking",
        ),
        ("chat", "llm_provider", {"defaults": "first", "agent": "second", "block": "sixth"}, None),
        ("chat", "iteration_strategy", {"defaults": "react", "agent": "react-stage"}, "native-thinking"),
        ("chat", "max_iterations", {"defaults": 7, "agent": 8, "block": 9}, 20),
        ("executiveSummary", "llm_provider", {"defaults": "first", "block": "sixth"}, None),
    ],
)
def test_agents_that_follow_take_nothing_of_chain_and_stage(
    kind: str, setting: str, values_by_level: dict[str, Any], unsaid: object, own: bool
) -> None:
    for levels in subsets(values_by_level):
        if setting == "llm_provider" and not levels:
            continue
        platform = {level: {setting: values_by_level[level]} for level in levels if level != "block"}
        if setting != "llm_provider":
            platform["defaults"] = {"llm_provider": "first", **platform.get("defaults", {})}
        block = {setting: values_by_level["block"]} if "block" in levels else {}
        named = {} if kind == "executiveSummary" else {"agent": "Agent"}
        case = Case.from_levels({**ELSEWHERE, **platform}, own=own, **{kind: {**named, **wire(block)}})
        agent = follow(kind, case)
        attribute = {"llm_provider": "provider", "iteration_strategy": "strategy"}.get(setting, setting)
        assert getattr(agent, attribute) == (values_by_level[levels[-1]] if levels else unsaid), levels


@pytest.mark.parametrize("own", [False, True], ids=["the platform's agent", "the chain's own agent"])
def test_synthesis_and_summary_make_one_call_and_like_chat_add_no_servers(own: bool) -> None:
    agent = {"max_iterations": 8, "mcp_servers": ["k8s"], "custom_instructions": "Be brief."}
    defaults = {"llm_provider": "first", "max_iterations": 7, "iteration_strategy": "native-thinking"}
    blocks = {"synthesis": {"agent": "Agent"}, "chat": {"agent": "Agent"}}
    case = Case.from_levels({**ELSEWHERE, "agent": agent, "defaults": defaults}, own=own, **blocks)
    followers = {kind: follow(kind, case) for kind in ("synthesis", "chat", "executiveSummary")}
    assert {kind: (follower.max_iterations, follower.custom_instructions) for kind, follower in followers.items()} == {
        "synthesis": (1, "Be brief."),
        "chat": (8, "Be brief."),
        "executiveSummary": (1, ""),
    }
    assert followers["executiveSummary"].strategy == "synthesis"
    assert {(follower.servers, follower.server_instructions) for follower in followers.values()} == {((), ())}


@pytest.mark.parametrize(
    ("strategy", "synthesis"),
    [
        ("native-thinking", "synthesis-native-thinking"),
        ("synthesis-native-thinking", "synthesis-native-thinking"),
        ("synthesis", "synthesis"),
        ("react", "synthesis"),
        ("react-stage", "synthesis"),
        ("react-final-analysis", "synthesis"),
    ],
)
def test_a_strategy_that_brings_nothing_together_gives_way_to_its_dialects_own(strategy: str, synthesis: str) -> None:
    for settings in ({"agent": {"iteration_strategy": strategy}}, {"defaults": {"iteration_strategy": strategy}}):
        defaults = {"llm_provider": "first", **settings.get("defaults", {})}
        case = Case.from_levels({**settings, "defaults": defaults}, own=False, synthesis={"agent": "Agent"})
        assert follow("synthesis", case).strategy == synthesis


def spec_of(**fields: Any) -> chains.Spec:
    stage = {"name": "look", "agents": [{"name": "KubernetesAgent"}] * 2}
    return chains.Spec.model_validate({"alertTypes": ["A"], "stages": [stage], **fields})


def test_built_in_agents_follow_if_there_are_no_blocks(platform: platforms.Platform) -> None:
    spec = spec_of()
    agents = [
        resolve.synthesis_for(platform, chain_name="c", chain=spec, stage=spec.stages[0]),
        resolve.chat_for(platform, chain_name="c", chain=spec),
        resolve.summary_for(platform, chain_name="c", chain=spec),
    ]
    assert [(agent.name, agent.strategy, agent.max_iterations, agent.custom_instructions) for agent in agents] == [
        ("SynthesisAgent", "synthesis", 1, "Weigh it."),
        ("ChatAgent", "native-thinking", 20, ""),
        ("ExecutiveSummary", "synthesis", 1, ""),
    ]
    assert {agent.provider for agent in agents} == {"first"}


def test_chains_own_agent_replaces_the_built_in_agent_of_the_same_name(platform: platforms.Platform) -> None:
    spec = spec_of(agents=[{"name": "SynthesisAgent", "customInstructions": "Vote."}, {"name": "ChatAgent"}])
    synthesis = resolve.synthesis_for(platform, chain_name="c", chain=spec, stage=spec.stages[0])
    assert (synthesis.custom_instructions, synthesis.strategy) == ("Vote.", "synthesis-native-thinking")

from __future__ import annotations

from typing import Any

import pytest
from tarsy.config import platform as platforms
from tarsy.config import resolve
from tarsy.resources import chain


def settle(
    platform: platforms.Platform,
    *,
    agent: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    stage: dict[str, Any] | None = None,
    index: int = 0,
) -> resolve.ResolvedAgent:
    """Resolve an agent of the one stage of a chain, with these fields set on agent, chain and stage."""
    own = platforms.Agent.model_validate({"mcp_servers": ["k8s"], **(agent or {})})
    alone = {} if stage and "agents" in stage else {"agent": "KubernetesAgent"}
    described = {
        "alertTypes": ["A"],
        "stages": [{"name": "look", **alone, **(stage or {})}],
        **(spec or {}),
    }
    parsed = chain.Spec.model_validate(described)
    changed = platform.model_copy(update={"agents": {"KubernetesAgent": own, "Other": own}})
    look = parsed.stages[0]
    return resolve.agent_for(changed, chain_name="c", chain=parsed, stage=look, member=look.members[index])


@pytest.mark.parametrize(
    ("agent", "spec", "stage", "expected"),
    [
        ({}, {}, {}, ("first", 20, ("k8s",))),
        ({"llm_provider": "second", "max_iterations": 1}, {}, {}, ("second", 1, ("k8s",))),
        (
            {"llm_provider": "second", "max_iterations": 1},
            {"llmProvider": "first", "maxIterations": 2, "mcpServers": []},
            {},
            ("first", 2, ()),
        ),
        (
            {"mcp_servers": []},
            {"llmProvider": "first", "maxIterations": 2, "mcpServers": []},
            {"llmProvider": "second", "maxIterations": 3, "mcpServers": ["k8s"]},
            ("second", 3, ("k8s",)),
        ),
        ({}, {"mcpServers": ["k8s"]}, {"mcpServers": []}, ("first", 20, ())),
        (
            {},
            {"llmProvider": "first", "maxIterations": 2},
            {
                "llmProvider": "first",
                "maxIterations": 3,
                "mcpServers": [],
                "agents": [
                    {"name": "KubernetesAgent", "llmProvider": "second", "maxIterations": 4, "mcpServers": ["k8s"]}
                ],
            },
            ("second", 4, ("k8s",)),
        ),
        (
            {},
            {},
            {"llmProvider": "second", "maxIterations": 3, "agents": [{"name": "KubernetesAgent", "mcpServers": []}]},
            ("second", 3, ()),
        ),
        (
            {},
            {"maxIterations": 2},
            {"llmProvider": "second", "replicas": 3},
            ("second", 2, ("k8s",)),
        ),
    ],
    ids=[
        "defaults",
        "agent",
        "chain, which clears",
        "stage",
        "stage, which clears",
        "stage agent",
        "stage agent, which clears",
        "one of several",
    ],
)
def test_the_most_specific_setting_wins_and_lists_replace(
    platform: platforms.Platform, agent: dict[str, Any], spec: dict[str, Any], stage: dict[str, Any], expected: object
) -> None:
    found = settle(platform, agent=agent, spec=spec, stage=stage)
    assert (found.provider, found.max_iterations, found.servers) == expected
    assert (found.name, found.strategy) == ("KubernetesAgent", "native-thinking")


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ({"agent": "X"}, "references unknown agent 'X'. Available agents: KubernetesAgent, Local, Other"),
        ({"llmProvider": "X"}, "references unknown LLM provider 'X'. Available LLM providers: first, second"),
        ({"mcpServers": ["k8s", "X"]}, "references unknown MCP server 'X'. Available MCP servers: k8s"),
        (
            {"agents": [{"name": "Local", "llmProvider": "X"}]},
            "references unknown LLM provider 'X'. Available LLM providers: first, second",
        ),
        ({"agents": [{"name": "X"}]}, "references unknown agent 'X'. Available agents: KubernetesAgent, Local, Other"),
    ],
)
def test_a_dangling_reference_is_named_with_its_place_and_what_there_is(
    platform: platforms.Platform, stage: dict[str, Any], problem: str
) -> None:
    with pytest.raises(resolve.UnresolvedError) as error:
        settle(platform, spec={"agents": [OWN]}, stage=stage)
    assert str(error.value) == f"Chain 'c' stage 'look' {problem}"


OWN = {
    "name": "Local",
    "mcpServers": ["k8s"],
    "customInstructions": "Look at disks.",
    "llmProvider": "second",
    "maxIterations": 3,
}


def test_an_agent_of_the_chains_own_is_settled_like_one_of_the_platform(platform: platforms.Platform) -> None:
    found = settle(platform, spec={"agents": [OWN]}, stage={"agent": "Local"})
    assert (found.name, found.provider, found.max_iterations, found.servers) == ("Local", "second", 3, ("k8s",))
    assert found.custom_instructions == "Look at disks."
    stage = {"agent": "Local", "llmProvider": "first", "mcpServers": []}
    overridden = settle(platform, spec={"agents": [OWN], "maxIterations": 4}, stage=stage)
    assert (overridden.provider, overridden.max_iterations, overridden.servers) == ("first", 4, ())
    hiding = settle(platform, spec={"agents": [{"name": "KubernetesAgent"}]})
    assert hiding.servers == (), "it replaces the platform's agent whole"


def test_without_any_provider_it_says_where_to_set_one(platform: platforms.Platform) -> None:
    with pytest.raises(resolve.UnresolvedError, match=r"Chain 'c' stage 'look' has no LLM provider: set llmProvider"):
        settle(platform.model_copy(update={"defaults": platforms.Defaults()}))


def test_instructions_of_the_agents_own_servers_come_along(platform: platforms.Platform) -> None:
    told = platform.mcp_servers["k8s"].model_copy(update={"instructions": "Prefer namespaced queries."})
    changed = platform.model_copy(update={"mcp_servers": {"k8s": told, "silent": platform.mcp_servers["k8s"]}})
    found = settle(changed, agent={"mcp_servers": ["silent", "k8s"], "custom_instructions": "Be brief."})
    assert found.server_instructions == (("k8s", "Prefer namespaced queries."),)
    assert found.custom_instructions == "Be brief."


def test_each_of_several_agents_is_settled_by_its_own_word(platform: platforms.Platform) -> None:
    stage = {
        "maxIterations": 9,
        "agents": [{"name": "KubernetesAgent"}, {"name": "Other", "maxIterations": 5}, {"name": "Local"}],
    }
    found = [settle(platform, spec={"agents": [OWN]}, stage=stage, index=index) for index in range(3)]
    assert [(one.name, one.provider, one.max_iterations) for one in found] == [
        ("KubernetesAgent", "first", 9),
        ("Other", "first", 5),
        ("Local", "second", 9),
    ]

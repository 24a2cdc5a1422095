"""Fallback providers and native tools: what an execution is given of them, from which level."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.resources import chains

PROVIDERS: dict[str, dict[str, Any]] = {
    "google": {"type": "google", "model": "gemini-2.5-flash", "native_tools": ["google_search", "code_execution"]},
    "google-3": {
        "type": "google",
        "model": "gemini-3-pro",
        "native_tools": ["url_context", "url_context"],
        "native_tools_with_mcp": "auto",
    },
    "google-2-auto": {
        "type": "google",
        "model": "gemini-2.5-pro",
        "native_tools": ["google_search"],
        "native_tools_with_mcp": "auto",
    },
    "vertex-3": {"type": "vertexai", "model": "gemini-3-pro", "native_tools": ["google_search"]},
    "bare": {"type": "google", "model": "gemini-2.5-flash"},
    "openai": {"type": "openai", "model": "m", "api": "responses", "native_tools": ["web_search"]},
    "xai": {"type": "xai", "model": "m"},
}
BOTH = ("google_search", "code_execution")


def settled(
    *,
    provider: str = "google",
    native: list[str] | None = None,
    fallbacks: dict[str, list[str]] | None = None,
    own: bool = False,
    **blocks: Any,
) -> tuple[platforms.Platform, chains.Spec]:
    """A platform of all providers and a chain of one agent that asks `provider` and wants `native`.

    `said` are the fallback providers of each level; `own` makes the agent one of the chain's.
    """
    fallbacks = fallbacks or {}
    named = {level: {"fallbackProviders": providers} for level, providers in fallbacks.items()}
    agent = {"native_tools": native}
    platform = platforms.Platform.model_validate(
        {
            "llm_providers": PROVIDERS,
            "defaults": {"llm_provider": provider, "fallback_providers": fallbacks.get("defaults", [])},
            "agents": {"SynthesisAgent": {}, "ChatAgent": agent} | ({} if own else {"Agent": agent}),
        }
    )
    members = [{"name": "Agent", **named.get("stage agent", {})}]
    stage = {"name": "look", "agents": members, **named.get("stage", {})}
    agents = [{"name": "Agent", "nativeTools": native}] if own else []
    spec = {"alertTypes": ["A"], "agents": agents, "stages": [stage], **named.get("chain", {}), **blocks}
    return platform, chains.Spec.model_validate(spec)


def agent(platform: platforms.Platform, spec: chains.Spec) -> resolve.ResolvedAgent:
    (stage,) = spec.stages
    return resolve.agent_for(platform, chain_name="c", chain=spec, stage=stage, member=stage.members[0])


def following(platform: platforms.Platform, spec: chains.Spec) -> dict[str, resolve.ResolvedAgent]:
    return {
        "synthesis": resolve.synthesis_for(platform, chain_name="c", chain=spec, stage=spec.stages[0]),
        "chat": resolve.chat_for(platform, chain_name="c", chain=spec),
        "summary": resolve.summary_for(platform, chain_name="c", chain=spec),
    }


def names(resolved: resolve.ResolvedAgent) -> tuple[str, ...]:
    return tuple(fallback.provider for fallback in resolved.fallbacks)


FALLBACKS: dict[str, list[str]] = {
    "defaults": ["bare", "xai"],
    "chain": ["google-3"],
    "stage": [],
    "stage agent": ["openai", "vertex-3"],
}


@pytest.mark.parametrize("own", [False, True], ids=["the platform's agent", "the chain's own agent"])
def test_the_last_level_that_names_fallbacks_wins_and_an_empty_list_clears(own: bool) -> None:
    for size in range(len(FALLBACKS) + 1):
        for levels in itertools.combinations(FALLBACKS, size):
            resolved = agent(*settled(fallbacks={level: FALLBACKS[level] for level in levels}, own=own))
            assert names(resolved) == tuple(FALLBACKS[levels[-1]] if levels else ()), levels


def test_provider_is_not_its_own_fallback_and_no_fallback_is_listed_twice() -> None:
    resolved = agent(*settled(fallbacks={"chain": ["xai", "google", "bare", "xai", "google"]}))
    assert names(resolved) == ("xai", "bare")


def test_agents_that_follow_have_the_fallbacks_of_the_defaults_alone() -> None:
    followers = following(*settled(fallbacks={**FALLBACKS, "defaults": ["xai", "google", "bare", "xai"]}))
    assert {kind: names(follower) for kind, follower in followers.items()} == dict.fromkeys(followers, ("xai", "bare"))
    none = following(*settled(fallbacks={"chain": ["xai"], "stage": ["xai"]}))
    assert {names(follower) for follower in none.values()} == {()}


@pytest.mark.parametrize("own", [False, True], ids=["the platform's agent", "the chain's own agent"])
@pytest.mark.parametrize(
    ("provider", "native", "offered"),
    [
        ("google", None, BOTH),
        ("google", [], ()),
        ("google", ["code_execution"], ("code_execution",)),
        ("google", ["url_context", "google_search", "url_context"], ("url_context", "google_search")),
        ("google-3", None, ("url_context",)),
        ("bare", None, ()),
        ("bare", ["google_search"], ("google_search",)),
        ("vertex-3", None, ("google_search",)),
        ("openai", None, ("web_search",)),
        ("openai", ["web_search"], ("web_search",)),
        ("xai", None, ()),
        ("xai", [], ()),
    ],
)
def test_an_agents_native_tools_replace_those_of_its_provider(
    provider: str, native: list[str] | None, offered: tuple[str, ...], own: bool
) -> None:
    resolved = agent(*settled(provider=provider, native=native, own=own))
    assert (resolved.native.offered, resolved.native.left_out) == (offered, ())


@pytest.mark.parametrize("own", [False, True], ids=["the platform's agent", "the chain's own agent"])
@pytest.mark.parametrize(
    ("provider", "native", "problem"),
    [
        (
            "google",
            ["google_search", "web_search"],
            "LLM provider 'google' has no native tool 'web_search'. It has: google_search, code_execution, url_context",
        ),
        ("openai", ["google_search"], "LLM provider 'openai' has no native tool 'google_search'. It has: web_search"),
        ("xai", ["web_search"], "LLM provider 'xai' has no native tool 'web_search'. It has: none"),
    ],
)
def test_native_tool_unknown_to_the_provider_is_refused_with_the_available_tools(
    provider: str, native: list[str], problem: str, own: bool
) -> None:
    with pytest.raises(resolve.UnresolvedError) as error:
        agent(*settled(provider=provider, native=native, own=own))
    assert str(error.value) == f"Chain 'c' stage 'look': {problem}"


def test_an_agents_own_provider_has_what_it_wants_even_if_a_stage_overrides_it() -> None:
    platform, _ = settled()
    own = chains.Agent(name="Own", llm_provider="xai", native_tools=["google_search"])
    with pytest.raises(resolve.UnresolvedError, match="Chain 'c' agent 'Own': LLM provider 'xai' has no native tool"):
        resolve.check_agent(own, platform, chain_name="c")
    resolve.check_agent(own.model_copy(update={"llm_provider": "google"}), platform, chain_name="c")


def test_fallbacks_take_of_the_native_tools_what_they_have() -> None:
    fallbacks = {"chain": ["openai", "bare", "google-3", "xai"]}
    wanting = agent(*settled(native=["google_search"], fallbacks=fallbacks))
    assert [fallback.native.offered for fallback in wanting.fallbacks] == [
        (),
        ("google_search",),
        ("google_search",),
        (),
    ]
    unsaid = agent(*settled(fallbacks=fallbacks))
    assert [fallback.native.offered for fallback in unsaid.fallbacks] == [("web_search",), (), ("url_context",), ()]
    none = agent(*settled(native=[], fallbacks=fallbacks))
    assert {fallback.native.offered for fallback in none.fallbacks} == {()}


@pytest.mark.parametrize(
    ("provider", "offered", "left_out"),
    [
        ("google", (), BOTH),
        ("google-2-auto", (), ("google_search",)),
        ("google-3", ("url_context",), ()),
        ("vertex-3", (), ("google_search",)),
        ("openai", ("web_search",), ()),
        ("bare", (), ()),
    ],
)
def test_native_tools_beside_mcp_tools_are_left_out_unless_the_provider_takes_both(
    provider: str, offered: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    resolved = agent(*settled(provider=provider)).beside_tools()
    assert (resolved.native.offered, resolved.native.left_out) == (offered, left_out)
    (behind,) = agent(*settled(provider="xai", fallbacks={"chain": [provider]})).beside_tools().fallbacks
    assert (behind.native.offered, behind.native.left_out) == (offered, left_out)


def test_a_question_has_native_tools_and_what_only_joins_words_has_none() -> None:
    followers = following(*settled(fallbacks={"defaults": ["google-3"]}))
    assert {kind: follower.native.offered for kind, follower in followers.items()} == {
        "synthesis": (),
        "chat": BOTH,
        "summary": (),
    }
    assert {kind: follower.fallbacks[0].native.offered for kind, follower in followers.items()} == {
        "synthesis": (),
        "chat": ("url_context",),
        "summary": (),
    }
    without = followers["chat"].without_tools()
    assert (without.native.offered, [fallback.native.offered for fallback in without.fallbacks]) == ((), [()])

"""Which chains are accepted, which can run, and which one an alert type gets: one index for all who ask."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest
from tarsy.config.check import chain_index
from tarsy.config.model import deliveries, platforms, webhooks
from tarsy.resources import chains

WHY = "environment variable GOOGLE_API_KEY is not set"
Indexer: TypeAlias = Callable[[Iterable[chains.AgentChain]], chain_index.ChainIndex]
AGENTS = "Available agents: ChatAgent, KubernetesAgent, SynthesisAgent"
PROVIDERS = "Available LLM providers: first, second"


def make_chain(
    name: str, *types: str, age: int = 0, uid: str = "", accepted: tuple[str, int] | None = None, **stage: Any
) -> chains.AgentChain:
    """A chain of one stage in its second generation; the greater its age, the older it is.

    `accepted` is what its object says, and of which generation.
    """
    created = f"2026-11-21T20:00:{59 - age:02}Z"
    spec = {"alertTypes": list(types), "stages": [{"name": "look", "agent": "KubernetesAgent", **stage}]}
    metadata = {"name": name, "uid": uid or name, "namespace": "tarsy", "creationTimestamp": created, "generation": 2}
    manifest: dict[str, Any] = {"metadata": metadata, "spec": spec}
    if accepted:
        condition_status, generation = accepted
        condition = {"type": "Accepted", "status": condition_status, "reason": "Any", "observedGeneration": generation}
        manifest["status"] = {"conditions": [{**condition, "lastTransitionTime": created}]}
    return chains.AgentChain.model_validate(manifest)


@pytest.fixture
def index(platform: platforms.Platform) -> Indexer:
    return functools.partial(
        chain_index.ChainIndex, platform=platform, unusable_providers={"second": WHY}, namespace="tarsy", own="tarsy"
    )


def conflict(alert_type: str, owner: str) -> chain_index.Problem:
    return chain_index.Problem(
        reason="AlertTypeConflict",
        message=f"Alert type '{alert_type}' conflict: chain '{owner}' has it; an alert type belongs to one chain of a "
        "namespace, the oldest",
    )


@pytest.mark.parametrize(
    ("chains_known", "rejected"),
    [
        ([make_chain("a", "A", "A2"), make_chain("b", "B")], {}),
        ([make_chain("old", "A", age=2), make_chain("new", "A", age=1)], {"new": ("A", "old")}),
        ([make_chain("z", "A", uid="1"), make_chain("a", "A", uid="2")], {"1": ("A", "a")}),
        ([make_chain("old", "A", age=3), make_chain("new", "B", "A", "C")], {"new": ("A", "old")}),
        (
            # The one in the middle is rejected whole, so that its other type is free for the youngest.
            [make_chain("old", "A", age=3), make_chain("mid", "A", "B", age=2), make_chain("new", "B", age=1)],
            {"mid": ("A", "old")},
        ),
    ],
    ids=[
        "no conflict",
        "the older",
        "the same age",
        "any of its types",
        "rejected whole",
    ],
)
def test_older_of_two_chains_for_a_type_keeps_it_and_the_younger_is_rejected(
    index: Indexer, chains_known: list[chains.AgentChain], rejected: dict[str, tuple[str, str]]
) -> None:
    for order in itertools.permutations(chains_known):
        statuses = index(order).statuses
        assert {uid: status.acceptance for uid, status in statuses.items()} == {
            agent_chain.metadata.uid: conflict(*rejected[agent_chain.metadata.uid])
            if agent_chain.metadata.uid in rejected
            else None
            for agent_chain in chains_known
        }
        assert all(status.problem == status.acceptance for status in statuses.values())


@pytest.mark.parametrize(
    ("first", "second", "owner"),
    [
        (make_chain("a", "A"), make_chain("z", "A", accepted=("True", 2)), "z"),
        (make_chain("a", "A", accepted=("False", 2)), make_chain("z", "A", accepted=("True", 2)), "z"),
        (make_chain("a", "A", accepted=("False", 2)), make_chain("z", "A", accepted=("False", 2)), "a"),
        (make_chain("a", "A", accepted=("True", 1)), make_chain("z", "A", accepted=("True", 2)), "z"),
        (make_chain("a", "A", accepted=("True", 2)), make_chain("z", "A", accepted=("True", 2)), "a"),
        (make_chain("a", "A", accepted=("True", 2)), make_chain("z", "A", age=1), "z"),
    ],
    ids=[
        *("a new one of the same second", "a rejected one of the same second", "both rejected"),
        *("edited to claim what another one has", "both accepted", "accepted, against an older one"),
    ],
)
def test_a_chain_that_has_a_type_keeps_it_against_another_of_its_second(
    index: Indexer, first: chains.AgentChain, second: chains.AgentChain, owner: str
) -> None:
    for order in itertools.permutations([first, second]):
        assert index(order).chain_for("A").metadata.name == owner


def test_conflict_of_chains_created_in_the_same_second_is_decided_by_name_for_good(index: Indexer) -> None:
    """A decision stays the same once it stands in the objects: no type goes to and fro."""
    agent_chains = [make_chain("a", "A"), make_chain("b", "A", "B"), make_chain("c", "B")]
    for order in itertools.permutations(agent_chains):
        indexed = index(order)
        assert [indexed.chain_for(alert_type).metadata.name for alert_type in "AB"] == ["a", "c"]
        decided = [
            make_chain(
                agent_chain.metadata.name,
                *agent_chain.spec.alert_types,
                accepted=("False" if indexed.statuses[agent_chain.metadata.uid].acceptance else "True", 2),
            )
            for agent_chain in order
        ]
        assert index(decided).statuses == indexed.statuses


def test_no_type_of_a_rejected_chain_is_served(index: Indexer) -> None:
    agent_chains = [make_chain("old", "A", age=1), make_chain("new", "A", "B")]
    assert index(agent_chains).chain_for("A").metadata.name == "old"
    with pytest.raises(chain_index.UnservedError) as error:
        index(agent_chains).chain_for("B")
    message = "No chain found for alert type 'B'. Available alert types: A. Chain 'new' has it and is not accepted: "
    assert error.value.problem == chain_index.Problem(
        reason="ChainNotFound", message=f"{message}{conflict('A', 'old').message}"
    )


@pytest.mark.parametrize(
    ("agent_chains", "types"),
    [
        ([], "none"),
        ([make_chain("x", "C", "B"), make_chain("y", "A")], "A, B, C"),
        ([make_chain("broken", "B", agent="Nobody")], "B"),
    ],
)
def test_a_type_that_no_chain_takes_is_refused_with_those_there_are(
    index: Indexer, agent_chains: list[chains.AgentChain], types: str
) -> None:
    with pytest.raises(chain_index.UnservedError) as error:
        index(agent_chains).chain_for("X")
    assert error.value.problem == chain_index.Problem(
        reason="ChainNotFound", message=f"No chain found for alert type 'X'. Available alert types: {types}"
    )
    assert str(error.value) == error.value.problem.message


@pytest.mark.parametrize(
    ("stage", "reason", "message"),
    [
        (
            {"agent": "Nobody"},
            "ReferenceNotFound",
            f"Chain 'mine' stage 'look' references unknown agent 'Nobody'. {AGENTS}",
        ),
        (
            {"llmProvider": "third"},
            "ReferenceNotFound",
            "Chain 'mine' stage 'look' references unknown LLM provider 'third'. Available LLM providers: first, second",
        ),
        (
            {"llmProvider": "second"},
            "ProviderUnusable",
            f"Chain 'mine' stage 'look': LLM provider 'second' cannot be used: {WHY}",
        ),
    ],
)
def test_chain_with_missing_or_unusable_references_is_accepted_but_not_ready(
    index: Indexer, stage: dict[str, Any], reason: str, message: str
) -> None:
    mine = make_chain("mine", "A", **stage)
    problem = chain_index.Problem(reason=reason, message=message)
    status = index([mine]).statuses["mine"]
    assert (status.acceptance, status.references, status.warning) == (None, problem, None)
    assert status.problem == problem
    with pytest.raises(chain_index.UnservedError) as error:
        index([mine]).chain_for("A")
    assert error.value.problem == chain_index.Problem(
        reason="ChainNotReady", message=f"Chain 'mine' is not ready: {message}"
    )


def test_chain_is_found_by_name_for_any_alert_type(index: Indexer) -> None:
    mine, other = make_chain("mine", "X"), make_chain("other", "Y", uid="2")
    assert index([other, mine]).chain_named("mine") is mine
    with pytest.raises(chain_index.UnservedError) as error:
        index([other, mine]).chain_named("third")
    message = "No chain is named 'third'. Available chains: mine, other"
    assert error.value.problem == chain_index.Problem(reason="ChainNotFound", message=message)


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize(
    ("own", "missing"),
    [
        ({"llmProvider": "third"}, "LLM provider 'third'. Available LLM providers: first, second"),
        ({"mcpServers": ["k8s", "disk"]}, "MCP server 'disk'. Available MCP servers: k8s"),
    ],
)
def test_gap_of_a_chains_own_agent_is_reported_once_and_at_the_agent(
    index: Indexer, own: dict[str, Any], missing: str, used: bool
) -> None:
    mine = make_chain("mine", "A", agent="Local" if used else "KubernetesAgent")
    agent = chains.Agent.model_validate({"name": "Local", **own})
    mine = mine.model_copy(update={"spec": mine.spec.model_copy(update={"agents": [agent]})})
    assert index([mine]).statuses["mine"].references == chain_index.Problem(
        reason="ReferenceNotFound", message=f"Chain 'mine' agent 'Local' references unknown {missing}"
    )


def test_problems_of_several_stages_are_reported_together_and_never_twice(index: Indexer) -> None:
    mine = make_chain("mine", "A")
    look = mine.spec.stages[0]
    changes = [{"llm_provider": "second"}, {"llm_provider": "second"}, {"name": "end", "agent": "Nobody"}, {}]
    stages = [look.model_copy(update=change) for change in changes]
    mine = mine.model_copy(update={"spec": mine.spec.model_copy(update={"stages": stages})})
    assert index([mine]).statuses["mine"].references == chain_index.Problem(
        reason="ProviderUnusable",
        message=f"Chain 'mine' stage 'look': LLM provider 'second' cannot be used: {WHY}; "
        f"Chain 'mine' stage 'end' references unknown agent 'Nobody'. {AGENTS}",
    )


def with_spec(made: chains.AgentChain, **spec: Any) -> chains.AgentChain:
    """The chain with these fields, as they stand in a manifest."""
    written = made.model_dump(by_alias=True, exclude_none=True)
    return chains.AgentChain.model_validate({**written, "spec": {**written["spec"], **spec}})


SEVERAL: dict[str, Any] = {"agent": None, "agents": [{"name": "KubernetesAgent"}] * 2}
SYNTHESIS = "Chain 'mine' stage 'look' synthesis"


@pytest.mark.parametrize(
    ("stage", "spec", "message"),
    [
        ({"synthesis": {"agent": "X"}}, {}, f"{SYNTHESIS} references unknown agent 'X'. {AGENTS}"),
        ({"synthesis": {"llmProvider": "X"}}, {}, f"{SYNTHESIS} references unknown LLM provider 'X'. {PROVIDERS}"),
        *(
            ({}, {kind: {"enabled": False, **fields}}, f"Chain 'mine' {kind} references unknown {missing}")
            for kind, fields, missing in (
                ("chat", {"agent": "X"}, f"agent 'X'. {AGENTS}"),
                ("chat", {"llmProvider": "X"}, f"LLM provider 'X'. {PROVIDERS}"),
                ("executiveSummary", {"llmProvider": "X"}, f"LLM provider 'X'. {PROVIDERS}"),
            )
        ),
    ],
)
def test_unknown_name_is_reported_at_its_block_even_if_the_block_has_no_effect(
    index: Indexer, stage: dict[str, Any], spec: dict[str, Any], message: str
) -> None:
    mine = with_spec(make_chain("mine", "A", **stage), **spec)
    status = index([mine]).statuses["mine"]
    problem = chain_index.Problem(reason="ReferenceNotFound", message=message)
    assert (status.acceptance, status.references, status.warning) == (None, problem, None)


@pytest.mark.parametrize(
    ("stage", "spec", "places"),
    [
        ({**SEVERAL, "synthesis": {"llmProvider": "second"}}, {}, [SYNTHESIS]),
        ({"synthesis": {"llmProvider": "second"}}, {}, []),
        ({}, {"chat": {"llmProvider": "second"}}, ["Chain 'mine' chat"]),
        ({}, {"executiveSummary": {"llmProvider": "second"}}, ["Chain 'mine' executiveSummary"]),
        ({}, {"executiveSummary": {"enabled": False, "llmProvider": "second"}}, []),
        ({}, {"agents": [{"name": "Own", "llmProvider": "second"}], "chat": {"agent": "Own"}}, ["Chain 'mine' chat"]),
    ],
    ids=[
        *("synthesis", "synthesis of one agent", "chat", "summary", "no summary", "chat, by its agent"),
    ],
)
def test_unusable_provider_is_reported_at_each_place_of_use(
    index: Indexer, stage: dict[str, Any], spec: dict[str, Any], places: list[str]
) -> None:
    mine = with_spec(make_chain("mine", "A", **stage), **spec)
    message = "; ".join(f"{location}: LLM provider 'second' cannot be used: {WHY}" for location in places)
    assert index([mine]).statuses["mine"].references == (
        chain_index.Problem(reason="ProviderUnusable", message=message) if message else None
    )


OFF = {"executiveSummary": {"enabled": False}, "chat": {"enabled": False}}


@pytest.mark.parametrize(
    ("stage", "spec", "places"),
    [
        ({}, {}, []),
        ({}, {"chat": {}}, ["Chain 'mine' chat"]),
        ({}, OFF, []),
        (SEVERAL, OFF, [SYNTHESIS]),
        ({**SEVERAL, "synthesis": {"llmProvider": "second"}}, OFF, []),
        ({}, {"executiveSummary": {"llmProvider": "second"}, "chat": {"enabled": False}}, []),
        ({}, {"executiveSummary": {"llmProvider": "second"}}, []),
    ],
)
def test_default_provider_must_be_usable_for_an_agent_without_its_own_provider(
    platform: platforms.Platform, stage: dict[str, Any], spec: dict[str, Any], places: list[str]
) -> None:
    """The chain's provider is for its stages: what follows them does not borrow it.

    A summary and a chat without a block are left out: the first fails open, the second says it to who asks.
    """
    mine = with_spec(make_chain("mine", "A", **stage), llmProvider="second", **spec)
    indexed = chain_index.ChainIndex(
        [mine], platform=platform, unusable_providers={"first": WHY}, namespace="tarsy", own="tarsy"
    ).statuses["mine"]
    message = "; ".join(f"{location}: LLM provider 'first' cannot be used: {WHY}" for location in places)
    assert indexed.references == (chain_index.Problem(reason="ProviderUnusable", message=message) if message else None)


@pytest.mark.parametrize(
    ("stage", "spec", "places"),
    [
        ({"fallbackProviders": ["second"]}, {}, ["Chain 'mine' stage 'look'"]),
        ({}, {"fallbackProviders": ["second"]}, ["Chain 'mine' stage 'look'"]),
        ({"fallbackProviders": []}, {"fallbackProviders": ["second"]}, []),
        ({"fallbackProviders": ["first"]}, {}, []),
        ({**SEVERAL, "fallbackProviders": ["second"]}, {}, ["Chain 'mine' stage 'look'"]),
    ],
    ids=["of a stage", "of the chain", "cleared by the stage", "the provider itself", "of several agents, told once"],
)
def test_unusable_fallback_is_reported_and_excludes_no_chain(
    index: Indexer, stage: dict[str, Any], spec: dict[str, Any], places: list[str]
) -> None:
    mine = with_spec(make_chain("mine", "A", **stage), **spec)
    message = "; ".join(f"{location}: fallback LLM provider 'second' cannot be used: {WHY}" for location in places)
    warning = chain_index.Problem(reason="FallbackUnusable", message=message) if message else None
    status = index([mine]).statuses["mine"]
    assert (status.acceptance, status.references, status.warning) == (None, None, warning)
    assert index([mine]).chain_for("A") == mine


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        (
            {"fallbackProviders": ["second", "third"]},
            f"Chain 'mine' stage 'look' fallbackProviders references unknown LLM provider 'third'. {PROVIDERS}",
        ),
        (
            {"llmProvider": "second", "fallbackProviders": ["first"]},
            f"Chain 'mine' stage 'look': LLM provider 'second' cannot be used: {WHY}",
        ),
    ],
    ids=["an unknown fallback", "a fallback is no provider"],
)
def test_a_chain_is_not_ready_where_a_fallback_is_unknown_or_is_all_that_it_has(
    index: Indexer, stage: dict[str, Any], problem: str
) -> None:
    unresolved = index([make_chain("mine", "A", **stage)]).statuses["mine"].problem
    assert unresolved
    assert unresolved.message == problem


@pytest.mark.parametrize(
    ("stage", "servers"),
    [
        ({}, ("k8s",)),
        ({"mcpServers": []}, ()),
        ({"iterationStrategy": "react-final-analysis"}, ()),
        ({"iterationStrategy": "react"}, ("k8s",)),
    ],
)
def test_a_chain_needs_the_servers_of_those_of_its_agents_that_use_tools(
    index: Indexer, stage: dict[str, Any], servers: tuple[str, ...]
) -> None:
    assert index([make_chain("mine", "A", **stage)]).statuses["mine"].servers == servers


@pytest.mark.parametrize(
    ("by", "this_cluster", "reason"),
    [("Owner", None, "OwnersNotLookedUp"), ("Owner", webhooks.ThisCluster(), None), ("Notification", None, None)],
)
def test_chain_that_groups_by_owner_is_ready_and_warns_if_no_owner_is_looked_up(
    platform: platforms.Platform, by: str, this_cluster: webhooks.ThisCluster | None, reason: str | None
) -> None:
    settings = platform.model_copy(update={"ingest": webhooks.Ingest(this_cluster=this_cluster)})
    mine = with_spec(make_chain("mine", "A"), grouping={"by": by})
    index = chain_index.ChainIndex([mine], platform=settings, unusable_providers={}, namespace="tarsy", own="tarsy")
    status = index.statuses["mine"]
    assert (status.problem, status.warning and status.warning.reason) == (None, reason)


def test_unknown_receiver_is_reported_and_excludes_no_chain(index: Indexer) -> None:
    mine = with_spec(make_chain("mine", "A"), notify=["team"])
    warning = chain_index.Problem(
        reason="ReceiverNotFound", message="Chain 'mine' notifies unknown receiver 'team'. Available receivers: none"
    )
    assert index([mine]).statuses["mine"].warning == warning
    assert index([mine]).chain_for("A") == mine


@pytest.mark.parametrize(("allowed", "heard"), [(None, False), (["tarsy"], False), (["team"], True), (["*"], True)])
def test_receiver_that_may_not_hear_of_the_namespace_is_reported(
    platform: platforms.Platform, allowed: list[str] | None, heard: bool
) -> None:
    receiver = deliveries.Webhook(type="webhook", url="https://hook.example", allowed_namespaces=allowed)
    mine = with_spec(make_chain("mine", "A"), notify=["hook"])
    mine = mine.model_copy(update={"metadata": mine.metadata.model_copy(update={"namespace": "team"})})
    index = chain_index.ChainIndex(
        [mine],
        platform=platform.model_copy(update={"deliveries": {"hook": receiver}}),
        unusable_providers={},
        namespace="team",
        own="tarsy",
    )
    warning = chain_index.Problem(
        reason="ReceiverNotAllowed",
        message="Chain 'mine' notifies receiver 'hook', which may not hear of namespace 'team': add it to "
        "deliveries.hook.allowed_namespaces of the platform file",
    )
    assert index.statuses["mine"].warning == (None if heard else warning)

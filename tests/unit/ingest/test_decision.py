"""Decisions from an object to its admission: pure, and the same in every process."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import pytest
from support.masking import NO_SECRETS
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, tool_filters
from tarsy.ingest import decision
from tarsy.masking import known_secrets
from tarsy.resources import chains, investigations
from tarsy.transcript import admission

SPEC: dict[str, Any] = {
    "alertType": "KubePodCrashLooping",
    "alertData": "the secret is out",
    "severity": "secret",
    "runbookURL": "https://runbooks/secret",
}


def mask(text: str) -> str:
    return text.replace("secret", "***")


decide = functools.partial(decision.decide, mask=mask, secrets=NO_SECRETS)


def investigation_of(**spec: Any) -> investigations.AlertInvestigation:
    metadata = {"name": "web-crash", "namespace": "tarsy", "uid": "u1", "generation": 3}
    return investigations.AlertInvestigation.model_validate({"metadata": metadata, "spec": {**SPEC, **spec}})


def made(name: str, *types: str, agent: str = "KubernetesAgent") -> chains.AgentChain:
    spec = {"alertTypes": list(types), "stages": [{"name": "look", "agent": agent}]}
    metadata = {"name": name, "namespace": "tarsy", "uid": name, "generation": 7}
    return chains.AgentChain.model_validate({"metadata": metadata, "spec": spec})


MINE, OTHER, BROKEN = made("mine", "KubePodCrashLooping"), made("other", "Y"), made("broken", "Z", agent="Nobody")


@pytest.fixture
def index(platform: platforms.Platform) -> chain_index.ChainIndex:
    return chain_index.ChainIndex(
        [MINE, OTHER, BROKEN], platform=platform, unusable_providers={}, namespace="tarsy", own="tarsy"
    )


def admitted(of: chains.AgentChain) -> admission.AdmittedChain:
    return admission.AdmittedChain(
        name=of.metadata.name, namespace="tarsy", generation=7, hash=of.digest(), spec=of.spec
    )


def test_text_in_the_object_is_masked_and_its_fields_go_along(index: chain_index.ChainIndex) -> None:
    spec = {
        "fingerprint": "f1",
        "source": {"type": "alertmanager", "receipt": "w0rd"},
        "startsAt": "2026-11-21T20:29:42Z",
        "priority": 5,
        "suspend": True,
        "ttlSecondsAfterFinished": 60,
    }
    assert decide(investigation_of(**spec), index) == admission.Admission(
        id="u1",
        namespace="tarsy",
        name="web-crash",
        generation=3,
        alert_type="KubePodCrashLooping",
        alert_data="the *** is out",
        severity="***",
        runbook_url="https://runbooks/***",
        fingerprint="f1",
        receipt="w0rd",
        digest=investigation_of(**spec).digest(),
        starts_at=datetime(2026, 11, 21, 20, 29, 42, tzinfo=UTC),
        priority=5,
        suspend=True,
        ttl_seconds=60,
        chain=admitted(MINE),
    )


def test_tool_selection_is_admitted_in_storable_form(index: chain_index.ChainIndex) -> None:
    mcp = {"servers": [{"name": "k8s", "tools": ["get\x00", "l*"]}], "nativeTools": {"google_search": False}}
    decided = decide(investigation_of(mcp=mcp), index)
    assert decided.mcp == investigations.MCP(
        servers=[investigations.MCPServer(name="k8s", tools=["get\ufffd", "l*"])], native_tools={"google_search": False}
    )
    assert decided.chain == admitted(MINE)
    assert decide(investigation_of(), index).mcp is None


@pytest.mark.parametrize(
    ("mcp", "message"),
    [
        ({"servers": [{"name": "x"}]}, "mcp.servers.0 references MCP server 'x', which no agent of chain 'mine' has"),
        ({"tools": {"deny": ["x.\x00"]}}, "mcp.tools.deny.0: 'x.\ufffd' is no tool that"),
    ],
)
def test_selection_of_a_server_or_tool_that_its_agents_cannot_have_is_refused(
    index: chain_index.ChainIndex, mcp: dict[str, Any], message: str
) -> None:
    catalogue = {"k8s": [tool_filters.Tool(name="get", read_only=True)]}
    refusal = decide(investigation_of(mcp=mcp), index, catalogue=catalogue).chain
    assert isinstance(refusal, admission.Refusal)
    assert refusal.reason == "MCPSelectionInvalid"
    assert refusal.message.startswith(message)


def test_chain_is_stored_without_known_secrets(platform: platforms.Platform) -> None:
    secrets = known_secrets.KnownSecrets(["pa55w0rd"])
    spec = MINE.spec.model_copy(
        update={
            "description": "log in by pa55w0rd",
            "agents": [
                chains.Agent(name="Own", custom_instructions="the password: is pa55w0rd"),
                chains.Agent(name="Other", custom_instructions="pa55w0rd " * 1800),
            ],
        }
    )
    mine = MINE.model_copy(update={"spec": spec})
    decided = decision.decide(
        investigation_of(),
        chain_index.ChainIndex([mine], platform=platform, unusable_providers={}, namespace="tarsy", own="tarsy"),
        mask=mask,
        secrets=secrets,
    )
    assert isinstance(decided.chain, admission.AdmittedChain)
    assert decided.chain.spec.description == "log in by [MASKED:secret]"
    assert decided.chain.spec.agents
    own, other = decided.chain.spec.agents
    assert own.custom_instructions == "the password: is [MASKED:secret]"
    assert other.custom_instructions == ("[MASKED:secret] " * 1800)[: chains.INSTRUCTIONS_MAX]
    stored = decided.chain.spec.model_dump_json(by_alias=True)
    assert chains.Spec.model_validate_json(stored) == decided.chain.spec, "a takeover reads it"
    assert (decided.chain.hash, decided.chain.spec.stages) == (mine.digest(), spec.stages)


def test_data_that_is_referred_to_is_left_to_the_store(index: chain_index.ChainIndex) -> None:
    """It was masked when it was stored, and only the store knows whether it is there."""
    decided = decide(investigation_of(alertData=None, alertDataRef={"name": "d1", "size": 70_000}), index)
    assert (decided.alert_data, decided.alert_data_ref) == (None, "d1")


@pytest.mark.parametrize(
    ("spec", "taken"),
    [({}, MINE), ({"alertType": "Y"}, OTHER), ({"chainRef": {"name": "other"}}, OTHER)],
    ids=["by its type", "by another type", "by name, whatever its type"],
)
def test_investigation_runs_chain_of_its_alert_type_or_the_chain_it_names(
    index: chain_index.ChainIndex, spec: dict[str, Any], taken: chains.AgentChain
) -> None:
    assert decide(investigation_of(**spec), index).chain == admitted(taken)


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"alertType": "X"}, "ChainNotFound", "No chain found for alert type 'X'. Available alert types: "),
        ({"chainRef": {"name": "broken"}}, "ChainNotReady", "Chain 'broken' is not ready: "),
    ],
)
def test_object_without_usable_chain_is_refused_with_reason_and_still_masked(
    index: chain_index.ChainIndex, spec: dict[str, Any], reason: str, message: str
) -> None:
    decided = decide(investigation_of(**spec), index)
    assert isinstance(decided.chain, admission.Refusal)
    assert decided.chain.reason == reason
    assert decided.chain.message.startswith(message)
    assert decided.alert_data == "the *** is out"


@pytest.mark.parametrize(
    ("author", "expected"),
    [
        (None, ""),
        ("jane", "jane"),
        ("the secret is out", "the *** is out"),
        ("secret@example.com", "secret@example.com"),
        ("postgres://secret@db", "postgres://***@db"),
        ("a\x00", "a\ufffd"),
        ("\U0001f525" * 253, "\U0001f525" * 253),
    ],
)
def test_an_author_is_masked_unless_it_is_a_mail_address(
    index: chain_index.ChainIndex, author: str | None, expected: str
) -> None:
    assert decide(investigation_of(author=author), index).author == expected


def test_author_lengthened_by_masking_still_fits_into_status(index: chain_index.ChainIndex) -> None:
    decided = decide(
        investigation_of(author="secret" * 42), index, mask=lambda text: text.replace("secret", "[MASKED:secret]")
    )
    assert len(decided.author) == investigations.AUTHOR_MAX

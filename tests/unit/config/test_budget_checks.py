"""Budgets that cannot be kept: refused with the platform file, or where a chain makes them so."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from support import manifests
from tarsy.config.check import chain_index, lint
from tarsy.config.load import loader
from tarsy.config.model import budgets, platforms
from tarsy.resources import chains, files

GOOGLE = {"type": "google", "model": "gemini-2.5-flash", "max_output_tokens": 4096}
PRICED = {**GOOGLE, "price": {"input": 0.3, "output": 2.5}}
SEARCHING = {**PRICED, "native_tools": ["google_search"]}
DAY = {"scope": "all", "per": "day"}
IN_NONE = "whose tokens are in no request"
TOO_SMALL = (
    "too small: each request to provider 'mine' reserves {} or more, and {} are for such requests: raise the limit"
)
LOWER = ", or lower max_output_tokens of the provider"
REMEDY = "set max_output_tokens, price and no native_tools there, or limit model_calls"


def problems(budget: dict[str, Any], *, agents: dict[str, Any] | None = None, **providers: dict[str, Any]) -> list[str]:
    """Return the problems of a platform file with these providers, the first of them the default, without its lines."""
    written = {
        "defaults": {"llm_provider": next(iter(providers))},
        "llm_providers": providers,
        "agents": agents or {},
        "budgets": {"b": {**DAY, **budget}},
    }
    try:
        loader.loaded(files.parse(yaml.safe_dump(written), file="f")[0], environment={})
    except files.FileError as error:
        return [str(problem).partition(": ")[2] for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("budget", "providers", "expected"),
    [
        ({"tokens": 10**6}, {"mine": GOOGLE}, []),
        ({"cost": 5}, {"mine": PRICED}, []),
        ({"model_calls": 10}, {"mine": {**SEARCHING, "max_output_tokens": None}}, []),
        (
            {"tokens": 10**6},
            {"mine": {**GOOGLE, "max_output_tokens": None}},
            [f"budgets.b.tokens: cannot be kept: provider 'mine' has no max_output_tokens: {REMEDY}"],
        ),
        ({"cost": 5}, {"mine": GOOGLE}, [f"budgets.b.cost: cannot be kept: provider 'mine' has no price: {REMEDY}"]),
        (
            {"tokens": 10**6},
            {"mine": SEARCHING},
            [f"budgets.b.tokens: cannot be kept: provider 'mine' has native_tools, {IN_NONE}: {REMEDY}"],
        ),
        ({"cost": 5, "scope": "provider", "of": "mine"}, {"mine": PRICED, "other": GOOGLE}, []),
        (
            {"tokens": 4551},
            {"mine": GOOGLE},
            [f"budgets.b.tokens: {TOO_SMALL.format('4096 tokens', '4095.9 of 4551')}{LOWER}"],
        ),
        ({"tokens": 4552}, {"mine": GOOGLE}, []),
        ({"tokens": 4096, "at_limit": "Refuse"}, {"mine": GOOGLE}, []),
        (
            {"tokens": 5120, "at_limit": "Refuse", "reserve": {"severity": "critical", "share": 21}},
            {"mine": GOOGLE},
            [f"budgets.b.tokens: {TOO_SMALL.format('4096 tokens', '4044.8 of 5120')}{LOWER}"],
        ),
        (
            {"model_calls": 1},
            {"mine": GOOGLE},
            [f"budgets.b.model_calls: {TOO_SMALL.format('1 model call', '0.9 of 1')}"],
        ),
        ({"model_calls": 1, "at_limit": "Wait"}, {"mine": GOOGLE}, []),
        (
            {"cost": 0.001},
            {"mine": PRICED},
            [f"budgets.b.cost: {TOO_SMALL.format('a cost of 0.01024', '0.0009 of 0.001')}{LOWER}"],
        ),
        (
            {"tokens": budgets.MOST + 1},
            {"mine": GOOGLE},
            [f"budgets.b.tokens: Input should be less than or equal to {budgets.MOST}"],
        ),
    ],
)
def test_budget_that_cannot_be_enforced_is_refused(
    budget: dict[str, Any], providers: dict[str, dict[str, Any]], expected: list[str]
) -> None:
    assert problems(budget, **providers) == expected


def test_agent_of_the_platform_file_with_native_tools_is_refused() -> None:
    agents = {"Searcher": {"native_tools": ["google_search"]}}
    assert problems({"tokens": 10**6}, agents=agents, mine=GOOGLE) == [
        "budgets.b.tokens: cannot be kept: agent 'Searcher' has native_tools: tokens of native tools are in no request"
    ]


NATIVE = f"is asked for native tools, {IN_NONE}"


@pytest.mark.parametrize(
    ("budget", "spec", "reference", "warning"),
    [
        ({"tokens": 10**6}, {}, "", ""),
        ({"model_calls": 10}, {"agents": [{"name": "A", "nativeTools": ["google_search"]}]}, "", ""),
        ({"tokens": 10**6}, {"agents": [{"name": "A", "nativeTools": ["google_search"]}]}, f"mine' {NATIVE}", ""),
        (
            {"tokens": 10**6, "scope": "provider", "of": "other"},
            {"agents": [{"name": "A", "nativeTools": ["google_search"]}]},
            "",
            "",
        ),
        (
            {"tokens": 10**6, "scope": "namespace", "of": "tarsy"},
            {"agents": [{"name": "A", "nativeTools": ["google_search"]}]},
            f"mine' {NATIVE}",
            "",
        ),
        ({"tokens": 10**6}, {"llmProvider": "unlimited"}, "unlimited' has no max_output_tokens", ""),
        ({"tokens": 10**6}, {"fallbackProviders": ["unlimited"]}, "", "unlimited' has no max_output_tokens"),
    ],
    ids=[
        *("none", "model calls", "native tools", "of another provider", "of this namespace"),
        *("no limit of answers", "a fallback"),
    ],
)
def test_chain_with_unlimited_requests_is_not_ready_under_a_budget(
    budget: dict[str, Any], spec: dict[str, Any], reference: str, warning: str
) -> None:
    platform = platforms.Platform.model_validate(
        {
            "defaults": {"llm_provider": "mine"},
            "llm_providers": {"mine": GOOGLE, "unlimited": {**GOOGLE, "max_output_tokens": None}},
            "agents": {"KubernetesAgent": {}},
            "budgets": {"b": {**DAY, **budget}},
        }
    )
    agent = "A" if "agents" in spec else "KubernetesAgent"
    written = manifests.chain(stages=[manifests.stage("look", agent=agent)], name="pod-crash", **spec)
    chain = chains.AgentChain.model_validate(
        {"metadata": {"name": "pod-crash", "namespace": "tarsy", "uid": "1"}, "spec": written["spec"]}
    )
    index = chain_index.ChainIndex([chain], platform=platform, unusable_providers={}, namespace="tarsy", own="tarsy")
    status = index.statuses["1"]
    before = "Chain 'pod-crash' stage 'look': "
    why = f"{before}budget 'b' cannot be kept: provider '{reference}"
    assert ((status.references and status.references.message) or "") == (why if reference else "")
    assert reference == "" or (status.references and status.references.reason) == chain_index.UNBOUNDED
    unusable = f"{before}fallback LLM provider 'unlimited' cannot be used: budget 'b' cannot be kept: provider '"
    assert ((status.warning and status.warning.message) or "") == (f"{unusable}{warning}" if warning else "")
    if budget.get("of") is None:
        lines = [
            str(problem) for problem in lint.problems(files.parse(yaml.safe_dump(written), file="f"), platform=platform)
        ]
        assert [reference in line or warning in line for line in lines] == [True] * bool(reference or warning)

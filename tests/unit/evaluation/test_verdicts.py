"""The deterministic judgement of an analysis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.evaluation import causes, scenarios, verdicts
from tarsy_dev.scenarios import golden

CAUSE = scenarios.Cause.model_validate(
    {"class": "out-of-memory", "kind": "Deployment", "namespace": "shop", "name": "checkout"}
)
NOTHING = scenarios.Cause.model_validate({"class": "nothing"})


def owned(kind: str, name: str, owner: tuple[str, str] | None = None) -> dict[str, Any]:
    references = [{"kind": owner[0], "name": owner[1]}] if owner else []
    return {"kind": kind, "metadata": {"name": name, "namespace": "shop", "ownerReferences": references}}


OBJECTS = [
    owned("Deployment", "checkout"),
    owned("ReplicaSet", "checkout-77", ("Deployment", "checkout")),
    owned("Pod", "checkout-77-abc", ("ReplicaSet", "checkout-77")),
    owned("Deployment", "orders-db"),
]


def judge(analysis: str, cause: scenarios.Cause = CAUSE) -> verdicts.CauseVerdict:
    return verdicts.judge(analysis, cause, OBJECTS)


@pytest.mark.parametrize(
    "analysis",
    [
        "## Root cause\n\nDeployment `shop/checkout`: its container is OOMKilled, the limit is 512Mi.\n\n## Impact\nx",
        "**Root cause:** the container of pod checkout-77-abc is out of memory [tool 2.1].\n\n**Impact:** none",
        "The pod checkout-77-abc restarts because its memory limit of 512Mi is too low for the heap.",
        "Root cause: OOMKilled.\n\nWhat I saw: the pods of checkout restart.",
        "Root cause: checkout is OOMKilled. It is not a wrong image, and the quota is not exceeded.",
        "Root cause: checkout is OOMKilled.\n\nEvidence:\n\n- the database is down, DNS fails, a taint [tool 1.0]",
        "## Root cause\ncheckout is OOMKilled:\n```\nthe database is down, DNS fails, there is a taint\n```\n",
        "## Evidence\nthe database is down, DNS fails\n## Root Cause\ncheckout is OOMKilled\n## Impact\na taint",
    ],
)
def test_a_right_analysis_is_right(analysis: str) -> None:
    assert judge(analysis).is_right


@pytest.mark.parametrize(
    "analysis",
    [
        "Root cause: the pod orders-db is OOMKilled.",
        "Root cause: checkout fails, because the database is down.",
        "Root cause: checkout was not OOMKilled.",
        "I could not find the cause. Inconclusive.",
        "Root cause: checkout may be OOMKilled, or its quota is exceeded, or a network policy blocks it.",
        "Root cause: checkout-v2 is OOMKilled.",
        "",
    ],
)
def test_a_wrong_analysis_is_wrong(analysis: str) -> None:
    assert not judge(analysis).is_right


def test_additional_wrong_cause_class_lowers_only_precision() -> None:
    verdict = judge("Root cause: checkout is OOMKilled, or its readiness probe is misconfigured.")
    assert (verdict.claimed, verdict.precision, verdict.recall) == (("out-of-memory", "probe-wrong"), 0.5, 1)
    assert verdict.is_right


@pytest.mark.parametrize(
    "analysis",
    [
        "Root cause: nothing is wrong now. The alert is stale: the deployment has recovered.",
        "No current problem was found; the Job completed as planned.",
        "Conclusion: false alarm.",
    ],
)
def test_claimed_cause_without_entity_counts_as_no_cause(analysis: str) -> None:
    assert judge(analysis, NOTHING).is_right
    assert not judge(analysis).is_right


def test_claimed_cause_is_wrong_if_no_cause_exists() -> None:
    assert not judge("Root cause: checkout is OOMKilled.", NOTHING).is_right


@given(st.lists(st.sampled_from([name for name in causes.CLASSES if name != "out-of-memory"]), unique=True, min_size=2))
def test_naming_everything_is_not_knowing(others: list[causes.CauseClass]) -> None:
    listed = "; ".join(golden.SENTENCES[name] for name in others)
    verdict = judge(f"Root cause: checkout: OOMKilled; {listed}.")
    assert set(others) <= set(verdict.claimed)
    assert not verdict.is_right


@given(st.text(), st.sampled_from([CAUSE, NOTHING]))
def test_any_text_has_a_judgement_within_its_bounds(analysis: str, cause: scenarios.Cause) -> None:
    verdict = judge(analysis, cause)
    assert 0 <= verdict.precision <= 1
    assert 0 <= verdict.recall <= 1
    assert 0 <= verdict.score <= 1


def test_a_false_claim_counts_unless_it_is_denied() -> None:
    claim = scenarios.ForbiddenClaim(matches="database .{0,20}(down|unavailable)", because="it runs")
    assert list(verdicts.false_claims("The database is down.", [claim])) == [claim]
    assert not list(verdicts.false_claims("It is unlikely that the database is down.", [claim]))
    assert not list(verdicts.false_claims("The database isn't down, checkout is.", [claim]))


@pytest.mark.parametrize("name", causes.CLASSES)
def test_plain_sentence_claims_exactly_one_cause_class(name: causes.CauseClass) -> None:
    assert verdicts.claimed_classes(f"Root cause: {golden.SENTENCES[name]}.") == (name,)

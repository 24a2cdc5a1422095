"""Running an investigation again: from which stages that is possible, and how a request is refused."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.ingest import retries
from tarsy.resources import chains
from tarsy.transcript import admission

NAMES = ("collect", "analysis", "remedy")


def original(**fields: Any) -> admission.Original:
    values: dict[str, Any] = {
        "id": "6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64",
        "namespace": "tarsy",
        "namespace_uid": "uid",
        "name": "web-crash",
        "has_ended": True,
        "alert_type": "kubernetes",
        "alert_data": "web-0 restarts",
        "alert_summary": "",
        "severity": None,
        "runbook_url": None,
        "fingerprint": None,
        "labels": {},
        "generator_url": None,
        "external_url": None,
        "mcp": None,
        "chain": chain(),
        "stage_outcomes": dict.fromkeys(NAMES, "Completed"),
    }
    return admission.Original(**values | fields)


def chain(**spec: Any) -> admission.AdmittedChain:
    stages = [{"name": name, "agent": "KubernetesAgent"} for name in NAMES]
    parsed = chains.Spec.model_validate({"alertTypes": ["kubernetes"], "stages": stages, **spec})
    return admission.AdmittedChain(name="pods", namespace="tarsy", generation=3, hash="0", spec=parsed)


def refusal(asked: admission.Original, *, from_stage: str | None = None, current: bool = False) -> tuple[str, str]:
    with pytest.raises(retries.NotRetriableError) as raised:
        retries.check(asked, from_stage=from_stage, is_chain_current=current)
    return raised.value.place, str(raised.value)


def test_complete_retry_copies_no_stage_results() -> None:
    asked = original()
    for current in (False, True):
        retry = retries.check(asked, from_stage=None, is_chain_current=current)
        assert retry == admission.Retry(original=asked.id, from_stage=None)


@pytest.mark.parametrize(("stage", "copied"), [("collect", ()), ("analysis", NAMES[:1]), ("remedy", NAMES[:2])])
def test_retry_from_a_stage_copies_those_before_it(stage: str, copied: tuple[str, ...]) -> None:
    retry = retries.check(original(), from_stage=stage, is_chain_current=False)
    assert retry == admission.Retry(original=original().id, from_stage=stage, copied_stages=copied)


def test_unknown_stage_is_refused_with_those_that_are_there() -> None:
    message = "stage 'analyse' is not in its chain. Stages to retry from: collect, analysis, remedy"
    assert refusal(original(), from_stage="analyse") == ("fromStage", message)


def test_retry_from_stage_after_unfinished_stage_is_refused() -> None:
    asked = original(stage_outcomes={"collect": "Completed"})
    message = (
        "stage 'remedy' needs the result of stage 'analysis', which has none. Stages to retry from: collect, analysis"
    )
    assert refusal(asked, from_stage="remedy") == ("fromStage", message)


def test_failed_stage_can_be_left_behind_only_if_the_chain_goes_on_after_failures() -> None:
    outcomes = {"collect": "Failed", "analysis": "Skipped", "remedy": "Skipped"}
    assert retries.retriable_stages(NAMES, outcomes, stops_after_failure=False) == ["collect", "analysis"]
    assert retries.retriable_stages(NAMES, outcomes, stops_after_failure=True) == ["collect"]
    stopping = original(stage_outcomes=outcomes, chain=chain(failurePolicy="Stop"))
    assert refusal(stopping, from_stage="analysis")[0] == "fromStage"


def test_open_investigation_is_refused_for_its_state() -> None:
    assert refusal(original(has_ended=False)) == ("", "it has not ended yet: cancel it first, or wait for its end")


def test_present_chain_is_refused_from_a_stage_on() -> None:
    assert refusal(original(), from_stage="analysis", current=True)[0] == "chain"


def test_retry_of_refused_investigation_needs_the_current_chain() -> None:
    asked = original(chain=None, stage_outcomes={})
    assert refusal(asked) == ("chain", 'it was refused and has no chain: take the present one ("chain": "current")')
    assert refusal(asked, from_stage="analysis")[0] == "chain"
    assert retries.check(asked, from_stage=None, is_chain_current=True).copied_stages == ()


OUTCOMES = st.sampled_from(["Completed", "CompletedWithErrors", "Failed", "TimedOut", "Skipped", None])


@given(outcomes=st.tuples(OUTCOMES, OUTCOMES, OUTCOMES), stops=st.booleans())
def test_all_stages_before_retriable_stage_have_results(outcomes: tuple[str | None, ...], *, stops: bool) -> None:
    stage_outcomes = {name: outcome for name, outcome in zip(NAMES, outcomes, strict=True) if outcome}
    stages = retries.retriable_stages(NAMES, stage_outcomes, stops_after_failure=stops)
    for index, name in enumerate(NAMES):
        earlier = [stage_outcomes.get(earlier) for earlier in NAMES[:index]]
        usable = {"Completed", "CompletedWithErrors"} | (set() if stops else {"Failed", "TimedOut"})
        assert (name in stages) == usable.issuperset(earlier)


@pytest.mark.parametrize(
    ("body", "parsed"),
    [(b"", retries.Request()), (b'{"fromStage": "analysis"}', retries.Request(fromStage="analysis"))],
)
def test_request_may_be_empty(body: bytes, parsed: retries.Request) -> None:
    assert retries.parse(body) == parsed


@pytest.mark.parametrize("body", [b'{"from_stage": "analysis"}', b'{"chain": "newest"}', b"[]", b'{"fromStage": 1}'])
def test_other_requests_are_refused(body: bytes) -> None:
    with pytest.raises(pydantic.ValidationError):
        retries.parse(body)

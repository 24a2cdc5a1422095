"""The status of an investigation and its events, as pure functions of what the store knows."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from support import summary_rows
from support.masking import NO_SECRETS
from tarsy.controller import investigation_statuses, projector
from tarsy.masking import known_secrets
from tarsy.resources import investigations
from tarsy.store.reads import related, summaries
from tarsy.transcript import entries

build = functools.partial(investigation_statuses.build, secrets=NO_SECRETS)

ADMITTED = datetime(2026, 11, 21, 20, 0, 0, 250000, tzinfo=UTC)
STARTED = ADMITTED + timedelta(seconds=1)
STAGE_ENDED = STARTED + timedelta(seconds=5)
ENDED = STARTED + timedelta(seconds=92)

CHAIN: dict[str, Any] = {
    "chain_name": "pod-crash",
    "chain_namespace": "tarsy",
    "chain_generation": 3,
    "chain_hash": "0123456789abcdef",
}
QUEUED = summary_rows.summary(
    revision=7,
    stale=True,
    generation=2,
    state="queued",
    stage_names=("look", "think", "tell"),
    stage_agents=(1, 3, 1),
    admitted_at=ADMITTED,
    **CHAIN,
)


def stage(
    name: str,
    outcome: str | None = None,
    message: str = "",
    *,
    completed: int | None = None,
    lacks: str = "",
    cut_off: bool = False,
) -> summaries.StageSummary:
    """A stage that has ended with `outcome`, or is under way; a skipped one has never begun."""
    ended = STAGE_ENDED if outcome else None
    begun = outcome != "Skipped"
    return summary_rows.stage(
        name=name,
        outcome=outcome,
        message=message,
        lacks=[lacks] if lacks else [],
        started_at=STARTED if begun else None,
        ended_at=ended,
        completed=int(outcome == "Completed") if completed is None else completed,
        iterations=2 * begun,
        tool_calls=3 * begun,
        total_tokens=4 * begun,
        cut_off=cut_off,
    )


LOOKED, THINKS, LOOKED_LAST = stage("look", "Completed"), stage("think"), stage("tell", "Completed")
RUNNING = replace(QUEUED, state="running", attempts=1, started_at=STARTED, stages=(LOOKED, THINKS))


def end(ending: str, *stages: summaries.StageSummary, reason: str = "Why", message: str = "") -> summaries.Summary:
    return replace(RUNNING, state="ended", ended_at=ENDED, ending=ending, reason=reason, message=message, stages=stages)


UNCHAINED: dict[str, Any] = dict.fromkeys(CHAIN)
REFUSED = replace(
    end("Failed", reason="ChainNotFound", message="No chain found"),
    started_at=None,
    ended_at=ADMITTED,
    stage_names=(),
    stage_agents=(),
    **UNCHAINED,
)

Row = tuple[str, str, str | None, str | None, str]
"""Phase, the conditions that are true, progress, current stage, phases of the stages."""
GOING, DONE, BROKEN = "Accepted Reconciling", "Accepted Finished Complete", "Accepted Finished Failed Stalled"
CASES: dict[str, tuple[summaries.Summary, Row]] = {
    "queued": (QUEUED, ("Queued", GOING, "0/3", None, "Pending Pending Pending")),
    "claimed": (replace(RUNNING, stages=()), ("Running", GOING, "0/3", None, "Pending Pending Pending")),
    "running": (RUNNING, ("Running", GOING, "1/3", "think", "Completed Running Pending")),
    "given back": (replace(RUNNING, state="queued"), ("Queued", GOING, "1/3", "think", "Completed Running Pending")),
    "suspended": (
        replace(RUNNING, state="queued", suspend=True),
        ("Suspended", GOING, "1/3", "think", "Completed Running Pending"),
    ),
    "parked": (
        replace(RUNNING, state="parked", wait_reason="BudgetSpent", wait_message="the budget is spent"),
        ("Waiting", f"{GOING} Waiting", "1/3", "think", "Completed Running Pending"),
    ),
    "left to another version": (
        replace(RUNNING, state="queued", unreadable="entry 3"),
        ("Suspended", GOING, "1/3", "think", "Completed Running Pending"),
    ),
    "cancelling": (replace(RUNNING, cancel="user"), ("Cancelling", GOING, "1/3", "think", "Completed Running Pending")),
    "completed": (
        end("Completed", *(stage(name, "Completed") for name in QUEUED.stage_names), reason="StagesCompleted"),
        ("Completed", DONE, "3/3", None, "Completed Completed Completed"),
    ),
    "completed with errors": (
        end("CompletedWithErrors", stage("look", "Failed"), stage("think", "Completed"), stage("tell", "Failed")),
        ("CompletedWithErrors", DONE, "3/3", None, "Failed Completed Failed"),
    ),
    "all stages have ended, and the summary is under way": (
        replace(RUNNING, stages=tuple(stage(name, "Completed") for name in QUEUED.stage_names)),
        ("Running", GOING, "3/3", None, "Completed Completed Completed"),
    ),
    "failed": (
        end("Failed", *(stage(name, "Failed") for name in QUEUED.stage_names), reason="StagesFailed"),
        ("Failed", BROKEN, "3/3", None, "Failed Failed Failed"),
    ),
    "stopped": (
        end("Failed", LOOKED, stage("think", "TimedOut"), stage("tell", "Skipped"), reason="StagesFailed"),
        ("Failed", BROKEN, "2/3", None, "Completed TimedOut Skipped"),
    ),
    "given up": (
        end("Failed", LOOKED, stage("think", "Failed", "too often", cut_off=True), message="too often"),
        ("Failed", BROKEN, "1/3", None, "Completed Failed Cancelled"),
    ),
    "timed out": (
        end("TimedOut", LOOKED, stage("think", "TimedOut", "too late", cut_off=True), message="too late"),
        ("TimedOut", BROKEN, "1/3", None, "Completed TimedOut Cancelled"),
    ),
    "cancelled": (
        replace(
            end("Cancelled", LOOKED, stage("think", "Cancelled", "why", cut_off=True), message="why"), cancel="user"
        ),
        ("Cancelled", "Accepted Finished Cancelled", "1/3", None, "Completed Cancelled Cancelled"),
    ),
    "cancelled in the queue": (
        replace(end("Cancelled"), started_at=None, attempts=0),
        ("Cancelled", "Accepted Finished Cancelled", "0/3", None, "Cancelled Cancelled Cancelled"),
    ),
    "refused": (REFUSED, ("Failed", "Finished Failed Stalled", None, None, "")),
}


@pytest.mark.parametrize(("summary", "row"), CASES.values(), ids=CASES)
def test_every_state_of_the_store_has_its_phase_conditions_and_stages(summary: summaries.Summary, row: Row) -> None:
    status = build(summary)
    true = " ".join(condition.type for condition in status.conditions if condition.status == "True")
    stages = " ".join(stage_status.phase for stage_status in status.stages)
    assert (status.phase, true, status.progress, status.current_stage, stages) == row
    assert [stage_status.name for stage_status in status.stages] == list(summary.stage_names)
    assert (
        all(stage_status.completion_time for stage_status in status.stages if stage_status.start_time)
        or not summary.ended_at
    )
    assert (status.sequence, status.observed_generation) == (7, 2)
    assert {condition.observed_generation for condition in status.conditions} == {2}
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert investigations.Status.model_validate(written) == status, "the cluster gives it back as it is"


def as_of(at: datetime) -> str:
    return f"as of {at:%Y-%m-%dT%H:%M:%SZ}, the last commit"


WITH_ERRORS = end("CompletedWithErrors", LOOKED, reason="StagesFailed", message="it broke")


@pytest.mark.parametrize(
    ("summary", "accepted", "last"),
    [
        (QUEUED, ("True", "Admitted", ""), ("Reconciling", "Queued", as_of(ADMITTED), ADMITTED)),
        (
            replace(RUNNING, cancel="deleted"),
            ("True", "Admitted", ""),
            ("Reconciling", "Cancelling", as_of(STARTED), STARTED),
        ),
        (
            replace(RUNNING, committed_at=STAGE_ENDED),
            ("True", "Admitted", ""),
            ("Reconciling", "Running", as_of(STAGE_ENDED), STARTED),
        ),
        (WITH_ERRORS, ("True", "Admitted", ""), ("Complete", "StagesFailed", "it broke", ENDED)),
        (
            REFUSED,
            ("False", "ChainNotFound", "No chain found"),
            ("Stalled", "ChainNotFound", "No chain found", ADMITTED),
        ),
    ],
    ids=["queued", "cancelling", "running", "with errors", "refused"],
)
def test_conditions_say_why_and_since_when(
    summary: summaries.Summary, accepted: tuple[str, ...], last: tuple[object, ...]
) -> None:
    first, *rest = build(summary).conditions
    assert (first.type, first.last_transition_time) == ("Accepted", ADMITTED)
    assert (first.status, first.reason, first.message) == accepted
    assert {(condition.reason, condition.message, condition.last_transition_time) for condition in rest} == {last[1:]}
    assert rest[-1].type == last[0]


def test_the_numbers_are_the_stores() -> None:
    usage: dict[str, Any] = {
        "input_tokens": 1,
        "output_tokens": 2,
        "thinking_tokens": 3,
        "total_tokens": 6,
        "llm_calls": 4,
        "tool_calls": 6,
    }
    summary = replace(
        end("Completed", LOOKED, stage("think", "Failed", "no model"), message="two of three"),
        **usage,
        duplicates=9,
        previous=related.Previous(id=UUID(int=2), name="a-1"),
        alert_status="resolved",
        final_analysis="It is out of memory.",
    )
    status = build(summary)
    assert status.usage.model_dump(exclude_none=True) == usage
    second = status.stages[1]
    assert (second.iterations, second.tool_calls, second.tokens, second.message) == (2, 3, 4, "no model")
    assert (second.start_time, second.completion_time, second.duration) == (STARTED, STAGE_ENDED, "5s")
    assert status.transcript == f"/api/v1/investigations/{summary.id}"
    of_pages = build(summary, pages="https://tarsy.example").transcript
    assert of_pages == f"https://tarsy.example/investigations/{summary.id}"
    assert (status.duplicates, status.alert_status, status.attempts) == (9, "resolved", 1)
    assert status.previous == investigations.Previous(name="a-1", uid=str(UUID(int=2)))
    assert (status.final_analysis, status.message) == ("It is out of memory.", "two of three")
    assert status.chain is not None
    assert {f"chain_{name}": value for name, value in status.chain} == CHAIN
    assert build(REFUSED).chain is None


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (None, {}),
        (0.0, {"cost": "0"}),
        (0.1 + 0.2, {"cost": "0.3"}),
        (12.0, {"cost": "12"}),
        (1e-13, {"cost": "0"}),
        (0.006299999999999999, {"cost": "0.0063"}),
        (9e18, {"cost": "9000000000000000000"}),
    ],
)
def test_cost_is_shown_as_a_decimal_number_and_omitted_without_any_price(
    cost: float | None, expected: dict[str, str]
) -> None:
    status = build(replace(RUNNING, cost=cost))
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert {name: value for name, value in written["usage"].items() if name == "cost"} == expected
    assert investigations.Status.model_validate(written) == status


GAPS = [{"tool": "k8s.get", "reason": "forbidden"}, {"tool": "k8s", "reason": "cannot be reached"}]
TOLD_GAPS = "k8s.get: forbidden; k8s: cannot be reached"


@pytest.mark.parametrize(
    ("grounds", "gaps", "grounded"),
    [
        ("Inspected", [], ("True", "Inspected", "")),
        ("InspectedWithGaps", GAPS, ("True", "InspectedWithGaps", TOLD_GAPS)),
        ("NothingInspected", GAPS, ("False", "NothingInspected", TOLD_GAPS)),
        ("UnknownReferences", GAPS, ("False", "UnknownReferences", TOLD_GAPS)),
        (None, GAPS, None),
    ],
)
def test_grounds_of_a_result_are_a_condition_and_its_gaps_are_listed(
    grounds: entries.Grounds | None, gaps: list[dict[str, str]], grounded: tuple[str, ...] | None
) -> None:
    summary = replace(end("Completed", LOOKED), grounds=grounds, gaps=gaps, summary="It is\nout of memory.")
    status = build(summary)
    conditions = [condition for condition in status.conditions if condition.type == "Grounded"]
    assert [(condition.status, condition.reason, condition.message) for condition in conditions] == (
        [grounded] if grounded else []
    )
    assert [(status_gap.tool, status_gap.reason) for status_gap in status.gaps or []] == [
        (gap["tool"], gap["reason"]) for gap in gaps
    ]
    assert status.summary == "It is\nout of memory."
    assert build(replace(summary, summary="")).summary is None
    assert not any(condition.type == "Grounded" for condition in build(replace(RUNNING, grounds=grounds)).conditions)


def test_skipped_stage_shows_only_the_reason() -> None:
    skipped = stage("tell", "Skipped", "skipped")
    (stage_status,) = build(replace(end("Failed", skipped), stage_names=("tell",), stage_agents=(2,))).stages
    assert stage_status == investigations.StageStatus(name="tell", phase="Skipped", agents="0/2", message="skipped")


@pytest.mark.parametrize(
    ("summary", "agents"),
    [
        (QUEUED, "0/1 0/3 0/1"),
        (RUNNING, "1/1 0/3 0/1"),
        (replace(RUNNING, stages=(LOOKED, stage("think", completed=2))), "1/1 2/3 0/1"),
        (end("Completed", LOOKED, stage("think", "Completed", completed=3), stage("tell", "Failed")), "1/1 3/3 0/1"),
    ],
)
def test_each_stage_shows_how_many_of_its_agents_completed(summary: summaries.Summary, agents: str) -> None:
    assert " ".join(stage_status.agents or "" for stage_status in build(summary).stages) == agents


def test_stage_message_names_missing_tools_after_failures() -> None:
    ended = stage("think", "Completed", "A-2: no model", completed=2, lacks="no tools")
    stage_status = build(replace(RUNNING, stages=(LOOKED, ended))).stages[1]
    assert stage_status.message == "A-2: no model; no tools"


PASSED_OVER = (
    "waits for a worker that can run its chain: all workers have passed it over since "
    f"{STARTED:%Y-%m-%dT%H:%M:%SZ}; the chain's conditions say why"
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unreadable": "entry 3"}, "waits for a version of TARSy that can read its log: entry 3"),
        ({"suspend": True}, None),
        ({}, None),
        ({"passed_over_since": STARTED}, PASSED_OVER),
        ({"passed_over_since": STARTED, "state": "running"}, PASSED_OVER),
        ({"passed_over_since": STARTED, "suspend": True}, None),
    ],
    ids=[
        *(
            "unreadable",
            "suspended by its object",
            "queued",
        ),
        *("passed over", "passed over after its worker died", "suspended while it was passed over"),
    ],
)
def test_reason_to_wait_is_in_message_and_condition(change: dict[str, Any], message: str | None) -> None:
    status = build(replace(QUEUED, **change))
    assert status.message == message
    expected = "; ".join(filter(None, [as_of(ADMITTED), message]))
    assert [condition.message for condition in status.conditions if condition.type == "Reconciling"] == [expected]


RETRYING = (
    "google-default: 429 too fast; the request is sent again at 2026-11-21T20:01:00Z",
    "other: 503; the request is sent again at 2026-11-21T20:01:09Z",
)


def test_model_requests_that_are_sent_again_are_the_message_while_it_lasts() -> None:
    status = build(replace(RUNNING, retrying=RETRYING))
    assert status.message == "; ".join(RETRYING)
    (condition,) = [candidate for candidate in status.conditions if candidate.type == "Reconciling"]
    assert condition.message == f"{as_of(STARTED)}; {status.message}"
    assert status.headline == f"{RETRYING[0]}; other: 503; the request is sent again…"
    assert build(RUNNING).message is None


@pytest.mark.parametrize(
    ("summary", "headline"),
    [
        (RUNNING, None),
        (
            replace(end("Completed", LOOKED), summary="It is **out** of memory.\nRaise its limit."),
            "It is out of memory.",
        ),
        (replace(end("Completed", LOOKED), final_analysis="# Why\n\nIt is out of memory. So."), "It is out of memory."),
        (replace(end("CompletedWithErrors", LOOKED, message="it broke"), summary="Known."), "Known."),
        (replace(end("Failed", LOOKED, message="no model\nat all"), summary="Known."), "no model at all"),
        (replace(end("TimedOut", LOOKED, message="too late"), final_analysis="Known."), "too late"),
        (end("Cancelled", LOOKED, message="cancelled by request"), "cancelled by request"),
        (REFUSED, "No chain found"),
        (replace(end("Completed", LOOKED), reason="Unchanged", summary="Known. So."), "Unchanged: Known."),
    ],
)
def test_headline_is_the_result_or_the_message_of_what_has_none(
    summary: summaries.Summary, headline: str | None
) -> None:
    assert build(summary).headline == headline


def test_known_secrets_are_masked_in_target_and_headline() -> None:
    secrets = known_secrets.KnownSecrets(["pa55w0rd"])
    summary = replace(end("Completed", LOOKED), summary="It is pa55w0rd. So.", target="shop/pa55w0rd")
    status = build(summary, secrets=secrets)
    assert (status.headline, status.target) == ("It is [MASKED:secret].", "shop/[MASKED:secret]")


@pytest.mark.parametrize(
    ("seconds", "duration"), [(0, "0s"), (59.6, "1m0s"), (92, "1m32s"), (3605, "1h0m5s"), (90_000, "25h0m0s")]
)
def test_durations_are_whole_seconds_as_kubernetes_prints_them(seconds: float, duration: str) -> None:
    summary = replace(end("Completed"), ended_at=STARTED + timedelta(seconds=seconds))
    assert build(summary).duration == duration
    assert build(RUNNING).duration is None


def test_control_characters_from_models_and_tools_are_escaped_in_the_status() -> None:
    hostile = "\x1b]0;title\x07\x9b2J\u202eright\rleft\nnext"
    escaped = "\\x1b]0;title\\x07\\x9b2J\\u202eright\nleft\nnext"
    summary = replace(
        end("Failed", stage("collect", "Failed", hostile), message=hostile),
        final_analysis=hostile,
        summary=hostile,
        grounds="InspectedWithGaps",
        gaps=[{"tool": hostile, "reason": hostile}],
    )
    status = build(summary)
    assert {status.final_analysis, status.summary, status.message, status.gaps[0].reason} == {escaped}
    text = json.dumps(status.model_dump(mode="json"), ensure_ascii=False)
    assert not {"\x9b", "\u202e"} & set(text)
    assert "u001b" not in text
    assert status.final_analysis_truncated is None


@pytest.mark.parametrize(("unit", "size"), [("x", 1), ("\U0001f4a5", 4), ('"', 2)])
def test_texts_are_cut_to_their_share_and_no_status_is_above_64_kib(unit: str, size: int) -> None:
    names = tuple(f"{'s' * 60}-{number:02}" for number in range(20))
    stages = [replace(stage(name, "Failed", unit * 100_000), total_tokens=2**53, tool_calls=2**31) for name in names]
    summary = replace(
        end("Failed", *stages, message=unit * 100_000),
        stage_names=names,
        stage_agents=(1,) * 20,
        final_analysis=unit * 100_000,
        summary=unit * 100_000,
        grounds="InspectedWithGaps",
        gaps=[{"tool": unit * 200, "reason": unit * 200}] * 10,
    )
    status = build(summary)
    *_, failed, grounded = status.conditions
    for text in (status.summary, status.message, status.stages[-1].message, failed.message):
        assert text == unit * (1024 // size)
    assert 1024 - size < len(json.dumps(grounded.message, ensure_ascii=False).encode()) - 2 <= 1024
    cut_text = unit * min(200, 800 // size)
    assert [(gap.tool, gap.reason) for gap in status.gaps or []] == [(cut_text, cut_text)] * 10
    assert (status.final_analysis, status.final_analysis_truncated) == (unit * (8192 // size), True)
    assert build(replace(summary, final_analysis=unit * (8192 // size))).final_analysis_truncated is None
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert len(json.dumps(written, ensure_ascii=False).encode()) < 64 * 1024


def test_text_that_masking_makes_longer_is_cut_behind_it() -> None:
    """A marker is longer than a short secret, and a text may be nothing but secrets."""
    secrets = known_secrets.KnownSecrets(["pa55w0rd"])
    text = "pa55w0rd " * 1000
    summary = replace(
        end("Failed", replace(stage("look", "Failed", text), lacks=[text]), message=text),
        author=text[:253],
        final_analysis=text,
        summary=text,
        grounds="InspectedWithGaps",
        gaps=[{"tool": text[:200], "reason": text[:200]}],
    )
    status = build(summary, secrets=secrets)
    written = status.model_dump_json(by_alias=True)
    assert "pa55" not in written
    assert investigations.Status.model_validate_json(written) == status
    assert status.summary == ("[MASKED:secret] " * 100)[:1024]
    short = build(replace(summary, final_analysis="it is pa55w0rd"), secrets=secrets)
    assert (short.final_analysis, short.final_analysis_truncated) == ("it is [MASKED:secret]", None)


BROKE = stage("look", "Failed", "no model")
BEGUN = ("Started", "chain pod-crash with 3 stages", STARTED, False)
FAILED = ("StageFailed", "stage look: no model", STAGE_ENDED, True)
LOST = ("Failed", "3 stages", ENDED, True)
DONE_WELL = ("Completed", "3 stages", ENDED, False)
BLIND = stage("look", "Completed", lacks="no tools")
LACKED = ("ToolsUnavailable", "stage look: no tools", STAGE_ENDED, True)
HALF = stage("look", "Completed", "A-2: no model", completed=1)
HALF_FAILED = ("AgentsFailed", "stage look: A-2: no model", STAGE_ENDED, True)

UNJOINED = replace(stage("look", "CompletedWithErrors", "no synthesis"), unjoined=True)
AWAY = stage("look", "CompletedWithErrors", "A: none of its MCP servers could be reached: k8s")
AWAY_TOLD = ("ToolsUnavailable", f"stage look: {AWAY.message}", STAGE_ENDED, True)
UNJOINED_TOLD = ("SynthesisFailed", "stage look: no synthesis", STAGE_ENDED, True)


@pytest.mark.parametrize(
    ("summary", "story"),
    [
        (QUEUED, []),
        (RUNNING, [BEGUN]),
        (
            replace(end("Completed", LOOKED), stage_names=("look",), stage_agents=(1,)),
            [("Started", "chain pod-crash with 1 stage", STARTED, False), ("Completed", "1 stage", ENDED, False)],
        ),
        (end("Failed", replace(BROKE, outcome="TimedOut"), stage("tell", "Skipped", "skipped")), [BEGUN, FAILED, LOST]),
        (end("Completed", LOOKED), [BEGUN, DONE_WELL]),
        (end("Completed", BLIND), [BEGUN, LACKED, DONE_WELL]),
        (end("Completed", HALF), [BEGUN, HALF_FAILED, DONE_WELL]),
        (
            end("Cancelled", stage("look", "Cancelled", "by the user"), message="why"),
            [BEGUN, ("Cancelled", "why", ENDED, True)],
        ),
        (
            end("CompletedWithErrors", UNJOINED, message="why"),
            [BEGUN, UNJOINED_TOLD, ("Completed", "why", ENDED, False)],
        ),
        (end("CompletedWithErrors", AWAY, message="why"), [BEGUN, AWAY_TOLD, ("Completed", "why", ENDED, False)]),
        (end("Failed", BROKE, message="why"), [BEGUN, FAILED, ("Failed", "why", ENDED, True)]),
        (REFUSED, [("Failed", "No chain found", ADMITTED, True)]),
    ],
)
def test_the_events_tell_the_story(summary: summaries.Summary, story: list[tuple[str, str, datetime, bool]]) -> None:
    assert [(event.reason, event.message, event.at, event.warning) for event in projector.events_of(summary)] == story


def test_undelivered_messages_are_a_condition_of_open_and_ended_investigations() -> None:
    secrets = known_secrets.KnownSecrets()
    secrets.add(["hunter2-4711-hunter2"])
    messages = tuple(
        summaries.Undelivered(receiver=name, problem=problem, at=ENDED)
        for name, problem in (("hook", "hunter2-4711-hunter2"), ("slack", ""))
    )
    for summary in (QUEUED, replace(QUEUED, ended_at=ENDED, ending="Completed")):
        assert "Delivered" not in {status_condition.type for status_condition in build(summary).conditions}
        status = investigation_statuses.build(replace(summary, undelivered=messages), secrets=secrets)
        (condition,) = (candidate for candidate in status.conditions if candidate.type == "Delivered")
        assert (condition.status, condition.reason, condition.last_transition_time) == ("False", "GivenUp", ENDED)
        assert condition.message == "receiver hook: [MASKED:secret]; receiver slack: it was not reached"

"""The words, fields and messages of earlier clients: tables, and their own examples as schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import pytest
from pydantic import BaseModel
from support import examples, stories, summary_rows
from tarsy.api.compat import history as compat
from tarsy.api.compat import live_updates, sessions, stages, statuses, timeline
from tarsy.resources import chains, investigations
from tarsy.store.reads import stage_rows, summaries
from tarsy.transcript import entries, messages

AT = datetime(2026, 11, 21, 3, 17, 40, 512345, tzinfo=UTC)
US = 1795231060512345
ID = UUID("6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64")


@pytest.fixture
def documents(captures: Path) -> Path:
    """The founding documents' examples."""
    return captures / "compat"


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("phase", "session", "processing"),
    [
        ("Queued", "pending", "queued"),
        ("Suspended", "pending", "queued"),
        ("Waiting", "pending", "queued"),
        ("Running", "in_progress", "processing"),
        ("Cancelling", "cancelling", "processing"),
        ("Completed", "completed", "completed"),
        ("CompletedWithErrors", "completed", "completed"),
        ("Failed", "failed", "failed"),
        ("Cancelled", "cancelled", "failed"),
        ("TimedOut", "timed_out", "failed"),
    ],
)
def test_each_phase_maps_to_one_status_per_client(
    phase: investigations.Phase, session: statuses.Session, processing: statuses.Processing
) -> None:
    assert statuses.INVESTIGATIONS[phase] == (session, processing)
    assert phase in statuses.phases(session)


def test_every_phase_and_every_status_is_in_the_table() -> None:
    assert set(statuses.INVESTIGATIONS) == set(get_args(investigations.Phase))
    assert {words.session for words in statuses.INVESTIGATIONS.values()} == set(get_args(statuses.Session))
    assert set(statuses.STAGES) == set(get_args(investigations.StagePhase))
    assert {stage_status.status for stage_status in statuses.STAGES.values()} == set(get_args(statuses.Stage))
    assert set(statuses.EXECUTIONS) == {None, *get_args(entries.Outcome)}
    assert {*statuses.EXECUTIONS.values(), "pending"} == set(get_args(statuses.Execution))


@pytest.mark.parametrize(
    ("outcome", "status", "has_errors"),
    [
        (None, "active", False),
        ("Completed", "completed", False),
        ("CompletedWithErrors", "completed", True),
        ("Failed", "failed", True),
        ("TimedOut", "failed", True),
        ("Cancelled", "failed", True),
        ("Skipped", "skipped", False),
    ],
)
def test_stage_outcome_maps_to_one_status_and_an_error_flag(
    outcome: entries.StageOutcome | None, status: str, has_errors: bool
) -> None:
    assert statuses.stage_status("a", {"a": outcome}, ended=True) == (status, has_errors)


def test_a_stage_that_never_started_is_pending_or_was_cancelled_with_the_investigation() -> None:
    assert statuses.stage_status("a", {}, ended=False) == ("pending", False)
    assert statuses.stage_status("a", {}, ended=True) == ("failed", True)


def test_times_are_microseconds_and_convert_back_unchanged() -> None:
    assert statuses.to_us(AT) == US
    assert statuses.from_us(US) == AT
    assert statuses.from_us(statuses.LATEST_US).year == 9999
    assert statuses.elapsed_ms(AT, AT + timedelta(microseconds=1_999)) == 1
    assert statuses.elapsed_ms(AT, AT - timedelta(seconds=1)) == 0
    assert statuses.elapsed_ms(None, AT) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ("pod web-0", {"text": "pod web-0"}),
        ('{"a": 1e999}', {"text": '{"a": 1e999}'}),
        ('{"a": "\\ud800\\u0000"}', {"a": "\ufffd\ufffd"}),
        ("[" * 100_000, {"text": "[" * 100_000}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_alert_data_is_a_json_object_or_has_the_text(text: str, expected: object) -> None:
    parsed = compat.alert_data(text)
    assert parsed == expected
    json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()


MODELS: dict[str, type[BaseModel]] = {
    "AlertSession": sessions.AlertSession,
    "Stage": sessions.SessionStage,
    "AgentExecution": sessions.AgentExecution,
    "StageExecution": compat.StageExecution,
    "ChainNode": compat.ChainNode,
    "ChainInfo": compat.ChainInfo,
    "DashboardSessionSummary": compat.DashboardSessionSummary,
    "DashboardSessionDetail": compat.DashboardSessionDetail,
    "TimelineEvent": timeline.TimelineEvent,
    "ProcessingStatus": sessions.ProcessingStatus,
    "AlertStatusUpdate": live_updates.AlertStatusUpdate,
}


@pytest.mark.parametrize("name", MODELS)
def test_models_have_every_field_of_the_founding_documents(documents: Path, name: str) -> None:
    assert set(load(documents, "fields")[name]) <= MODELS[name].model_fields.keys()


STAGES = (
    chains.Stage(name="collection", agent="DataAgent"),
    chains.Stage(name="analysis", agents=[chains.StageAgent(name="A"), chains.StageAgent(name="A")]),
    chains.Stage(name="remediation", agent="Fixer", replicas=2, success_policy="all"),
)
SPEC = chains.Spec(alert_types=["kubernetes"], stages=list(STAGES))
COURSE = stage_rows.StageProgress(
    stage_names=tuple(stage.name for stage in STAGES),
    outcomes={},
    chain=SPEC,
    owner=None,
    host=None,
    last_call_at=None,
    now=AT,
)
PLANS = stages.chain_stages(COURSE)


def test_a_chain_stage_names_its_agents() -> None:
    first_plan, two, three = PLANS
    assert (first_plan.agent, first_plan.execution_type, first_plan.parallel_type, first_plan.success_policy) == (
        "DataAgent",
        "sequential",
        None,
        None,
    )
    assert (two.agents, two.parallel_type, two.success_policy) == (("A-1", "A-2"), "multi_agent", "any")
    assert (three.agent, three.parallel_type, three.success_policy) == ("Fixer-1, Fixer-2", "replica", "all")
    assert (two.execution_type, two.group) == ("parallel", "analysis-group")
    unreadable = stages.chain_stages(replace(COURSE, chain=None))
    assert [(plan.name, plan.agent) for plan in unreadable] == [
        ("collection", ""),
        ("analysis", ""),
        ("remediation", ""),
    ]


def stage(name: str, outcome: str | None = None, message: str = "") -> summaries.StageSummary:
    return summary_rows.stage(
        name=name,
        outcome=outcome,
        message=message,
        started_at=None if outcome == "Skipped" else AT,
        ended_at=AT if outcome else None,
    )


def summary(**fields: Any) -> summaries.Summary:
    """A running investigation of that chain, but for what is said."""
    defaults: dict[str, Any] = {"id": ID, "state": "running", "alert_type": "kubernetes", "chain_name": "pod-crash"}
    defaults |= {"stage_names": COURSE.stage_names, "stage_agents": (1, 2, 2), "admitted_at": AT, "started_at": AT}
    return summary_rows.summary(**defaults | fields)


def ended(ending: entries.Ending, **fields: Any) -> summaries.Summary:
    return summary(state="ended", ending=ending, ended_at=AT, **fields)


@pytest.mark.parametrize(
    ("session_summary", "expected"),
    [
        (summary(state="queued", started_at=None), ("queued", 0, "Alert queued for processing")),
        (summary(), ("processing", 20, "Executing chain: pod-crash")),
        (summary(stages=(stage("collection", "Failed"),)), ("processing", 46, "Executing chain: pod-crash")),
        (
            summary(state="queued", stages=(stage("collection", "Failed"),)),
            ("queued", 46, "Alert queued for processing"),
        ),
        (
            summary(stages=tuple(stage(name, "Completed") for name in COURSE.stage_names)),
            ("processing", 99, "Executing chain: pod-crash"),
        ),
        (summary(cancel="user"), ("processing", 20, "Executing chain: pod-crash")),
        (
            summary(state="queued", unreadable="entry 7"),
            ("queued", 20, "waits for a version of TARSy that can read its log: entry 7"),
        ),
        (ended("Completed"), ("completed", 100, "Processing completed")),
        (ended("Failed", message="all stages failed"), ("failed", 100, "Error: all stages failed")),
        (ended("Cancelled", reason="CancelledByUser"), ("failed", 100, "Error: CancelledByUser")),
        (
            ended("Failed", message="No chain found", started_at=None, chain_name=None, stage_names=()),
            ("failed", 100, "Error: No chain found"),
        ),
    ],
)
def test_progress_is_a_percentage_and_a_message(
    session_summary: summaries.Summary, expected: tuple[str, int, str], documents: Path
) -> None:
    answer = sessions.processing_status(session_summary)
    assert (answer.status, answer.progress, answer.message) == expected
    examples.like(load(documents, "processing-status"), answer.model_dump(mode="json"))


def updates(log: Sequence[entries.Entry], session_summary: summaries.Summary) -> list[dict[str, Any]]:
    return [
        update.model_dump(mode="json")
        for entry in log
        for update in live_updates.entry_updates(entry, session_summary, PLANS)
    ]


def test_updates_of_a_log_match_the_founding_documents(documents: Path) -> None:
    log: list[entries.Entry] = [
        stories.stage_started("collection"),
        stories.started(),
        stories.answers(),
        stories.ended(),
        stories.stage_ended("collection"),
        stories.stage_started("analysis"),
        stories.stage_ended("analysis", "TimedOut", "too late"),
        stories.stage_started("remediation"),
        stories.stage_ended("remediation", "CompletedWithErrors"),
        stories.run_ended("CompletedWithErrors", "StagesFailed", final_analysis="root cause"),
    ]
    outcomes = {"collection": "Completed", "analysis": "TimedOut", "remediation": "CompletedWithErrors"}
    stages = tuple(stage(name, outcome) for name, outcome in outcomes.items())
    sent_updates = updates(log, ended("CompletedWithErrors", stages=stages, final_analysis="root cause"))
    fields = ("current_step", "current_stage", "current_agent", "completed_stages")
    assert [tuple(sent[field] for field in fields) for sent in sent_updates] == [
        ("Starting chain execution", None, None, 0),
        ("Starting collection", "collection", "DataAgent", 0),
        ("Completed collection", None, None, 1),
        ("Starting analysis", "analysis", "A-1, A-2", 1),
        ("Completed analysis", None, None, 2),
        ("Starting remediation", "remediation", "Fixer-1, Fixer-2", 2),
        ("Completed remediation", None, None, 3),
        ("Chain execution finished", None, None, 3),
    ]
    assert [[progress["status"] for progress in update["stage_progress"]] for update in sent_updates] == [
        ["pending", "pending", "pending"],
        ["active", "pending", "pending"],
        ["completed", "pending", "pending"],
        ["completed", "active", "pending"],
        ["completed", "failed", "pending"],
        ["completed", "failed", "active"],
        ["completed", "failed", "completed"],
        ["completed", "failed", "completed"],
    ]
    assert [sent["status"] for sent in sent_updates] == ["processing"] * 7 + ["completed"]
    assert {sent["result"] for sent in sent_updates[:-1]} == {None}
    assert (sent_updates[-1]["result"], sent_updates[-1]["error"]) == ("root cause", None)
    for example, step in zip(load(documents, "alert-status-updates"), (0, 1, 2, 7), strict=True):
        examples.like(example, sent_updates[step])
        assert sent_updates[step]["status"] == example["status"]


def test_an_ended_investigation_has_the_reason_of_its_end_in_the_last_update() -> None:
    stopped: list[entries.Entry] = [
        stories.stage_started("collection"),
        stories.stage_ended("collection", "Failed", "x"),
        stories.stage_ended("analysis", "Skipped"),
        stories.stage_ended("remediation", "Skipped"),
        stories.run_ended("Failed", "StagesFailed", message="stage collection: x"),
    ]
    stages = (stage("collection", "Failed"), stage("analysis", "Skipped"), stage("remediation", "Skipped"))
    *_, last = sent_updates = updates(stopped, ended("Failed", stages=stages, message="stage collection: x"))
    assert [update["current_step"] for update in sent_updates[2:]] == [
        "Completed collection",
        "Chain execution finished",
    ]
    assert [progress["status"] for progress in last["stage_progress"]] == ["failed", "skipped", "skipped"]
    assert (last["status"], last["error"], last["completed_stages"]) == ("failed", "stage collection: x", 1)


def test_questions_and_unreadable_entries_have_no_updates() -> None:
    later: list[entries.Entry] = [
        entries.RunStarted(run=1, question="Why?"),
        entries.StageStarted(run=1, stage="collection", clock=0.0),
        entries.StageEnded(run=1, stage="collection", outcome="Completed"),
        replace(stories.run_ended(), run=1),
    ]
    assert updates(later, ended("Completed")) == []
    unreadable = entries.Unreadable(kind="New", version=1, problem="?")
    assert list(live_updates.entry_updates(unreadable, summary())) == []


def execution(identity: str, **fields: Any) -> stage_rows.Execution:
    defaults: dict[str, Any] = {"stage": "collection", "kind": "agent", "index": 0, "name": identity, "error": ""}
    defaults |= {"strategy": "native-thinking", "outcome": "Completed", "started_at": AT, "ended_at": AT}
    return stage_rows.Execution(id=identity, **defaults | fields)


OUTPUTS: list[tuple[str, summaries.StageSummary, list[stage_rows.Execution], dict[str, str]]] = [
    (
        "success",
        stage("collection", "Completed"),
        [execution("a")],
        {"analysis": "said by a", "strategy": "native-thinking"},
    ),
    (
        "timeout",
        stage("collection", "TimedOut", "too late"),
        [execution("a", outcome="TimedOut")],
        {"error": "too late"},
    ),
    (
        "fatal",
        stage("collection", "Failed", "no agent"),
        [execution("a", outcome="Failed", strategy="")],
        {"error": "no agent"},
    ),
]


@pytest.mark.parametrize(("example", "stage_summary", "executions", "fields"), OUTPUTS)
def test_a_stage_output_has_the_fields_of_the_founding_documents(
    documents: Path,
    example: str,
    stage_summary: summaries.StageSummary,
    executions: list[stage_rows.Execution],
    fields: dict[str, str],
) -> None:
    output = stages.stage_output(PLANS[0], stage_summary, executions, {"a": "said by a"})
    assert output is not None
    examples.like(load(documents, "stage-outputs")[example], output)
    assert fields.items() <= output.items()
    if example != "success":
        assert output["error_type"] == example
        assert (output["stage_name"], output["agent"], output["timestamp"]) == ("collection", "DataAgent", US)
        assert output["error_details"]["exception_message"] == output["error"]


def test_parallel_agents_have_one_joined_analysis_and_one_output_each() -> None:
    agents = [
        execution("b", stage="analysis", index=1, name="A-2", outcome="TimedOut", error="too late"),
        execution("a", stage="analysis", index=0, name="A-1"),
    ]
    conclusions = {"a": "of a", "s": "of both"}
    synthesis = execution("s", stage="analysis", kind="synthesis", strategy="synthesis")
    completed, plan = stage("analysis", "Completed"), PLANS[1]
    joined = stages.stage_output(plan, completed, [*agents, synthesis], conclusions)
    assert joined
    assert (joined["analysis"], joined["strategy"], joined["agent"]) == ("of both", "synthesis", "A-1, A-2")
    failed = [*agents, replace(synthesis, outcome="Failed")]
    unjoined = stages.stage_output(plan, stage("analysis", "CompletedWithErrors", "no synthesis"), failed, conclusions)
    assert unjoined
    assert (unjoined["analysis"], unjoined["error"], unjoined["error_type"]) == ("of a", "no synthesis", "agent_error")
    both = [replace(agents[0], outcome="Completed"), agents[1]]
    apart = stages.stage_output(plan, completed, both, conclusions | {"b": "of b"})
    assert apart
    assert apart["analysis"] == "A-1:\n\nof a\n\nA-2:\n\nof b"
    each = stages.agent_outputs("analysis", [*agents, synthesis], conclusions)
    assert [(name, result.get("analysis"), result.get("error_type")) for name, result in each] == [
        ("A-1", "of a", None),
        ("A-2", None, "timeout"),
    ]
    assert stages.stage_output(plan, stage("analysis"), agents, conclusions) is None, "it runs"
    assert stages.stage_output(plan, stage("analysis", "Skipped"), [], conclusions) is None


def logged(log: Sequence[entries.Entry], *, run: int = 0) -> list[entries.Logged]:
    """A log's entries in their places, a second each."""
    return [
        entries.Logged(
            seq=seq,
            at=AT + timedelta(seconds=seq),
            claim=1,
            run=run,
            stage="collection" if getattr(entry, "execution", "") == "one" else getattr(entry, "stage", "analysis"),
            execution=getattr(entry, "execution", ""),
            entry=entry,
        )
        for seq, entry in enumerate(log, 1)
    ]


ASKED = stories.asks("k8s.pods_log", "k8s.pods_get", thinking="Hm.")
LOG: list[entries.Entry] = [
    stories.stage_started("collection"),
    stories.started(stage="collection"),
    ASKED,
    stories.ran(ASKED, 0, text="its log"),
    stories.ran(ASKED, 1, text="forbidden", failed=True),
    stories.unanswered(call_number=1),
    stories.answers("found", call_number=2),
    stories.ended(),
    stories.stage_ended("collection"),
    stories.stage_started("analysis"),
    stories.started("a", index=0),
    stories.started("b", index=1),
    stories.answers("of b", execution="b"),
    stories.ended("b"),
    stories.answers("of a", execution="a"),
    stories.ended("a"),
    stories.answers("of both", execution="s"),
    stories.ended("s"),
    stories.stage_ended("analysis", "CompletedWithErrors", "x"),
]
EXECUTIONS = [
    execution("one", name="DataAgent"),
    execution("a", stage="analysis", name="A-1"),
    execution("b", stage="analysis", name="A-2", index=1),
    execution("s", stage="analysis", kind="synthesis", name="SynthesisAgent"),
]


def build_timeline(log: Sequence[entries.Logged], *, limit: int = 100) -> timeline.TimelineBuilder:
    teller = timeline.TimelineBuilder(PLANS, EXECUTIONS, limit=limit)
    for entry in log:
        teller.add([entry])
    return teller


def test_events_are_in_order_with_their_stage_and_their_agents(documents: Path) -> None:
    teller = build_timeline(logged(LOG))
    assert [(event.type, event.step_description) for event in teller.events] == [
        ("stage_start", "Starting collection"),
        ("llm_interaction", "DataAgent: gemini-2.5-flash"),
        ("mcp_communication", "DataAgent: k8s.pods_log"),
        ("mcp_communication", "DataAgent: k8s.pods_get failed"),
        ("llm_interaction", "DataAgent: gemini-2.5-flash failed"),
        ("llm_interaction", "DataAgent: gemini-2.5-flash"),
        ("stage_complete", "Completed collection"),
        ("stage_start", "Starting analysis"),
        ("parallel_start", "Starting parallel analysis with 2 agents"),
        ("llm_interaction", "A-2: gemini-2.5-flash"),
        ("llm_interaction", "A-1: gemini-2.5-flash"),
        ("parallel_complete", "Completed parallel analysis with 2 agents"),
        ("llm_interaction", "SynthesisAgent: gemini-2.5-flash"),
        ("stage_complete", "Completed analysis"),
    ]
    assert {event.type for event in teller.events} == set(get_args(timeline.Type))
    assert len({event.event_id for event in teller.events}) == len(teller.events)
    assert [event.timestamp_us for event in teller.events] == sorted(event.timestamp_us for event in teller.events)
    document = {"chronological_timeline": [event.model_dump(mode="json") for event in teller.events]}
    wanted = load(documents, "session-detail")
    examples.like({"chronological_timeline": wanted["chronological_timeline"]}, document)
    start, asked, ran, refused, failed, *_ = document["chronological_timeline"]
    assert start["stage_context"] == {
        "stage_id": "collection",
        "execution_type": "sequential",
        "agent": "DataAgent",
        "agents": None,
        "parallel_group": None,
    }
    assert (asked["duration_ms"], asked["timestamp_us"]) == (1000, statuses.to_us(AT + timedelta(seconds=3)))
    assert (asked["details"]["tool_calls"], asked["details"]["thinking"]) == (["k8s.pods_log", "k8s.pods_get"], "Hm.")
    assert ran["details"] == {
        "server_name": "k8s",
        "tool_name": "pods_log",
        "tool_arguments": {"name": "web-0"},
        "tool_result": "its log",
        "success": True,
        "error_message": None,
    }
    assert (refused["details"]["success"], refused["details"]["error_message"]) == (False, "forbidden")
    assert (failed["details"]["success"], failed["details"]["error_message"]) == (False, "no answer")
    by_b, together = document["chronological_timeline"][9], document["chronological_timeline"][8]
    assert (by_b["stage_context"]["agent"], by_b["parallel_context"]["parallel_index"]) == ("A-2", 1)
    assert (together["stage_context"]["agent"], together["parallel_context"]["agents"]) == (None, ["A-1", "A-2"])
    assert document["chronological_timeline"][12]["parallel_context"] is None, "a synthesis works by itself"


def test_events_and_their_texts_are_bounded_and_truncation_is_marked() -> None:
    log = logged(LOG)
    for limit in range(len(build_timeline(log).events) + 2):
        teller = build_timeline(log, limit=limit)
        assert teller.events == build_timeline(log).events[:limit]
        assert teller.is_full == (limit < len(build_timeline(log).events))
    long = "x" * 100_000
    huge = stories.asks(*[f"k8s.{long}"] * 1_000, text=long, thinking=long)
    asked = replace(huge, messages=(replace(huge.messages[-1], text=long),))
    call = messages.ToolCall(id="0.0", name=long, arguments=json.dumps({"a": long}))
    ran = replace(stories.ran(ASKED, 0, text=long).runs[0], call=call)
    lengthy: list[entries.Entry] = [
        asked,
        entries.ToolsAnswered(execution="one", runs=(ran,)),
        stories.unanswered(failure=replace(stories.FATAL, text=long)),
        stories.stage_ended("collection", "Failed", long),
    ]
    for event in build_timeline(logged(lengthy)).events:
        assert len(event.model_dump_json()) < 30_000, event.type
    assert (
        build_timeline(logged(lengthy)).events[1].details["tool_arguments"]
        == json.dumps({"a": long})[: timeline.TEXT_MAX]
    )


def test_entries_of_questions_and_of_unknown_agents_and_stages_do_no_harm() -> None:
    assert build_timeline(logged(LOG, run=1)).events == []
    teller = timeline.TimelineBuilder([], [])
    teller.add(logged([*LOG, stories.stage_ended("never", "Skipped"), stories.run_ended()]))
    assert {event.type for event in teller.events} == {
        "stage_start",
        "stage_complete",
        "llm_interaction",
        "mcp_communication",
    }

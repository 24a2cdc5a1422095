"""The spans of an investigation as a pure function of its log: their tree, their names, and what they say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import stories
from tarsy.resources import chains
from tarsy.telemetry import genai, spans
from tarsy.transcript import entries, entry_versions, log_spans, record

UID = "6f0c3a52-1111-2222-3333-444455556666"
ADMITTED = datetime(2026, 11, 25, 9, 0, tzinfo=UTC)
CHAIN = chains.Spec.model_validate({"alertTypes": ["Crash"], "stages": [{"name": "analysis", "agent": "A"}]})
SNAPSHOT = record.Snapshot(
    id=UID,
    namespace="tarsy",
    name="web-crash",
    alert_type="Crash",
    alert_data="web-0 restarts",
    chain_name="pod-crash",
    chain=CHAIN,
    admitted_at=ADMITTED,
)
TYPES = {"google-default": "google", "other": "openai"}


def at(seq: int) -> datetime:
    return ADMITTED + timedelta(seconds=10 * seq)


def spans_of(
    *log: entries.Entry, snapshot: record.Snapshot = SNAPSHOT, contents: bool = False, first: int = 1
) -> list[spans.Span]:
    fold = log_spans.LogSpans(snapshot=snapshot, provider_type=TYPES.get, contents=contents)
    return [span for seq, entry in enumerate(log, first) for span in fold.add(seq, at(seq), entry)]


ASKS = stories.asks("k8s.pods_log", "k8s.pods_list", thinking="which one?")
ASKS = replace(ASKS, call=replace(ASKS.call, response_model="gemini-2.5-flash-09-2025", response_id="Zx3k"))
WHOLE: tuple[entries.Entry, ...] = (
    stories.stage_started(),
    stories.started(),
    ASKS,
    stories.ran(ASKS, text="log lines"),
    stories.answers("the disk is full", call_number=1),
    stories.ended(),
    stories.stage_ended(),
    stories.run_ended(final_analysis="the disk is full"),
)


def named(emitted: Sequence[spans.Span], name: str) -> spans.Span:
    (span,) = [span for span in emitted if span.name == name]
    return span


def test_a_run_is_a_tree_of_workflow_stage_agent_and_calls() -> None:
    emitted = spans_of(*WHOLE)
    by_id = {span.span_id: span for span in emitted}
    tree = {(span.name, by_id[span.parent_id].name if span.parent_id else "") for span in emitted}
    assert tree == {
        ("invoke_workflow pod-crash", ""),
        ("stage analysis", "invoke_workflow pod-crash"),
        ("invoke_agent KubernetesAgent", "stage analysis"),
        ("chat gemini-2.5-flash", "invoke_agent KubernetesAgent"),
        ("execute_tool k8s.pods_log", "invoke_agent KubernetesAgent"),
        ("execute_tool k8s.pods_list", "invoke_agent KubernetesAgent"),
    }
    assert {span.trace_id for span in emitted} == {spans.trace_id(UID, 0)}
    assert len(by_id) == len(emitted) == 7


def test_times_come_from_the_commits_and_no_span_leaves_its_parent() -> None:
    emitted = spans_of(*WHOLE)
    by_id = {span.span_id: span for span in emitted}
    root = named(emitted, "invoke_workflow pod-crash")
    assert (root.start, root.end) == (ADMITTED, at(8))
    assert named(emitted, "execute_tool k8s.pods_log").start == at(4) - timedelta(seconds=0.5)
    for span in emitted:
        assert span.start <= span.end
        if span.parent_id:
            assert by_id[span.parent_id].start <= span.start
            assert span.end <= by_id[span.parent_id].end


def test_names_are_those_of_the_conventions_commit() -> None:
    """The tables of `docs/gen-ai/` at `genai.COMMIT`: required and recommended attributes that the log knows."""
    emitted = spans_of(*WHOLE)
    shared = {"gen_ai.conversation.id": UID, "session.id": UID, "tarsy.run": 0}
    workflow = named(emitted, "invoke_workflow pod-crash").attributes
    assert workflow.items() >= {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "pod-crash"}.items()
    agent = named(emitted, "invoke_agent KubernetesAgent").attributes
    assert (
        agent.items()
        >= {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "KubernetesAgent",
            "gen_ai.agent.id": "one",
            "gen_ai.provider.name": "gcp.gemini",
        }.items()
    )
    first, last = [span for span in emitted if span.name.startswith("chat")]
    assert first.kind == "client"
    assert {key: value for key, value in first.attributes.items() if key.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": UID,
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-2.5-flash",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "gemini-2.5-flash-09-2025",
        "gen_ai.response.id": "Zx3k",
        "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 23,
        "gen_ai.usage.reasoning.output_tokens": 3,
    }
    assert not last.attributes.keys() & {"gen_ai.response.model", "gen_ai.response.id"}, "the provider named none"
    assert last.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    tool = named(emitted, "execute_tool k8s.pods_log").attributes
    assert (
        tool.items()
        >= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "k8s.pods_log",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": "0.0",
        }.items()
    )
    assert all(span.attributes.items() >= shared.items() for span in emitted)
    assert not any(span.failed or genai.ERROR_TYPE in span.attributes for span in emitted)


LANGFUSE_TYPES = {"chat": "GENERATION", "invoke_agent": "AGENT", "execute_tool": "TOOL"}
"""`ObservationTypeMapper.ts` of Langfuse, mapper OTel_GenAI_Operation; the other spans are of type SPAN.

Source: https://github.com/langfuse/langfuse, commit 005da4e537e82284b83f9f3c8a5b4ceb83e731fd.
"""
LANGFUSE_FIELDS = {
    "sessionId": ("langfuse.session.id", "session.id"),
    "model": ("langfuse.observation.model.name", "gen_ai.request.model", "gen_ai.response.model"),
    "usage.input": ("gen_ai.usage.input_tokens",),
    "usage.output": ("gen_ai.usage.output_tokens",),
    "cost": ("langfuse.observation.cost_details", "gen_ai.usage.cost"),
    "input": ("gen_ai.input.messages", "gen_ai.tool.call.arguments"),
    "output": ("gen_ai.output.messages", "gen_ai.tool.call.result"),
}
"""The documented names that Langfuse reads each field from.

Source: its page "OpenTelemetry (OTEL) for LLM Observability", "Attribute Mapping", of langfuse-docs at commit
011ec6949019b0b86bf5d6712861256bbaf2b21d; input and output also of OtelIngestionProcessor.systemInstructions.test.ts.
"""


def test_langfuse_finds_type_session_model_usage_cost_and_contents() -> None:
    priced = replace(ASKS, call=replace(stories.CALL, cost=0.25))
    emitted = spans_of(*WHOLE[:2], priced, *WHOLE[3:], contents=True)

    def read(span: spans.Span, field: str) -> object:
        return next((span.attributes[name] for name in LANGFUSE_FIELDS[field] if name in span.attributes), None)

    types = {
        span.name.split()[0]: LANGFUSE_TYPES.get(str(span.attributes.get(genai.OPERATION)), "SPAN") for span in emitted
    }
    assert types == {
        "invoke_workflow": "SPAN",
        "stage": "SPAN",
        "invoke_agent": "AGENT",
        "chat": "GENERATION",
        "execute_tool": "TOOL",
    }
    assert {read(span, "sessionId") for span in emitted} == {UID}
    generation = next(span for span in emitted if span.name.startswith("chat"))
    assert read(generation, "model") == "gemini-2.5-flash"
    assert (read(generation, "usage.input"), read(generation, "usage.output")) == (100, 23)
    assert read(generation, "cost") == 0.25
    for span in emitted:
        has_contents = not span.name.startswith("stage")
        assert (read(span, "input") is not None, read(span, "output") is not None) == (has_contents, has_contents)


def test_contents_are_left_out_unless_asked_for() -> None:
    secret = "the disk is full"
    log = (*WHOLE[:5], stories.ended(outcome="Failed", error=secret), *WHOLE[6:])
    for span in spans_of(*log):
        assert not genai.CONTENTS & set(span.attributes)
        assert secret not in repr(span)


def test_contents_follow_the_conventions_shapes_and_each_call_has_what_was_new_to_it() -> None:
    emitted = spans_of(*WHOLE, contents=True)
    first, last = [span.attributes for span in emitted if span.name.startswith("chat")]

    def parts(value: object) -> object:
        assert isinstance(value, spans.JSON)
        return json.loads(json.dumps(value.value))

    assert parts(first[genai.SYSTEM_INSTRUCTIONS]) == [{"type": "text", "content": "You are an agent."}]
    assert parts(first[genai.INPUT_MESSAGES]) == [
        {"role": "user", "parts": [{"type": "text", "content": "web-0 dies"}]}
    ]
    arguments = '{"name": "web-0"}'
    assert parts(first[genai.OUTPUT_MESSAGES]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "which one?"},
                {"type": "tool_call", "id": "0.0", "name": "k8s.pods_log", "arguments": arguments},
                {"type": "tool_call", "id": "0.1", "name": "k8s.pods_list", "arguments": arguments},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert parts(last[genai.INPUT_MESSAGES]) == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"0.{index}", "response": "log lines"}]}
        for index in range(2)
    ]
    root = named(emitted, "invoke_workflow pod-crash").attributes
    assert parts(root[genai.INPUT_MESSAGES]) == [
        {"role": "user", "parts": [{"type": "text", "content": "web-0 restarts"}]}
    ]
    tool = named(emitted, "execute_tool k8s.pods_log").attributes
    assert (tool[genai.TOOL_ARGUMENTS], tool[genai.TOOL_RESULT]) == (arguments, "log lines")


def test_long_contents_are_cut() -> None:
    asked = stories.asks(*["k8s.pods_log"] * 100)
    log = [*WHOLE[:2], asked, stories.ran(asked, text="x" * 100_000), stories.answers("y" * 10**6, call_number=1)]
    emitted = spans_of(*log, contents=True)
    assert max(span.characters for span in emitted) < 4 * log_spans.CONTENT_MAX
    assert len(emitted) == 102


def test_failures_have_their_error_and_no_message_without_contents() -> None:
    log = (
        *WHOLE[:2],
        stories.unanswered(failure=stories.OVERLOADED),
        stories.fell_back("other", call_number=1),
        replace(stories.answers(call_number=1), call=replace(stories.CALL, provider="other", model="gpt-5.1")),
        stories.ended(outcome="TimedOut", error="Stage analysis timed out after 5 s"),
        stories.stage_ended(outcome="Failed", message="nobody has a result"),
        stories.run_ended("Failed", "StagesFailed", message="all failed"),
    )
    errors = [(span.name, span.attributes.get(genai.ERROR_TYPE), span.failed, span.message) for span in spans_of(*log)]
    assert errors == [
        ("chat gemini-2.5-flash", "503", True, ""),
        ("chat gemini-2.5-flash", "503", True, ""),
        ("chat gpt-5.1", None, False, ""),
        ("invoke_agent KubernetesAgent", "TimedOut", True, ""),
        ("stage analysis", "Failed", True, ""),
        ("invoke_workflow pod-crash", "StagesFailed", True, ""),
    ]
    assert spans_of(*log)[2].attributes[genai.PROVIDER] == "openai"
    assert [span.message for span in spans_of(*log, contents=True)][-2:] == ["nobody has a result", "all failed"]


def test_a_cancelled_run_and_a_tool_in_doubt() -> None:
    log = (
        *WHOLE[:3],
        stories.ran(ASKS, 0, failed=True, in_doubt=True),
        stories.ended(outcome="Cancelled"),
        stories.stage_ended(outcome="Cancelled"),
        stories.run_ended("Cancelled", "CancelledByUser"),
    )
    emitted = spans_of(*log)
    assert named(emitted, "execute_tool k8s.pods_log").attributes[genai.ERROR_TYPE] == "in_doubt"
    root = named(emitted, "invoke_workflow pod-crash")
    assert not root.failed
    assert (root.attributes["tarsy.outcome"], root.attributes["tarsy.reason"]) == ("Cancelled", "CancelledByUser")


def test_a_summary_of_a_result_is_a_call_of_its_execution() -> None:
    log = (*WHOLE[:4], stories.summarised(text="short"), *WHOLE[4:])
    chats = [span for span in spans_of(*log) if span.name.startswith("chat")]
    assert len({span.span_id for span in chats}) == len(chats) == 3
    assert len({span.parent_id for span in chats}) == 1


def test_question_is_own_trace_linked_to_the_investigation() -> None:
    asked = entries.RunStarted(run=1, question="why?")
    answering = replace(stories.started("two", stage=""), run=1, kind="chat")
    log = (
        asked,
        answering,
        stories.answers(execution="two"),
        stories.ended("two"),
        replace(stories.run_ended(final_analysis="because"), run=1),
    )
    emitted = spans_of(*log)
    root = emitted[-1]
    assert {span.trace_id for span in emitted} == {spans.trace_id(UID, 1)}
    assert (root.start, root.parent_id) == (at(1), b"")
    (link,) = root.links
    assert (link.trace_id, link.span_id, link.reason) == (
        spans.trace_id(UID, 0),
        spans.span_id(UID, 0),
        "investigation",
    )
    assert named(emitted, "invoke_agent KubernetesAgent").parent_id == root.span_id
    assert {span.attributes[genai.CONVERSATION] for span in emitted} == {UID}


def test_retry_trace_links_to_original_and_shows_only_its_own_work() -> None:
    other = "aaaaaaaa-1111-2222-3333-444455556666"
    retry = replace(SNAPSHOT, retry_of=other, copied_entries=7)
    emitted = spans_of(*WHOLE, snapshot=retry)
    assert [span.name for span in emitted] == ["invoke_workflow pod-crash"]
    assert [(link.trace_id, link.reason) for link in emitted[0].links] == [(spans.trace_id(other, 0), "retry_of")]


@pytest.mark.parametrize(
    ("traceparent", "linked"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("", False),
    ],
)
def test_the_span_that_an_alert_names_is_linked(traceparent: str, *, linked: bool) -> None:
    root = spans_of(*WHOLE, snapshot=replace(SNAPSHOT, traceparent=traceparent))[-1]
    assert [(link.trace_id.hex(), link.reason) for link in root.links] == (
        [("0af7651916cd43dd8448eb211c80319c", "alert")] if linked else []
    )
    assert root.trace_id == spans.trace_id(UID, 0), "its trace stays its own"


@given(seed=st.integers(0, 10_000), cut=st.integers(0, 400), contents=st.booleans())
def test_takeover_at_any_entry_yields_the_same_spans(seed: int, cut: int, *, contents: bool) -> None:
    log = [entry for commit in stories.commits(seed=seed) for entry in commit]
    uninterrupted = spans_of(*log, contents=contents)
    resumed = log_spans.LogSpans(snapshot=SNAPSHOT, provider_type=TYPES.get, contents=contents)
    pieces: list[spans.Span] = []
    for seq, entry in enumerate(log, 1):
        stored = entry_versions.encode(entry)
        read = entry_versions.decode(
            stored, run=0, stage=getattr(entry, "stage", ""), execution=getattr(entry, "execution", "")
        )
        ended = resumed.add(seq, at(seq), read if seq <= cut else entry)
        pieces += ended
    assert pieces == uninterrupted
    assert len({span.span_id for span in uninterrupted}) == len(uninterrupted)
    ids = {span.span_id for span in uninterrupted}
    assert all(span.parent_id in ids for span in uninterrupted if span.parent_id)


def test_an_unreadable_entry_ends_no_span() -> None:
    fold = log_spans.LogSpans(snapshot=SNAPSHOT)
    unread = entries.Unreadable(kind="Later", version=9, problem="unknown")
    assert [*fold.add(1, at(1), unread)] == []
    assert [*fold.add(2, at(2), stories.ended("unknown"))] == []


def test_span_names_chosen_by_models_are_short_and_on_one_line() -> None:
    asked = stories.asks("k8s." + "x\n" * 1000)
    tool = spans_of(*WHOLE[:2], asked, stories.ran(asked))[-1]
    assert "\n" not in tool.name
    assert len(tool.name) < 250

"""The timeline as a pure function of the log: what each entry tells, and how events close."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest
from support import stories
from support.timelines import (
    CALL,
    GET,
    LIST,
    MODEL,
    STARTED,
    Log,
    answered,
    at,
    began,
    begun_as,
    by_id,
    ended,
    fell_back,
    log,
    ran,
    seen,
    unanswered,
)
from tarsy.config import resolve
from tarsy.resources import chains
from tarsy.transcript import entries, messages, timeline, timeline_events

OF_GET = {"server_name": "k8s", "tool_name": "pods.get", "arguments": '{"name": "web-0"}'}
OF_LIST = {"server_name": "k8s", "tool_name": "list", "arguments": "{}"}


STRAIGHT = log(
    STARTED,
    began(),
    answered(GET, LIST, text="I look.", thinking="hm"),
    ran(LIST),
    ran(GET, failed=True),
    unanswered(call_number=1),
    answered(call_number=2, text="It is out of memory.", thinking="so"),
    ended(),
    entries.StageEnded(stage="look", outcome="Completed"),
    entries.RunEnded(ending="Completed", reason="StagesCompleted", final_analysis="It is out of memory."),
)


def test_timeline_of_uninterrupted_run_lists_events_in_order_of_their_last_change() -> None:
    assert seen(timeline.fold(STRAIGHT)) == [
        (3, "e0.0.thinking", "llm_thinking", "completed", "hm"),
        (3, "e0.0.text", "llm_response", "completed", "I look."),
        (3, "e0.0.0.asked", "llm_tool_call", "completed", ""),
        (3, "e0.0.1.asked", "llm_tool_call", "completed", ""),
        (4, "e0.0.1.call", "mcp_tool_call", "completed", ""),
        (4, "e0.0.1.result", "tool_result", "completed", "of 0.1"),
        (5, "e0.0.0.call", "mcp_tool_call", "failed", ""),
        (5, "e0.0.0.result", "tool_result", "failed", "of 0.0"),
        (6, "e0.1.error", "error", "failed", "nothing within 5 s"),
        (7, "e0.2.thinking", "llm_thinking", "completed", "so"),
        (7, "e0.2.text", "final_analysis", "completed", "It is out of memory."),
    ]


def test_each_event_names_its_model_or_tool() -> None:
    events = by_id(timeline.fold(STRAIGHT))
    assert {identity: event.metadata for identity, event in events.items()} == {
        "e0.0.thinking": {"source": "native", **MODEL},
        "e0.0.text": MODEL,
        "e0.0.0.asked": OF_GET,
        "e0.0.1.asked": OF_LIST,
        "e0.0.1.call": OF_LIST,
        "e0.0.1.result": OF_LIST,
        "e0.0.0.call": OF_GET,
        "e0.0.0.result": OF_GET,
        "e0.1.error": {"kind": "timeout", **MODEL},
        "e0.2.thinking": {"source": "native", **MODEL},
        "e0.2.text": MODEL,
    }
    assert {(event.stage, event.execution) for event in events.values()} == {("look", "e0")}


def test_an_event_keeps_the_time_of_its_beginning_when_it_changes() -> None:
    events = by_id(timeline.fold(STRAIGHT))
    assert (events["e0.0.0.call"].created_at, events["e0.0.0.call"].updated_at) == (at(3), at(5))
    assert (events["e0.0.0.result"].created_at, events["e0.0.0.result"].updated_at) == (at(5), at(5))
    assert (events["e0.0.0.asked"].created_at, events["e0.0.0.asked"].updated_at) == (at(3), at(3))


def test_a_call_streams_from_the_answer_that_asks_for_it_to_its_result() -> None:
    so_far = by_id(timeline.fold(STRAIGHT[:4]))
    assert (so_far["e0.0.0.call"].status, so_far["e0.0.1.call"].status) == ("streaming", "completed")
    assert "e0.0.0.result" not in so_far


@pytest.mark.parametrize("name", ["get", ""])
def test_tool_without_server_is_shown_under_the_name_the_model_called(name: str) -> None:
    call = messages.ToolCall(id="0.0", name=name, arguments="{}")
    event = by_id(timeline.fold(log(STARTED, began(), answered(call))))["e0.0.0.call"]
    assert event.metadata == {"server_name": "", "tool_name": name, "arguments": "{}"}


def test_tool_call_in_doubt_is_marked_as_in_doubt() -> None:
    events = by_id(timeline.fold(log(STARTED, began(), answered(GET), ran(GET, failed=True, in_doubt=True))))
    for identity in ("e0.0.0.call", "e0.0.0.result"):
        assert (events[identity].status, events[identity].metadata["in_doubt"]) == ("failed", True)
    assert "in_doubt" not in events["e0.0.0.asked"].metadata


@pytest.mark.parametrize("conclude", [True, False])
def test_timeline_shows_answer_without_the_messages_that_requested_it(conclude: bool) -> None:
    answer = answered(text="so")
    asked = (messages.Message(role="user", text="Conclude now."),) if conclude else ()
    full_answer = replace(answer, messages=(*asked, *answer.messages))
    assert [event.content for event in timeline.fold(log(STARTED, began(), full_answer))] == ["so"]


@pytest.mark.parametrize(
    ("outcome", "status"), [("Failed", "failed"), ("TimedOut", "timed_out"), ("Cancelled", "cancelled")]
)
def test_execution_end_closes_only_its_open_events(outcome: entries.Outcome, status: str) -> None:
    rows = log(
        STARTED,
        began("e0"),
        began("e1", index=1),
        answered(GET, LIST),
        answered(GET, execution="e1"),
        ran(LIST),
        ended(outcome, "it ended", execution="e0"),
    )
    events = timeline.fold(rows)
    assert seen(events)[-2:] == [
        (7, "e0.end", "error", status, "it ended"),
        (7, "e0.0.0.call", "mcp_tool_call", status, ""),
    ]
    closed = by_id(events)
    assert closed["e0.end"].metadata == {"outcome": outcome}
    assert (closed["e0.0.0.call"].created_at, closed["e0.0.0.call"].updated_at) == (at(4), at(7))
    assert closed["e0.0.0.call"].metadata == OF_GET
    assert (closed["e0.0.1.call"].status, closed["e0.0.1.call"].seq) == ("completed", 6)
    assert closed["e1.0.0.call"].status == "streaming", "it is another one's"
    assert "e0.0.0.result" not in closed


def test_execution_end_without_message_yields_no_event() -> None:
    assert seen(timeline.fold(log(STARTED, began(), ended("Cancelled")))) == []


@pytest.mark.parametrize(
    ("ending", "reason", "expected"),
    [
        ("Failed", "ChainNotFound", ("error", "failed", "why")),
        ("Failed", "AttemptsExhausted", ("error", "failed", "why")),
        ("TimedOut", "DeadlineExceeded", ("error", "timed_out", "why")),
        ("Failed", "StagesFailed", None),
        ("Completed", "StagesCompleted", None),
        ("CompletedWithErrors", "StagesFailed", None),
        ("Cancelled", "CancelledByUser", None),
    ],
)
def test_investigation_end_yields_event_only_if_no_agent_event_shows_it(
    ending: entries.Ending, reason: str, expected: tuple[str, ...] | None
) -> None:
    events = timeline.fold(log(entries.RunEnded(ending=ending, reason=reason, message="why")))
    assert [(event.type, event.status, event.content) for event in events] == ([expected] if expected else [])
    for event in events:
        assert (event.id, event.stage, event.execution, event.metadata) == ("run-0.end", "", "", {"reason": reason})


def test_takeover_event_appears_with_the_first_entry_of_its_claim() -> None:
    made = Log().add(STARTED, began(), answered(GET)).taken_over().taken_over().add(ran(GET)).taken_over()
    made.add(answered(call_number=1, text="so"), ended())
    resumed = [event for event in timeline.fold(made.rows) if event.type == "resumed"]
    assert seen(resumed) == [
        (4, "run-0.resumed-3", "resumed", "completed", "continued under another claim, after a takeover or a wait"),
        (5, "run-0.resumed-4", "resumed", "completed", "continued under another claim, after a takeover or a wait"),
    ]
    assert [(event.metadata, event.stage, event.execution, event.created_at) for event in resumed] == [
        ({"claim": 3}, "", "", at(4)),
        ({"claim": 4}, "", "", at(5)),
    ]
    assert [event.id for event in timeline.fold(made.rows) if event.seq == 4] == [
        "run-0.resumed-3",
        "e0.0.0.call",
        "e0.0.0.result",
    ], "it is told before what it brought"


@pytest.mark.parametrize("execution", ["e0", ""])
def test_unreadable_entry_is_shown_as_error_at_its_position(execution: str) -> None:
    unreadable = entries.Unreadable(kind="Dreamt", version=7, problem="its kind is unknown here")
    rows = Log().add(STARTED, began(), answered(GET)).add(unreadable, execution=execution).add(ran(GET)).rows
    (error,) = [event for event in timeline.fold(rows) if event.type == "error"]
    assert seen([error]) == [
        (
            4,
            f"{execution or 'run-0'}.unreadable-4",
            "error",
            "failed",
            "entry 4 cannot be read by this version: its kind is unknown here",
        )
    ]
    assert (error.metadata, error.execution) == ({"kind": "Dreamt"}, execution)
    assert by_id(timeline.fold(rows))["e0.0.0.call"].status == "completed", "the others are told as ever"


ACTION = "Thought: hm\nAction: k8s.pods.get\nAction Input: {}\nObservation: made up"


@pytest.mark.parametrize("strategy", ["react", "react-stage"])
def test_thoughts_and_answers_of_react_are_taken_apart(strategy: chains.IterationStrategy) -> None:
    parts = timeline.fold(
        log(
            STARTED,
            begun_as("agent", strategy),
            answered(GET, text=ACTION, thinking="deep down"),
            ran(GET),
            answered(call_number=1, text="Thought: so\nFinal Answer: It is out of memory."),
            ended(),
        )
    )
    assert seen(parts) == [
        (3, "e0.0.thinking", "llm_thinking", "completed", "deep down"),
        (3, "e0.0.thought", "llm_thinking", "completed", "hm"),
        (3, "e0.0.0.asked", "llm_tool_call", "completed", ""),
        (4, "e0.0.0.call", "mcp_tool_call", "completed", ""),
        (4, "e0.0.0.result", "tool_result", "completed", "of 0.0"),
        (5, "e0.1.thought", "llm_thinking", "completed", "so"),
        (5, "e0.1.text", "final_analysis", "completed", "It is out of memory."),
    ]
    assert [event.metadata["source"] for event in parts if event.type == "llm_thinking"] == ["native", "react", "react"]


def test_conclusion_that_is_asked_again_becomes_an_answer_like_others() -> None:
    concluded = (STARTED, began(), answered(text="I will look."))
    assert seen(timeline.fold(log(*concluded))) == [(3, "e0.0.text", "final_analysis", "completed", "I will look.")]
    went_on = timeline.fold(log(*concluded, answered(call_number=1, text="It is out of memory."), ended()))
    assert seen(went_on) == [
        (4, "e0.0.text", "llm_response", "completed", "I will look."),
        (4, "e0.1.text", "final_analysis", "completed", "It is out of memory."),
    ]
    assert went_on[0].created_at == at(3)


def test_fallback_event_names_both_providers_and_reason() -> None:
    rows = log(
        STARTED,
        began(),
        fell_back(call_number=1),
        fell_back(call_number=1, to="third"),
        answered(call_number=1, text="so"),
        ended(),
    )
    first, second, _ = timeline.fold(rows)
    assert (first.id, first.type, first.status) == ("e0.1.fallback-other", "provider_fallback", "completed")
    assert first.content == "requests go to other from here on: google-default: 401: the key"
    assert first.metadata == {"from": "google-default", "to": "other", "kind": "fatal", "code": "401"}
    assert (first.stage, first.execution, second.id) == ("look", "e0", "e0.1.fallback-third")


def test_answer_is_no_conclusion_if_its_provider_was_left_when_it_was_asked_again() -> None:
    events = timeline.fold(log(STARTED, began(), answered(text="It is a guess."), fell_back(call_number=1)))
    assert [event.type for event in events] == ["llm_response", "provider_fallback"]


def test_unreadable_answer_is_the_conclusion_only_if_its_execution_completes() -> None:
    story = (STARTED, begun_as("agent", "react"), answered(text="It is out of memory."))
    for outcome, kind, seq in (("Completed", "final_analysis", 4), ("Failed", "llm_response", 3)):
        end = ended(outcome)  # type: ignore[arg-type]
        first, *_ = timeline.fold(log(*story, end))
        assert (first.type, first.seq, first.content) == (kind, seq, "It is out of memory.")


def test_a_summary_and_a_question_are_events_of_their_own() -> None:
    summary = log(STARTED, begun_as("summary", "synthesis"), answered(text="Out of memory."), ended())
    assert seen(timeline.fold(summary)) == [(3, "e0.0.text", "executive_summary", "completed", "Out of memory.")]
    (asked,) = timeline.fold([replace(log(entries.RunStarted(run=2, question="Why?"))[0], run=2, stage="")])
    assert (asked.id, asked.type, asked.content, asked.execution) == ("run-2.question", "user_question", "Why?", "")


def test_compaction_event_names_its_reason_and_each_cut_for_a_request_is_an_event() -> None:
    refused = messages.Failure(kind="fatal", text="400: too many tokens", code=messages.CONTEXT_OVERFLOW)
    lines = entries.ContextCompacted(execution="e0", turn=4, results=("0.0", "0.1"), tokens=9000, limit=8000)
    cut, shorter = (
        entries.ContextCompacted(
            execution="e0", turn=4, cut=("3.0",), shown=length, tokens=2 * length, limit=0, failure=refused, call=CALL
        )
        for length in (2000, 1000)
    )
    events = timeline.fold(log(STARTED, began(), lines, cut, shorter))
    assert [(row.type, row.status, row.execution) for row in events] == [("context_compacted", "completed", "e0")] * 3
    assert len(by_id(events)) == 3
    refusal = "the request was refused: 400: too many tokens"
    assert [event.content for event in events] == [
        "older tool results, each replaced by one line from here on: 2",
        f"tool results of the last answer, each cut to 2000 characters: 1; {refusal}",
        f"tool results of the last answer, each cut to 1000 characters: 1; {refusal}",
    ]
    assert events[0].metadata == {"results": ["0.0", "0.1"], "cut": [], "shown": 0, "tokens": 9000, "limit": 8000}


def searched(tool: chains.NativeTool, content: str) -> messages.NativeResult:
    details = {"queries": ["oom"], "sources": [{"title": "OOM", "url": "https://oom"}]}
    return messages.NativeResult(tool=tool, content=content, details=details)


def test_results_of_native_tools_stand_before_the_text_that_came_of_them() -> None:
    code = {"code": "print(2)", "language": "python", "outcome": "OUTCOME_OK"}
    native = (
        messages.NativeResult(tool="code_execution", content="2\n", details=code),
        searched("google_search", "OOM https://oom"),
        searched("url_context", "https://oom"),
        searched("web_search", "OOM https://oom"),
        messages.NativeResult(tool="code_execution", content="", details=code),
    )
    message = messages.Message(role="assistant", text="It is out of memory.", thinking="so", native=native)
    events = timeline.fold(
        log(STARTED, began(), entries.Answered(execution="e0", turn=0, messages=(message,), call=CALL), ended())
    )
    assert seen(events) == [
        (3, "e0.0.thinking", "llm_thinking", "completed", "so"),
        (3, "e0.0.native-0", "code_execution", "completed", "2\n"),
        (3, "e0.0.native-1", "google_search_result", "completed", "OOM https://oom"),
        (3, "e0.0.native-2", "url_context_result", "completed", "https://oom"),
        (3, "e0.0.native-3", "web_search_result", "completed", "OOM https://oom"),
        (3, "e0.0.native-4", "code_execution", "completed", ""),
        (3, "e0.0.text", "final_analysis", "completed", "It is out of memory."),
    ]
    assert events[1].metadata == {**code, **MODEL}
    assert events[2].metadata == {"queries": ["oom"], "sources": [{"title": "OOM", "url": "https://oom"}], **MODEL}


def test_every_native_tool_has_an_event() -> None:
    for tool in get_args(chains.NativeTool):
        message = messages.Message(role="assistant", native=(searched(tool, "x"),))
        (event,) = timeline.fold(log(entries.Answered(execution="e0", turn=0, messages=(message,), call=CALL)))
        assert event.type in get_args(timeline_events.Type)


def test_left_out_native_tools_are_reported_with_the_start_of_their_agent() -> None:
    wanting = replace(stories.AGENT, native=resolve.NativeTools(offered=("google_search", "url_context"), mixes=False))
    start = replace(begun_as("agent", "native-thinking"), agent=wanting)
    assert timeline.fold(log(STARTED, start)) == []
    (event,) = timeline.fold(log(STARTED, replace(start, agent=wanting.beside_tools())))
    assert (event.id, event.type, event.status) == ("e0.start.native", "native_tools_left_out", "completed")
    assert event.metadata == {"provider": wanting.provider, "tools": ["google_search", "url_context"]}
    assert "google_search, url_context" in event.content


def test_each_telling_of_joined_alerts_is_an_event() -> None:
    tellings = [
        entries.AlertJoined(execution="e0", number=number, alerts=alerts, clock=0.0, messages=())
        for number, alerts in ((1, 1), (10_001, 10_000))
    ]
    first, second = timeline.fold(log(STARTED, begun_as("agent", "native-thinking"), *tellings))
    assert (first.id, first.type, first.content[:14]) == ("e0.joined.1", "alerts_joined", "1 alert joined")
    assert (second.id, second.content[:20]) == ("e0.joined.10001", "10,000 alerts joined")
    assert second.metadata == {"alerts": 10_000, "number": 10_001}


def test_retry_event_names_provider_reason_and_time_of_next_attempt() -> None:
    retry = entries.ModelRetried(
        execution="e0",
        turn=1,
        provider="google-default",
        model="m",
        attempt=1,
        error="429: slow",
        code="429",
        seconds=2.5,
    )
    rows = log(STARTED, began(), retry, replace(retry, attempt=4), answered(call_number=1, text="so"), ended())
    first, second, _ = timeline.fold(rows)
    assert (first.type, first.status, first.content) == ("model_retry", "completed", "429: slow")
    assert first.metadata == {
        "provider": "google-default",
        "model": "m",
        "code": "429",
        "attempt": 1,
        "again_at": (at(3) + timedelta(seconds=2.5)).isoformat(),
    }
    assert (first.stage, first.execution) == ("look", "e0")
    assert first.id != second.id

"""The layout of an investigation's page."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any, get_args

from tarsy.transcript import timeline_events
from tarsy.views import executions, investigations, timelines
from tarsy.web import investigation_layout, markdown

START = datetime(2026, 11, 21, 3, 17, tzinfo=UTC)


def investigation(*executed: executions.Execution, **fields: Any) -> investigations.Investigation:
    """The example of the API's description, with these executions and fields."""
    example = resources.files("tarsy.api") / "examples" / "readInvestigation.json"
    read = investigations.Investigation.model_validate(json.loads(example.read_text()))
    return read.model_copy(update={"executions": list(executed), **fields})


def execution(name: str, **fields: Any) -> executions.Execution:
    """An agent of the stage `analysis` that has made two model calls and two tool calls."""
    settings: dict[str, Any] = {
        "id": name,
        "name": name,
        "run": 0,
        "stage": "analysis",
        "kind": "agent",
        "index": 0,
        "provider": "google",
        "started_at": START,
        "strategy": "native-thinking",
        "iterations": 2,
        "tool_calls": 2,
        "cost": None,
        **dict.fromkeys(("input_tokens", "output_tokens", "thinking_tokens", "total_tokens"), 0),
    }
    return executions.Execution(**settings | fields)


def event(
    key: str, type_: timeline_events.Type, *, seconds: int = 0, content: str = "", **metadata: Any
) -> timelines.Event:
    """An event of the execution that `key` begins with."""
    at = START + timedelta(seconds=seconds)
    return timelines.Event(
        id=key,
        seq=seconds + 1,
        type=type_,
        status="completed",
        stage="analysis",
        execution=key.partition(".")[0],
        content=content,
        metadata=metadata,
        created_at=at,
        updated_at=at,
    )


def test_every_type_of_event_has_a_look() -> None:
    assert set(investigation_layout.LOOKS) == set(get_args(timeline_events.Type))


def test_results_and_summaries_are_shown_at_their_call_in_any_arrival_order() -> None:
    events = [
        event("a.0.0.asked", "llm_tool_call"),
        event("a.0.0.call", "mcp_tool_call"),
        event("a.0.1.call", "mcp_tool_call"),
        event("a.0.1.result", "tool_result", seconds=1),
        event("a.0.0.result", "tool_result", seconds=2),
        event("a.0.0.summary", "mcp_tool_summary", seconds=3),
    ]

    page = investigation_layout.layout(investigation(execution("a")), events)

    (card,) = page.stages[0].agents
    assert [line.event.id for line in card.lines] == ["a.0.0.call", "a.0.1.call"]
    assert [part.event.id for part in card.lines[0].parts] == ["a.0.0.result", "a.0.0.summary"]
    assert [part.event.id for part in card.lines[1].parts] == ["a.0.1.result"]


def test_result_with_call_on_another_page_names_the_target_at_its_call() -> None:
    page = investigation_layout.layout(investigation(execution("a")), [event("a.0.0.result", "tool_result")])

    (line,) = page.stages[0].agents[0].lines
    assert line.into == "parts-a.0.0"


def test_agents_that_have_not_started_are_named() -> None:
    running = [investigation(execution("a")).stages[0].model_copy(update={"outcome": None, "ended_at": None})]
    progress = investigation(execution("a")).stage_progress[0]
    details = investigation(
        execution("a"),
        stage_names=["analysis", "report"],
        stage_progress=[
            progress.model_copy(update={"name": "analysis", "agents": ["a", "b", "c"]}),
            progress.model_copy(update={"name": "report", "agents": ["d"]}),
        ],
        stages=running,
        ended_at=None,
    )

    page = investigation_layout.layout(details, [])

    assert [(stage.name, stage.phase, stage.waiting) for stage in page.stages] == [
        ("analysis", "Running", ["b", "c"]),
        ("report", "Pending", ["d"]),
    ]


def test_long_text_is_shown_as_excerpt_with_left_out_amount_and_masked_kinds() -> None:
    content = "[MASKED:password] " + "x" * 1_000_000 + "\n[cut: 12 lines with 900 characters are left out here]\n"

    line = investigation_layout.line(
        investigation(execution("a")), event("a.0.0.result", "tool_result", content=content)
    )

    assert len(line.text) == investigation_layout.EXCERPT_MAX
    assert line.left_out == len(content) - investigation_layout.EXCERPT_MAX
    assert (line.masked, line.has_cut) == (1, True)


def test_a_reference_leads_to_the_author_s_call_and_from_a_synthesis_to_all_candidates() -> None:
    author, other, silent = execution("a"), execution("b"), execution("c", tool_calls=0)
    synthesis = execution("s", kind="synthesis", iterations=1, tool_calls=0)
    details = investigation(author, other, silent, synthesis)

    assert [name for name, _ in investigation_layout.references(details, author)("0.1")] == ["a"]
    assert [name for name, _ in investigation_layout.references(details, synthesis)("0.1")] == ["a", "b"]
    assert investigation_layout.references(details, synthesis)("7.0") == []
    (_, address), *_ = investigation_layout.references(details, author)("0.1")
    assert address == f"/investigations/{details.id}/event?id=a.0.1.call"


def test_references_become_links_outside_of_code_and_links() -> None:
    def find(call: str) -> list[tuple[str, str]]:
        return [("logs", f"/e?id={call}")] if call != "9.9" else []

    html = markdown.to_html(
        "Seen [tools 0.1, 2.0 and 9.9], `[tool 0.1]`, [as [tool 0.1] says](https://e.example)", find
    )

    assert html.count('href="/e?id=0.1"') == 1
    assert html.count('href="/e?id=2.0"') == 1
    assert "9.9]" in html
    assert "<code>[tool 0.1]</code>" in html


def test_several_candidates_are_named() -> None:
    html = markdown.to_html("[tool 0.1]", lambda call: [("<b>", f"/a?id={call}"), ("b", f"/b?id={call}")])

    assert "0.1 (" in html
    assert ">&lt;b&gt;</a>, " in html

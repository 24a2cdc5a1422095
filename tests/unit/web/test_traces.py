"""The waterfall's bars, and the texts of a call's page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tarsy.views import traces as views
from tarsy.web import traces

BEGIN = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


def row(**fields: Any) -> views.IndexRow:
    """Return a model call of two seconds that ends after four."""
    named = dict.fromkeys(views.IndexRow.model_fields) | {
        "type": "llm",
        "n": 1,
        "seq": 3,
        "run": 0,
        "stage": "analysis",
        "execution": "one",
        "execution_name": "KubernetesAgent",
        "name": "google/gemini",
        "started_at": BEGIN + timedelta(seconds=2),
        "ended_at": BEGIN + timedelta(seconds=4),
        "seconds": 2.0,
        "outcome": "ok",
        "failed": False,
        "failed_attempts": 0,
        "id": "llm-1",
        "tool_call_id": "",
        "note": "",
        "call_count": 0,
    }
    return views.IndexRow.model_validate(named | fields)


def index(*, seconds: float | None = 10.0) -> views.Index:
    """Return an index of an axis of ten seconds, or of none."""
    begins_at = None if seconds is None else BEGIN
    ends_at = None if seconds is None else BEGIN + timedelta(seconds=seconds)
    return views.Index(
        rows=[],
        total=1,
        offset=0,
        upto=9,
        begins_at=begins_at,
        ends_at=ends_at,
        run_count=1,
        model_call_count=1,
        tool_call_count=0,
        failed_call_count=0,
        total_tokens=0,
        cost=None,
        ended=True,
    )


def test_trace_bar_has_position_and_length_of_its_time() -> None:
    assert traces.bar(row(), index()) == traces.Bar(x=200.0, width=200.0, after=2.0)


def test_bar_of_what_still_runs_goes_to_the_last_commit() -> None:
    running = row(type="execution", n=None, seconds=None, ended_at=None, outcome=None)
    assert traces.bar(running, index()) == traces.Bar(x=200.0, width=800.0, after=2.0)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"seconds": 1e9}, 10.0),
        ({"seconds": 0.0, "started_at": BEGIN + timedelta(seconds=10)}, 10.0),
        ({"started_at": BEGIN - timedelta(days=1)}, 10.0),
        ({}, 0.0),
    ],
    ids=["too long", "at the end", "before the beginning", "axis without length"],
)
def test_bar_stays_within_the_axis(fields: dict[str, Any], seconds: float) -> None:
    bar = traces.bar(row(**fields), index(seconds=seconds))
    assert bar
    assert bar.x >= 0
    assert bar.width > 0
    assert bar.x + bar.width <= traces.AXIS


def test_time_axis_names_its_beginning_quarter_half_and_end() -> None:
    assert traces.ticks(index()) == ["0", "2.5 s", "5.0 s", "10 s"]
    assert traces.ticks(index(seconds=None)) == ["0", "", "", ""]


def test_long_text_is_cut_with_the_number_of_characters_that_are_left_out() -> None:
    cut_text, left_out = traces.shorten("x" * (traces.TEXT_MAX + 5))
    assert (len(cut_text), left_out) == (traces.TEXT_MAX, 5)
    assert traces.shorten("short") == ("short", 0)


def test_json_is_indented_and_any_other_text_stays() -> None:
    assert traces.pretty('{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    for text in ("plain", '{"a":', "[" * 10_000, ""):
        assert traces.pretty(text) == text

"""The words in which the submit page shows an investigation."""

from __future__ import annotations

from typing import Any

import pytest
from tarsy.views import investigations
from tarsy.web import submit


def facts(**fields: Any) -> investigations.Facts:
    values = {"phase": "Running", "stage_names": ["collect", "analysis"], "stages": [], "current_stage": None}
    return investigations.Facts.model_construct(**values | fields)


@pytest.mark.parametrize(
    ("phase", "heading"),
    [
        ("Queued", "Processing Alert..."),
        ("Running", "Processing Alert..."),
        ("Suspended", "Processing Alert..."),
        ("Waiting", "Processing Alert..."),
        ("Cancelling", "Processing Alert..."),
        ("Completed", "Processing Complete"),
        ("CompletedWithErrors", "Processing Complete"),
        ("Failed", "Processing Failed"),
        ("TimedOut", "Processing Failed"),
        ("Cancelled", "Processing Failed"),
    ],
)
def test_the_heading_follows_the_phase(phase: str, heading: str) -> None:
    assert submit.heading(facts(phase=phase)) == heading
    assert bool(submit.current_step(facts(phase=phase))) == (heading == "Processing Alert...")


def test_the_current_step_is_the_stage_that_runs() -> None:
    assert submit.current_step(facts()) == "Beginning"
    assert submit.current_step(facts(current_stage="analysis")) == "Stage 2 of 2: analysis"
    assert submit.current_step(facts(stages=["collect", "analysis"])) == "Writing the summary"

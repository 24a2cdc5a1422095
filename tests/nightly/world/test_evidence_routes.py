"""All outputs of all scenarios of ours, by every way to a reader: none is lost, no secret is shown; docs/quality.md."""

from __future__ import annotations

import pytest
from tarsy.evaluation import scenarios
from tarsy_dev import tools

from bench import evidence


@pytest.mark.timeout(600)
async def test_outputs_of_scenarios_are_lost_on_no_way_and_the_docs_have_the_figures() -> None:
    all_scenarios = scenarios.find([tools.ROOT / "scenarios"])
    outputs = await evidence.outputs(all_scenarios)
    assert len(outputs) == sum(len(scenario.document.evidence) for scenario in all_scenarios)
    for output in outputs:
        assert "[withheld: " not in output.text
        secrets = next(each for each in all_scenarios if each.name == output.scenario).document.secrets
        assert ("Secret\n" in output.text and bool(secrets)) <= ("[MASKED:secret]" in output.text), output
    figures = [await evidence.measure(route, all_scenarios, outputs) for route in evidence.ROUTES]
    for each in figures:
        assert (each.lost, sum(each.states.values())) == ([], len(outputs)), each.route
    page = (tools.ROOT / "docs" / "quality.md").read_text()
    assert evidence.table(figures) in page, "run python -m bench.evidence and put its table into docs/quality.md"

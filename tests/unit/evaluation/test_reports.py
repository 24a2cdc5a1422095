"""Reports of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from tarsy.cli import eval as evaluation
from tarsy.evaluation import pages, reports, results
from tarsy.resources import files


def result(scenario: str = "a", provider: str = "p", repeat: int = 1, **changes: Any) -> results.Result:
    fields: dict[str, Any] = {
        "scenario": scenario, "title": "A <title>", "tags": (), "scenario_digest": "1", "chain": "c",
        "chain_digest": "2", "provider": provider, "repeat": repeat, "state": "right", "phase": "Completed",
        "claimed": ("taint",), "expected": "taint", "is_entity_named": True, "precision": 1.0, "recall": 1.0,
        "evidence": (results.EvidenceResult(shows="it", seen=True, reachable=True, cited=True),), "false_claims": (),
        "leaked_secrets": 0, "grounded": True, "gaps": 0, "misses": (), "llm_calls": 2, "tool_calls": 3,
        "total_tokens": 100, "cost": None, "seconds": 1.0, "investigation": "x",
    }  # fmt: skip
    return results.Result.model_validate(fields | changes)


def test_a_provider_is_judged_by_scenario_and_not_by_run() -> None:
    runs = [
        *(result("a", repeat=repeat) for repeat in range(1, 10)),
        result("b", state="wrong"),
        result("b", repeat=2),
        result("c", state="no-verdict", misses=("GET /x",), problem="the world has no answer"),
    ]
    (row,) = reports.rows(runs)
    assert (row.right.value, row.always_right, row.no_verdict, row.misses) == (0.75, 0.5, 1, 1)
    assert reports.scenario_table([row])[1] == [("a", "9/9"), ("b", "1/2"), ("c", "0/0")]


def test_cut_and_leaked_text_is_a_warning() -> None:
    cut = results.EvidenceResult(shows="it", seen=False, reachable=True, cited=False)
    (row,) = reports.rows([result(evidence=(cut,), leaked_secrets=2)])
    assert (row.evidence_seen, row.evidence_cut, row.leaked_secrets) == (0, 1, 2)
    assert len(reports.warnings([row])) == 2


def test_the_best_provider_is_first_and_the_cheaper_of_equals() -> None:
    runs = [
        result(provider="wrong", state="wrong", total_tokens=1),
        result(provider="dear", total_tokens=900),
        result(provider="cheap", total_tokens=90),
    ]
    assert [row.provider for row in reports.rows(runs)] == ["cheap", "dear", "wrong"]


def test_junit_has_a_case_for_each_run_with_its_end() -> None:
    runs = [
        result(),
        result("b", state="wrong", claimed=("dns",), is_entity_named=False),
        result("c", state="failed", problem="no \x00 analysis"),
        result("d", state="no-verdict", problem="missing"),
    ]
    (suite,) = ET.fromstring(reports.as_junit(runs))  # noqa: S314 - made here
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    messages = [child.get("message") for case in suite for child in case]
    assert messages == ["claimed dns, the entity not named; right is taint", "no   analysis", "missing"]


def test_the_page_escapes_and_links_to_transcripts(tmp_path: Path) -> None:
    text = pages.page([result()], folder=tmp_path / "results", target=tmp_path / "report.html")
    assert "A &lt;title&gt;" in text
    assert 'href="results/a/p-1.md"' in text
    assert "http" not in text


def test_results_are_read_as_they_were_written_and_drafts_are_not(tmp_path: Path) -> None:
    results.write(tmp_path, result(), "transcript")
    results.write(tmp_path, result(provider=""), "transcript")
    (tmp_path / "a" / "p-2.draft").write_text("{")
    assert sorted(each.provider for each in results.read(tmp_path)) == ["", "p"]
    assert (tmp_path / "a" / "chain-1.md").read_text() == "transcript"


def test_a_broken_result_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(files.FileError, match="no results here"):
        results.read(tmp_path)
    results.write(tmp_path, result(), "")
    (tmp_path / "a" / "p-2.json").write_text("{}")
    with pytest.raises(files.FileError, match=r"p-2\.json: no result of this version of tarsy: delete it"):
        results.read(tmp_path)


@pytest.mark.parametrize(("fail_under", "code"), [("0.5", 0), ("0.51", 1)])
def test_a_report_fails_under_a_share(tmp_path: Path, fail_under: str, code: int) -> None:
    results.write(tmp_path, result(), "")
    results.write(tmp_path, result("b", state="wrong"), "")
    ended = CliRunner().invoke(evaluation.command, ["report", str(tmp_path), "--fail-under", fail_under])
    assert ended.exit_code == code, ended.output
    assert ("right in less than 51% of the scenarios: p 50%" in ended.output) is bool(code)


def opinion(verdict: str) -> results.Opinion:
    fields = {"provider": "j", "verdict": verdict, "reason": "it <says>", "total_tokens": 7, "cost": 0.5}
    return results.Opinion.model_validate(fields)


def test_naming_several_causes_costs_precision_and_naming_none_recall() -> None:
    runs = [
        result("a"),
        result("b", state="wrong", precision=0.5, recall=0.0),
        result("c", state="no-verdict", recall=0),
    ]
    (row,) = reports.rows(runs)
    assert (row.precision, row.recall) == (0.75, 0.5)
    assert len(reports.cells(row)) == len(reports.HEADER)


def test_differing_judge_opinion_is_shown_and_changes_no_score(tmp_path: Path) -> None:
    runs = [
        result("a", opinion=opinion("right")),
        result("b", opinion=opinion("wrong")),
        result("c", state="failed", opinion=opinion("right")),
        result("d", opinion=opinion("unclear")),
    ]
    (row,) = reports.rows(runs)
    assert (row.opinions, row.judged_right, row.right.value) == (3, 2, 0.75)
    disputes = [warning for warning in reports.warnings([row]) if "judge differs" in warning]
    assert [("b #1, right by its words, wrong by j" in disputes[0]), len(disputes)] == [True, 2]
    page = pages.page(runs, folder=tmp_path, target=tmp_path / "report.html")
    assert "j says wrong (differs): it &lt;says&gt;" in page
    assert [each.state for each in runs] == ["right", "right", "failed", "right"]
    assert results.spent(runs) == results.Spent(tokens=428, cost=2.0)


def test_planned_runs_that_were_not_made_are_in_every_report(tmp_path: Path) -> None:
    results.plan(tmp_path, [("a", "p", 1), ("a", "p", 2)])
    results.plan(tmp_path, [("a", "p", 2), ("a", "q", 1)])
    results.write(tmp_path, result(), "transcript")
    outcomes = results.read(tmp_path)
    missing = reports.not_run(tmp_path, outcomes)
    assert missing == [("a", "p", 2), ("a", "q", 1)]
    suites = ET.fromstring(reports.as_junit(outcomes, missing))  # noqa: S314 - our own
    assert [(suite.get("tests"), suite.get("skipped")) for suite in suites] == [("2", "1"), ("1", "1")]
    assert len(json.loads(reports.as_json(outcomes, missing))["not_run"]) == 2
    for text in (
        reports.as_markdown(outcomes, missing),
        pages.page(outcomes, missing, folder=tmp_path, target=tmp_path / "report.html"),
        CliRunner().invoke(evaluation.command, ["report", str(tmp_path)]).output,
    ):
        assert "p: 1 planned runs were not made: a #2" in text
    failed = CliRunner().invoke(evaluation.command, ["report", str(tmp_path), "--fail-under", "0.1"])
    assert (failed.exit_code, "q was not run" in failed.output) == (1, True)
    (tmp_path / results.PLAN).write_text("{}")
    broken = CliRunner().invoke(evaluation.command, ["report", str(tmp_path)])
    assert (broken.exit_code, "plan.json" in broken.output) == (1, True)


def test_several_providers_are_compared_each_with_itself(tmp_path: Path) -> None:
    names = "abcdefgh"
    for folder, state in ((tmp_path / "before", "wrong"), (tmp_path / "after", "right")):
        for name in names:
            results.write(folder, result(name, "p", state=state), "")
            results.write(folder, result(name, "q", state="right"), "")
    comparison = CliRunner().invoke(evaluation.command, ["diff", str(tmp_path / "before"), str(tmp_path / "after")])
    assert comparison.output.splitlines()[-3:] == [
        "better: +50% (+50% to +50%, 95%) over 8 scenarios of both",
        "p: better: +100% (+100% to +100%, 95%) over 8 scenarios of both",
        "q: noise: +0% (+0% to +0%, 95%) over 8 scenarios of both",
    ]

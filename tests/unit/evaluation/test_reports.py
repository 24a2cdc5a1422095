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
    found = [
        *(result("a", repeat=repeat) for repeat in range(1, 10)),
        result("b", state="wrong"),
        result("b", repeat=2),
        result("c", state="no-verdict", misses=("GET /x",), problem="the world has no answer"),
    ]
    (row,) = reports.rows(found)
    assert (row.right.value, row.always_right, row.no_verdict, row.misses) == (0.75, 0.5, 1, 1)
    assert reports.scenario_table([row])[1] == [("a", "9/9"), ("b", "1/2"), ("c", "0/0")]


def test_what_was_cut_and_what_leaked_is_a_warning() -> None:
    cut = results.EvidenceResult(shows="it", seen=False, reachable=True, cited=False)
    (row,) = reports.rows([result(evidence=(cut,), leaked_secrets=2)])
    assert (row.evidence_seen, row.evidence_cut, row.leaked_secrets) == (0, 1, 2)
    assert len(reports.warnings([row])) == 2


def test_the_best_provider_is_first_and_the_cheaper_of_equals() -> None:
    found = [
        result(provider="wrong", state="wrong", total_tokens=1),
        result(provider="dear", total_tokens=900),
        result(provider="cheap", total_tokens=90),
    ]
    assert [row.provider for row in reports.rows(found)] == ["cheap", "dear", "wrong"]


def test_junit_has_a_case_for_each_run_with_its_end() -> None:
    found = [
        result(),
        result("b", state="wrong", claimed=("dns",), is_entity_named=False),
        result("c", state="failed", problem="no \x00 analysis"),
        result("d", state="no-verdict", problem="missing"),
    ]
    (suite,) = ET.fromstring(reports.as_junit(found))  # noqa: S314 - made here
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    messages = [child.get("message") for case in suite for child in case]
    assert messages == ["claimed dns, the entity not named; right is taint", "no   analysis", "missing"]


def test_json_has_rows_and_results() -> None:
    document = json.loads(reports.as_json([result()]))
    assert document["providers"][0]["right"]["value"] == 1
    assert results.Result.model_validate(document["results"][0]) == result()


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

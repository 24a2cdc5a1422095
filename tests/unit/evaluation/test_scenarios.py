"""Scenario files, and the errors that they give."""

from __future__ import annotations

from pathlib import Path

import pytest
from tarsy.evaluation import scenarios
from tarsy.resources import files

VALID = """\
title: A title
tags: [pod]
alert:
  labels: {alertname: KubePodCrashLooping}
cause: {class: out-of-memory, kind: Deployment, namespace: shop, name: checkout}
evidence:
- {shows: it, tool: pods_get, arguments: {name: a, namespace: shop}, matches: OOMKilled}
"""


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / scenarios.FILE).write_text(text)
    return folder


def problems(folder: Path) -> list[str]:
    with pytest.raises(files.FileError) as raised:
        scenarios.load(folder)
    return [f"{problem.line}: {problem.message}" for problem in raised.value.problems]


def test_a_scenario_is_named_after_its_directory(tmp_path: Path) -> None:
    scenario = scenarios.load(write(tmp_path / "memory", VALID))
    assert (scenario.name, scenario.document.cause.cause_class) == ("memory", "out-of-memory")


@pytest.mark.parametrize(
    ("former", "new", "problem"),
    [
        ("class: out-of-memory", "class: oom", "5: cause.class: Input should be 'image-missing'"),
        ("title: A title", "titel: A title", "1: the file: unknown: titel. Available: title, tags, alert"),
        ("matches: OOMKilled", "matches: '(OOM'", "7: evidence.0.matches: not a regular expression"),
        ("alertname: KubePodCrashLooping", "name: x", "4: alert.labels: alertname is missing"),
        (", kind: Deployment", "", "5: cause: kind: class out-of-memory needs the kind and the name of one entity"),
        ("class: out-of-memory", "class: nothing", "5: cause: class: nothing has no entity"),
        ("tool: pods_get", "tool: pods_delete", "7: evidence.0.tool: Input should be"),
        ("title: A title\n", "", "1: title: Field required"),
    ],
)
def test_a_wrong_file_is_refused_with_line_path_and_remedy(tmp_path: Path, former: str, new: str, problem: str) -> None:
    assert former in VALID
    refusals = problems(write(tmp_path / "memory", VALID.replace(former, new)))
    assert any(each.startswith(problem) for each in refusals), refusals


def test_a_directory_without_a_scenario_is_refused_with_a_remedy(tmp_path: Path) -> None:
    assert "name one, such as scenarios/NAME" in problems(tmp_path)[0]


def test_a_directory_of_scenarios_is_all_of_them_and_tags_select(tmp_path: Path) -> None:
    write(tmp_path / "b", VALID)
    write(tmp_path / "a", VALID.replace("tags: [pod]", "tags: [net, pod]"))
    assert [each.name for each in scenarios.find([tmp_path, tmp_path / "a"])] == ["a", "b"]
    assert [each.name for each in scenarios.find([tmp_path], tags=["net", "pod"])] == ["a"]


def test_a_change_of_any_file_is_another_scenario(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", VALID)
    first = scenarios.load(folder).digest
    (folder / "world").mkdir()
    (folder / "world" / "x").write_text("1")
    assert scenarios.load(folder).digest != first

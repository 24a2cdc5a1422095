"""Golden lines of recorded results: each is in the excerpt, or one search finds it.

The results are those of a real node (`tests/captures`), and the logs of the scenarios' worlds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest
from tarsy.evaluation import checks, scenarios, worlds
from tarsy.transcript import line_excerpts, result_lookup
from tarsy_dev import tools

CAPTURES = tools.ROOT / "tests" / "captures" / "kubernetes-mcp-server"
GOLDEN: Mapping[str, tuple[str, ...]] = {
    "command": ("no-such-program", "no such file or directory"),
    "crash": ("ends with status 3", "exitCode: 3"),
    "dns": ("Name or service not known", "cannot connect to store.billing.svc:5432"),
    "image": ("ImagePullBackOff", "registry.invalid/shop/web:9"),
    "init": ("PodInitializing|ContainersNotInitialized",),
    "memory": ("OOMKilled", "exitCode: 137"),
    "policy": ("cannot connect to store:5432", "timed out"),
    "probe": ("Readiness probe failed", "503"),
    "secret": ("CreateContainerConfigError", "find key uri in Secret"),
    "selector": ("didn'+t match Pod'+s node affinity/selector",),
    "size": ("Insufficient cpu",),
    "taint": ("untolerated taint",),
    "volume": ("(?i)persistentvolumeclaim", "(?i)storageclass"),
}
LIMITS = (1_000, 4_000, 20_000)


def golden_lines(pattern: str, text: str) -> list[str]:
    matching = [line for line in text.split("\n") if re.search(pattern, line, re.IGNORECASE)]
    assert matching, pattern
    return matching


def is_got(pattern: str, text: str, limit: int) -> bool:
    """Whether a golden line is in the excerpt, or in the answer to a search for its words."""
    rendered, _ = line_excerpts.render(text, line_excerpts.choose(text, limit), header="")
    lines = golden_lines(pattern, text)
    if any(line in rendered for line in lines):
        return True
    rule = result_lookup.compile_pattern(f"(?i){pattern}")
    return lines[0] in result_lookup.search(text, rule, context=0, first=1, limit=16_000)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_lines_of_a_real_node_are_got(name: str, limit: int) -> None:
    answers = json.loads((CAPTURES / f"{name}.json").read_text())
    text = "\n".join(answers.values())
    for pattern in GOLDEN[name]:
        assert is_got(pattern, text, limit), pattern


def test_there_are_golden_lines_for_each_capture() -> None:
    assert {path.stem for path in CAPTURES.glob("*.json")} == set(GOLDEN)


def logs() -> Iterator[tuple[str, str, str]]:
    """Yield the scenario, the pattern and the log of each piece of evidence that is in a log."""
    for scenario in scenarios.find([tools.ROOT / "scenarios"]):
        world = worlds.load(scenario.world)
        for evidence in scenario.document.evidence:
            if evidence.tool == "pods_log":
                arguments = checks.resolved(evidence.arguments, world)
                key = (arguments["namespace"], arguments["name"])
                for (namespace, pod, _, is_previous), log in world.logs.items():
                    is_asked = (namespace, pod) == key and is_previous == arguments.get("previous", False)
                    if is_asked and re.search(evidence.matches, log.text, re.IGNORECASE | re.DOTALL):
                        yield scenario.name, evidence.matches, log.text


LOGS = list(logs())


@pytest.mark.parametrize(("name", "pattern", "log"), LOGS, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(LOGS)])
def test_golden_lines_of_the_logs_of_scenarios_are_got(name: str, pattern: str, log: str) -> None:
    for limit in LIMITS:
        assert is_got(pattern, log, limit)


def test_lines_of_trouble_in_long_logs_are_in_the_excerpt_without_a_search() -> None:
    long = {name: (pattern, log) for name, pattern, log in LOGS if len(log) > 50_000}
    assert set(long) == {"connection-hog", "curious-scanner", "old-certificate"}
    for name in ("connection-hog", "old-certificate"):
        pattern, log = long[name]
        rendered, _ = line_excerpts.render(log, line_excerpts.choose(log, 20_000), header="")
        assert all(line in rendered for line in golden_lines(pattern, log)), name

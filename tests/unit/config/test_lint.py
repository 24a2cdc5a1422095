"""Problems of files, one change of a good file at a time: each is told with its line, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import mutations
from tarsy.config.check import lint
from tarsy.config.load import loader
from tarsy.config.model import platforms
from tarsy.resources import files
from tarsy_dev import tools

CHAINS = tools.ROOT / "manifests/chains"


@pytest.fixture(scope="module")
def builtin() -> platforms.Platform:
    return loader.platform_file(None)


def linted(text: str, builtin: platforms.Platform) -> list[str]:
    """Return the problems of chains, as lines."""
    try:
        problems = lint.problems(files.parse(text, file="f"), platform=builtin)
    except files.FileError as error:
        problems = error.problems
    return [str(problem) for problem in problems]


def checked(text: str) -> list[str]:
    """Return the problems of a platform file, as lines."""
    try:
        loader.loaded(files.parse(text, file="f")[0], environment=mutations.ENVIRONMENT)
    except files.FileError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_files_that_are_mutated_here_are_good(builtin: platforms.Platform) -> None:
    assert linted(mutations.CHAIN, builtin) == []
    assert checked(mutations.PLATFORM) == []
    assert len(mutations.SHAPES + mutations.NAMES + mutations.SETTINGS) > 100


@pytest.mark.parametrize(("old", "new", "expected"), mutations.SHAPES + mutations.NAMES)
def test_mutation_of_a_chain_is_reported_with_its_line(
    old: str, new: str, expected: str, builtin: platforms.Platform
) -> None:
    text, line = mutations.mutated(mutations.CHAIN, old, new)
    problems = linted(text, builtin)
    where = "f: " if expected.startswith("no AgentChain") else f"f:{line}: "
    assert any(problem.startswith(where + expected) for problem in problems), problems
    follows = {"    agnt:": 2, "  - name: An": 1}  # a stage that has no agent then, an agent that is not there
    elsewhere = [problem for problem in problems if not problem.startswith(where)]
    assert len(elsewhere) == next((many for start, many in follows.items() if new.startswith(start)), 0), problems


@pytest.mark.parametrize(("old", "new", "expected"), mutations.SETTINGS)
def test_mutation_of_a_platform_file_is_reported_with_its_line(old: str, new: str, expected: str) -> None:
    text, line = mutations.mutated(mutations.PLATFORM, old, new)
    problems = checked(text)
    assert any(expected in problem for problem in problems), problems
    at = [problem for problem in problems if problem.startswith(f"f:{line}: ")]
    elsewhere = [problem for problem in problems if problem not in at]
    assert at or expected.endswith("type is missing"), problems
    assert all(problem.endswith(("Field required", "type is missing")) for problem in elsewhere), problems
    assert "S3cret" not in "".join(problems)
    assert "AIza" not in "".join(problems)


def test_every_problem_is_reported_at_once(builtin: platforms.Platform) -> None:
    """Twelve changes in twelve lines, of form, of names and of rules alike."""
    text, expected = mutations.CHAIN, set()
    for old, new in [
        ("  description: Pods that restart.", "  descripton: x"),
        ("  llmProvider: google-default\n", "  llmProvider: google\n"),
        ("  maxIterations: 20", "  maxIterations: 0"),
        ("  mcpServers: [kubernetes-server]", "  mcpServers: [k8s]"),
        ("    nativeTools: [google_search]", "    nativeTools: [search]"),
        ("    replicas: 2", "    replicas: 11"),
        ("    timeoutSeconds: 300", "    timeoutSeconds: 5m"),
        ("  - name: analysis", "  - name: data-collection"),
        ("    - name: KubernetesAgent", "    - name: Kubernetes"),
        ("      llmProvider: anthropic-default", "      llmProvider: claude"),
        ("    successPolicy: any", "    replicas: 3"),
        ("    agent: ChatAgent", "    agent: Chatter"),
    ]:
        text, line = mutations.mutated(text, old, new)
        expected.add(f"f:{line}")
    problems = linted(text, builtin)
    assert {problem.partition(": ")[0] for problem in problems} == expected, problems


@pytest.mark.parametrize(("written", "seconds"), [("5m", 300), ("1h30m", 5400), ('"300"', 300), ("0s", None)])
def test_duration_in_place_of_seconds_is_refused_with_the_number_of_seconds(
    builtin: platforms.Platform, written: str, seconds: int | None
) -> None:
    text, line = mutations.mutated(mutations.CHAIN, "    timeoutSeconds: 300", f"    timeoutSeconds: {written}")
    why = f"expected seconds, a whole number: write {seconds}" if seconds else "Input should be a valid integer"
    assert linted(text, builtin) == [f"f:{line}: spec.stages.0.timeoutSeconds: {why}"]


def test_broken_setting_is_not_reported_as_missing() -> None:
    text, _ = mutations.mutated(mutations.PLATFORM, "    type: google", "    type: gemini")
    assert len(checked(text)) == 1, "who refers to the provider is right"
    text, _ = mutations.mutated(mutations.PLATFORM, "\nmcp_servers:\n", "\nmcp_servers: 3\nx:\n")
    assert not any("unknown MCP server" in problem for problem in checked(text))


def test_alert_type_conflict_is_reported_for_chains_of_one_namespace(builtin: platforms.Platform) -> None:
    other = mutations.CHAIN.replace("  name: pod-crash", "  name: other").replace("KubePodNotReady", "Other")
    first = mutations.CHAIN.count("\n") + 2
    (problem,) = linted(f"{mutations.CHAIN}---\n{other}", builtin)
    assert problem == (
        f"f:{first + 7}: Alert type 'KubePodCrashLooping' conflict: chain 'pod-crash' has it; an alert type belongs to "
        "one chain of a namespace, the oldest"
    )
    elsewhere = other.replace("metadata:", "metadata:\n  namespace: shop")
    assert linted(f"{mutations.CHAIN}---\n{elsewhere}", builtin) == []
    assert linted(f"{mutations.CHAIN}---\n{mutations.CHAIN}", builtin) == [
        f"f:{first + 3}: chain 'pod-crash' appears twice, first in f:4"
    ]


def test_a_list_of_chains_is_looked_into(builtin: platforms.Platform) -> None:
    chain = yaml.safe_load(mutations.CHAIN)
    chain["spec"]["maxIterations"] = 0
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [chain]})
    line = next(number for number, written in enumerate(text.splitlines(), 1) if "maxIterations" in written)
    assert linted(text, builtin) == [
        f"f:{line}: items.0.spec.maxIterations: Input should be greater than or equal to 1"
    ]


@pytest.mark.parametrize("text", ["", "3", "[]", "kind: AgentChain", "kind: AgentChain\nmetadata: 3\nspec: [1]"])
def test_document_that_is_not_a_chain_is_reported(text: str, builtin: platforms.Platform) -> None:
    assert linted(text, builtin)


def test_the_shipped_chains_are_good(builtin: platforms.Platform) -> None:
    documents = [document for path in sorted(CHAINS.iterdir()) for document in files.read(path)]
    assert lint.problems(documents, platform=builtin) == []


def test_the_chains_of_the_documentation_are_good(builtin: platforms.Platform) -> None:
    """Those of README and of docs, as they are shown."""
    for page in [tools.ROOT / "README.md", *sorted((tools.ROOT / "docs").glob("*.md"))]:
        for block in Path(page).read_text(encoding="utf-8").split("```yaml\n")[1:]:
            text, _, _ = block.partition("```")
            if "kind: AgentChain" in text:
                assert linted(text, builtin) == [], page


WRONG: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, True, 1.5, "", "x", "20s", "{{.LOGS}}", [], [1], ["x", "x"], {}, {"x": 1}, {"name": None}, [[]], [{}]]
)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(location for key, value in below for location in places(value, (*at, key)))]


def test_reference_of_a_chain_without_a_name_has_a_subject(builtin: platforms.Platform) -> None:
    text = mutations.CHAIN.replace("  name: pod-crash\n", "", 1).replace(
        "llmProvider: google-default", "llmProvider: x"
    )
    assert any(
        re.match(r"f:\d+: The chain references unknown LLM provider 'x'", each) for each in linted(text, builtin)
    )


@pytest.mark.parametrize("kind", ["chain", "platform"])
@given(data=st.data())
def test_any_written_value_is_accepted_or_reported_with_its_line(kind: str, data: st.DataObject) -> None:
    text = mutations.CHAIN if kind == "chain" else mutations.PLATFORM
    read = yaml.safe_load(text)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from([location for location in places(read) if location]))
        inner = read
        for step in path:
            inner = inner[step]
        inner[last] = data.draw(WRONG)
    problems = (
        linted(yaml.safe_dump(read), loader.platform_file(None)) if kind == "chain" else checked(yaml.safe_dump(read))
    )
    assert all(re.match(r"f:[1-9]\d*: \S|f: no AgentChain in it$", problem) for problem in problems)

"""Patterns over `server.tool`: which are refused, and what becomes of a chain that has such a one."""

from __future__ import annotations

import fnmatch
from typing import Any

import hypothesis
import pydantic
import pytest
from hypothesis import strategies as st
from tarsy.config.check import chain_index
from tarsy.config.load import loader
from tarsy.resources import base, chains, investigations, tool_patterns
from tarsy.transcript import record


def is_open(pattern: str) -> bool:
    """Whether a `[` is never closed, by a scan such as fnmatch's own."""
    at = 0
    while (at := pattern.find("[", at)) >= 0:
        begin = at + 1 + pattern.startswith("!", at + 1)
        if (end := pattern.find("]", begin + 1)) < 0:
            return True
        at = end + 1
    return False


@hypothesis.given(st.text(alphabet="[]!-ab.*?\n", min_size=1, max_size=10))
def test_pattern_is_refused_without_server_or_with_an_open_bracket(pattern: str) -> None:
    assert bool(tool_patterns.own_misfit(pattern)) == is_open(pattern)
    assert bool(tool_patterns.misfit(pattern)) == (is_open(pattern) or not ("." in pattern or pattern[0] == "*"))
    if tool_patterns.own_misfit(pattern) and not set(pattern) & set("*?]"):
        assert fnmatch.fnmatchcase(pattern, pattern), "an open [ stands for itself"


ALL = ", and 'kubernetes-server.*' for all tools of a server"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("pods_l*", f"'pods_l*' is not server.tool: write 'kubernetes-server.pods_l*' or '*.pods_l*'{ALL}"),
        ("*.[nodes_*", "a [ is never closed: close it, as in [ab], or write [[] for the character itself"),
        ("*pods_log", ""),
        ("*", ""),
        ("k8s.[[]x", ""),
        ("*.[]ab]", ""),
        ("gone.anything", ""),
    ],
)
def test_refusal_of_a_pattern_names_its_remedy(pattern: str, words: str) -> None:
    assert tool_patterns.misfit(pattern) == words


STAGE = {"name": "look", "agent": "KubernetesAgent"}
DENIES = {"tools": {"deny": ["*.pods_get", "pods_l*"]}}


@pytest.mark.parametrize(
    ("spec", "location"),
    [
        ({"stages": [STAGE | DENIES]}, "spec.stages.0.tools.deny.1"),
        ({"stages": [{"name": "look", "agents": [{"name": "Own", **DENIES}]}]}, "spec.stages.0.agents.0.tools.deny.1"),
        ({"agents": [{"name": "Own", **DENIES}], "stages": [STAGE]}, "spec.agents.0.tools.deny.1"),
        ({"stages": [STAGE | {"tools": {"allow": ["*.[nodes_*"]}}]}, "spec.stages.0.tools.allow.0"),
    ],
)
def test_stored_chain_with_a_refused_pattern_is_read_and_not_ready(spec: dict[str, Any], location: str) -> None:
    own = spec.get("agents", [{"name": "Own"}])
    stored = chains.Spec.model_validate({"alertTypes": ["T"], **spec, "agents": own})
    made = chains.AgentChain(metadata=base.ObjectMeta(name="c", namespace="tarsy", uid="u"), spec=stored)
    index = chain_index.ChainIndex(
        [made], platform=loader.platform_file(None), unusable_providers={}, namespace="tarsy", own="tarsy"
    )
    problem = index.status(made, {}).problem
    assert problem is not None
    assert (problem.reason, problem.message.partition(": ")[0]) == ("PatternInvalid", location)
    with pytest.raises(chain_index.UnservedError, match="is not ready: " + location):
        index.chain_for("T")


def test_snapshot_with_a_refused_pattern_is_read() -> None:
    stored = {"alert_types": ["T"], "stages": [STAGE | DENIES]}
    for read in record.CHAIN_DECODERS.values():
        assert read(stored).stages[0].tools == chains.Tools(deny=["*.pods_get", "pods_l*"])
    stored_selection = {"tools": {"deny": ["pods_l*"]}, "servers": [{"name": "k8s", "tools": ["[x"]}]}
    assert investigations.MCP.model_validate(stored_selection).tools is not None


def test_new_invalid_tool_pattern_is_refused_with_its_location() -> None:
    written = {"tools": {"deny": ["pods_l*"]}, "servers": [{"name": "k8s", "tools": ["pods_*", "[x"]}]}
    with pytest.raises(pydantic.ValidationError) as error:
        investigations.MCP.model_validate(written, context=tool_patterns.AS_WRITTEN)
    assert {problem["loc"] for problem in error.value.errors()} == {("tools", "deny", 0), ("servers", 0, "tools", 1)}

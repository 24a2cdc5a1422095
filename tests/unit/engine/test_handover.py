"""Handover of other agents' work, which stays bounded however much that is."""

from __future__ import annotations

import re

import pytest
from support import stories
from tarsy.agent import excerpting
from tarsy.config.model import platforms
from tarsy.engine import handover
from tarsy.transcript import entries, messages, record

RESULT = "y" * 70_000


def stage(results: int) -> record.Stage:
    """One agent, which has called a tool so often and read as much each time."""
    log: messages.Log = []
    for call_number in range(results):
        call = messages.ToolCall(id=f"{call_number}.0", name="k8s.get", arguments="{}")
        log.append(messages.Message(role="assistant", calls=(call,)))
        log.append(messages.Message(role="tool", call_id=call.id, tool_name=call.name, text=RESULT))
    log.append(messages.Message(role="assistant", text="done"))
    execution = record.Execution(started=stories.started(), log=log, ended=stories.ended())
    return record.Stage(started=stories.stage_started(), executions={"one": execution}, ended=stories.stage_ended())


@pytest.mark.parametrize("results", [1, 10, 100, 1_000, 10_000])
def test_handed_over_text_is_bounded_for_any_number_of_results(results: int) -> None:
    read_stage = stage(results)
    joined, earlier = (
        handover.agents_work(read_stage),
        handover.earlier_stages(record.Run(stages={"a": read_stage}), reads="data"),
    )
    for text in (joined, earlier):
        lengths = [len(excerpt) for excerpt in re.findall("y{5,}", text)]
        assert len(lengths) == 2 * results, "each has its share: its beginning and its end"
        assert sum(lengths) <= handover.RESULTS_SHOWN
        assert max(map(sum, zip(lengths[::2], lengths[1::2], strict=True))) <= handover.RESULT_SHOWN
        assert text.count("characters of a line are left out here]") == results, "and the cut is told"


def test_result_of_default_excerpt_size_is_handed_over_complete() -> None:
    google = {"type": "google", "model": "gemini-2.5-flash"}
    server = {"transport": {"type": "stdio", "command": "k"}}
    platform = platforms.Platform.model_validate({"llm_providers": {"p": google}, "mcp_servers": {"k8s": server}})
    assert excerpting.limit(platform, "k8s", "p", 10**6) == handover.RESULT_SHOWN


def test_latest_tool_calls_are_listed_and_earlier_calls_are_named_as_a_range() -> None:
    read = handover.earlier_stages(record.Run(stages={"a": stage(50)}), reads="results", looks_into_results=True)
    listed = re.findall(r"^one/(\d+)\.0: k8s\.get of KubernetesAgent-1$", read, re.MULTILINE)
    assert listed == [str(number) for number in range(30, 50)]
    assert "\none/0.0 to one/29.0: 30 earlier calls of KubernetesAgent-1\n" in read
    read = handover.earlier_stages(record.Run(stages={"a": stage(20)}), reads="results", looks_into_results=True)
    assert "earlier calls" not in read


def test_a_stage_in_sequence_reads_no_results() -> None:
    assert "y" * 10 not in handover.earlier_stages(record.Run(stages={"a": stage(3)}), reads="results")


def test_only_latest_earlier_questions_are_handed_over_and_each_is_cut_to_its_limit() -> None:
    asked = []
    for number in range(50):
        answer = messages.Message(role="assistant", text="z" * 20_000)
        execution = record.Execution(started=stories.started(), log=[answer], ended=stories.ended())
        asked.append(record.Run(question=f"question-{number} {'q' * 20_000}", executions={"one": execution}))
    text = handover.investigation(record.Run(ended=entries.RunEnded(ending="Failed", reason="No")), asked)
    assert re.findall(r"question-(\d+)", text) == [str(number) for number in range(30, 50)]
    assert max(map(len, re.findall("z+", text))) == handover.QUESTION_SHOWN
    assert len(text) < 2 * handover.QUESTIONS_SHOWN * (handover.QUESTION_SHOWN + 500)

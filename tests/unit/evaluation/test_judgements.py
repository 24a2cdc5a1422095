"""Judgements of a run, from its log."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tarsy.evaluation import judgements, scenarios
from tarsy.transcript import entries, messages


def logged(entry: entries.Entry | entries.Unreadable) -> entries.Logged:
    at = datetime(2026, 11, 26, tzinfo=UTC)
    return entries.Logged(seq=1, at=at, claim=1, run=0, stage="s", execution="e", entry=entry)


def answered(text: str, *, length: int | None = None) -> entries.Logged:
    run = entries.ToolRun(
        call=messages.ToolCall(id="1.0", name="k.pods_get", arguments="{}"),
        result=messages.Message(role="tool", text=text, call_id="1.0"),
        seconds=0,
        length=length,
    )
    return logged(entries.ToolsAnswered(execution="e", runs=(run,)))


EVIDENCE = scenarios.Evidence(shows="it", tool="pods_get", matches="OOMKilled")


def test_evidence_in_the_part_that_a_model_did_not_get_is_reachable_and_not_seen() -> None:
    visible = judgements.visible_evidence([answered("cut", length=20)], ["cut, and OOMKilled"])
    piece = judgements.evidence_result(EVIDENCE, visible, "an analysis")
    assert (piece.seen, piece.reachable, piece.cited) == (False, True, False)
    assert "OOMKilled" in visible.transcript


def test_evidence_in_a_result_is_seen_and_in_an_answer_alone_is_not() -> None:
    answer = entries.Answered(
        execution="e",
        turn=1,
        messages=(messages.Message(role="assistant", text="I guess OOMKilled"),),
        call=entries.ModelCall(provider="p", model="m", seconds=1),
    )
    guessed = judgements.evidence_result(EVIDENCE, judgements.visible_evidence([logged(answer)], []), "OOMKilled")
    assert (guessed.seen, guessed.reachable, guessed.cited) == (False, False, True)
    looked = judgements.evidence_result(EVIDENCE, judgements.visible_evidence([answered("OOMKilled")], []), "")
    assert (looked.seen, looked.cited) == (True, False)


def test_an_unreadable_entry_is_no_silent_gap() -> None:
    unreadable = entries.Unreadable(kind="New", version=9, problem="of a newer version")
    with pytest.raises(ValueError, match="of a newer version"):
        judgements.visible_evidence([logged(unreadable)], [])

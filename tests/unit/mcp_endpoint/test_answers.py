"""The size of what a model reads, and the way to the rest."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pydantic import BaseModel
from tarsy.mcp_endpoint import answers

TEXTS = ("a", "é", "漢", "🔥", '"', "\\", "\n", "\0")
"""Characters of one to four bytes, and those that JSON escapes to two and to six."""
LONG = 20_000
NAME = "n" * 253
LABEL = "n" * 63
NOW = "2026-11-27T19:00:00Z"


def size(answer: BaseModel) -> int:
    """The bytes of an answer as a client gets it."""
    return len(json.dumps(answer.model_dump(mode="json"), ensure_ascii=False).encode())


def row(text: str) -> dict[str, Any]:
    """A row of the API's list, with texts as long as it allows or longer."""
    names = dict.fromkeys(("name", "alert_type", "severity", "chain_name"), NAME)
    names |= {"namespace": LABEL, "current_stage": LABEL}
    texts = dict.fromkeys(("alert_summary", "summary", "message"), text)
    rest = {"alert_status": "firing", "phase": "CompletedWithErrors", "progress": "45/45", "grounded": False}
    return {"id": str(uuid.uuid4()), "admitted_at": NOW, "ended_at": NOW, **names, **texts, **rest}


def investigation(text: str) -> dict[str, Any]:
    """An investigation of the API with as much as it can have."""
    run = {"ended_at": NOW, "ending": "completed", "question": text, "final_analysis": text, "message": text}
    return {
        **row(text),
        "final_analysis": text,
        "gaps": [{"tool": text, "reason": text}] * 10,
        "stages": [{"name": LABEL, "outcome": "failed", "message": text}] * 45,
        "runs": [{**run, "number": number} for number in range(50)],
    }


def event(seq: int, text: str, *, keys: int = 0) -> dict[str, Any]:
    metadata = {f"key {number}": [text] for number in range(keys)}
    rest = {"type": "tool_result", "status": "completed", "stage": LABEL, "created_at": NOW}
    return {"id": str(uuid.uuid4()), "seq": seq, "content": text, "metadata": metadata, **rest}


def timeline(*events: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"events": list(events), "last": events[-1]["seq"], "more": more}


def chain(name: str, *, namespace: str = "tarsy", message: str = "") -> dict[str, Any]:
    ready = {"type": "Ready", "status": "False" if message else "True", "message": message}
    types = [f"{number:03}{'t' * 250}" for number in range(50)]
    return {"name": name, "namespace": namespace, "alert_types": types, "conditions": [ready]}


@pytest.mark.parametrize("character", TEXTS)
@pytest.mark.parametrize("limit", [0, 1, 6, 7, 1000])
def test_cut_text_has_its_limit_of_bytes_in_json(character: str, limit: int) -> None:
    each = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    assert answers.cut(character * (limit // each), limit) == character * (limit // each)
    longer = answers.cut(character * (limit // each + 1), limit)
    assert longer == character * (limit // each) + answers.CUT


@pytest.mark.parametrize("character", TEXTS)
def test_every_answer_has_a_size_that_a_model_reads(character: str) -> None:
    text = character * LONG
    listed = {
        "items": [row(text)] * 20,
        "counts": {"Completed": 10**9},
        "counts_exact": True,
        "next": "c" * 1000,
        "unchecked_namespaces": [{"name": LABEL, "message": text}] * 100,
    }
    state = answers.state(investigation(text), url=f"https://{NAME}/investigations/{uuid.uuid4()}")
    events = [event(number, text, keys=5) for number in range(100)]
    of_one_entry = [event(1, text, keys=5) for _ in range(100)]
    answered = answers.answered(investigation(text), 49)
    for answer in (
        answers.investigations(listed),
        answers.Detailed(investigation=state, timeline=answers.page(timeline(*events))),
        answers.Detailed(investigation=state, timeline=answers.page(timeline(*of_one_entry))),
        answered,
    ):
        assert size(answer) < answers.RESULT_MAX
    assert answered.answer.endswith(answers.CUT)
    assert [question.number for question in state.questions] == [45, 46, 47, 48, 49]
    assert all(question.answer.endswith(answers.CUT) for question in state.questions)


def test_short_texts_are_as_they_were() -> None:
    read = investigation("short")
    state = answers.state(read, url=None)
    assert (state.ended, state.final_analysis, state.summary, state.gaps[0].reason) == (True, *["short"] * 3)
    read["runs"][-1]["ended_at"] = None
    assert not answers.state(read, url=None).ended
    assert not answers.answered(read, 49).ended


def test_pages_have_every_event_once_or_count_it() -> None:
    events = [event(number // 7, f"{number} " + "漢" * 3000) for number in range(70)]
    read: list[str] = []
    left_out = after = 0
    more = True
    while more:
        rest = [stored_event for stored_event in events if stored_event["seq"] > after - 1]
        page = answers.page(timeline(*rest))
        assert size(page) < 2 * answers.PAGE_MAX
        read += [page_event.id for page_event in page.events]
        left_out += page.left_out
        after, more = page.last + 1, page.more
    assert read == [stored_event["id"] for stored_event in events if stored_event["id"] in read]
    assert len(read) + left_out == len(events)
    assert left_out


def test_pages_of_chains_have_all_of_them() -> None:
    listed = [chain(f"chain-{number:03}", namespace=namespace) for number in range(20) for namespace in ("a", "b")]
    listed[3]["conditions"] = [{"type": "Ready", "status": "False", "message": "漢" * LONG}]
    read = {"items": listed, "total": 40, "unchecked_namespaces": [{"name": "c", "message": "away"}]}
    read_names: list[tuple[str, str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = answers.chains(read, after=cursor)
        assert size(page) < answers.RESULT_MAX
        assert (page.total, page.unchecked_namespaces) == (40, ["c"])
        read_names += [(page_chain.name, page_chain.namespace) for page_chain in page.items]
        cursor = page.next
    assert read_names == [(listed_chain["name"], listed_chain["namespace"]) for listed_chain in listed]
    unready = next(page_chain for page_chain in answers.chains(read, after="chain-001/a").items if not page_chain.ready)
    assert unready.message.endswith("漢...")


@pytest.mark.parametrize("cursor", ["made up", "/", "///", "\0", "chain-9"])
def test_a_cursor_that_is_made_up_only_skips(cursor: str) -> None:
    read = {"items": [chain("chain-1")], "total": 1, "unchecked_namespaces": []}
    assert len(answers.chains(read, after=cursor).items) <= 1

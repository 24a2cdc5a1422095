"""The answers of the tools: those of the API, with the fields that an agent needs, and of a size that a model reads.

Claude Code, for one, refuses a result of more than 25,000 tokens. So every text has a limit of bytes, as JSON has them,
and a page of events ends early.
"""

from __future__ import annotations

import bisect
import json
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

RESULT_MAX = 100_000
"""Bytes of a result: 25,000 tokens of English have about so many. The limits below add up to less."""
ANALYSIS_MAX = 16_000
"""Bytes of a conclusion."""
SUMMARY_MAX = 1000
"""Bytes of a conclusion in a few lines, and of an alert's own summary."""
MESSAGE_MAX = 500
"""Bytes of a message, and of the reason of a gap."""
CONTENT_MAX = 4000
"""Bytes of one event's content."""
PAGE_MAX = 24_000
"""Bytes of a page's events."""
METADATA_MAX = 1000
"""Bytes of one value in an event's metadata."""
CHAINS_MAX = 40_000
"""Bytes of a page of chains."""
STAGES_MAX = 20
UNCHECKED_MAX = 100
QUESTIONS_MAX = 5
QUESTION_MAX = 2000
"""Bytes of a question, and of its answer, among the facts of an investigation."""
CUT = "\n[cut: the transcript has the rest]"


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class Investigation(_Answer):
    """One investigation in a list."""

    id: UUID
    namespace: str
    name: str
    alert_type: str
    alert_summary: str
    alert_status: str | None
    """firing or resolved; null if it stands for no alert of Alertmanager."""
    severity: str | None
    chain_name: str | None
    phase: str
    progress: str
    """The number of ended stages, of all stages."""
    current_stage: str | None
    admitted_at: datetime
    ended_at: datetime | None
    summary: str
    """The conclusion in a few lines."""
    message: str
    """The reason of its end, or of its waiting."""
    grounded: bool | None
    """Whether the conclusion rests on something that was inspected; null without a conclusion."""


class Investigations(_Answer):
    """A page of investigations."""

    items: list[Investigation]
    counts: dict[str, int]
    """The number of investigations that match all filters but `phase`, by phase."""
    counts_exact: bool
    """Whether the counts are complete; else there may be more."""
    next: str | None
    """The cursor of the next page; null on the last one. A page of a search may have few items."""
    unchecked_namespaces: list[str]
    """Namespaces that may be missing here, because your right to list them cannot be checked now."""


class Stage(_Answer):
    """A stage that has begun."""

    name: str
    outcome: str | None
    message: str
    """The errors of the stage."""


class Gap(_Answer):
    """Something that could not be inspected."""

    tool: str
    reason: str


class Question(_Answer):
    """A question after the end, and its answer."""

    number: int
    question: str
    ended_at: datetime | None
    ending: str | None
    answer: str
    message: str
    """The reason if there is no answer."""


class State(Investigation):
    """One investigation, with its result."""

    ended: bool
    """Whether it and the newest question about it have ended; until then, `wait` for it."""
    final_analysis: str
    """The whole conclusion, in Markdown; "" before the end."""
    gaps: list[Gap]
    """The first 10."""
    stages: list[Stage]
    """The newest 20."""
    questions: list[Question]
    """The newest 5, with excerpts of their answers."""
    url: str | None
    """The page of the investigation, for people; null if TARSy does not know its address, or has no pages."""


class Event(_Answer):
    """One event of a timeline."""

    id: str
    seq: int
    type: str
    status: str
    stage: str
    content: str
    metadata: dict[str, Any]
    """The tool, its arguments, the provider and the like."""
    created_at: datetime


class Timeline(_Answer):
    """A page of the events of an investigation."""

    events: list[Event]
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""
    left_out: int
    """The number of events that this page has no room for, and no later one has: the transcript has them."""


class Detailed(_Answer):
    """One investigation, with a page of its timeline."""

    investigation: State
    timeline: Timeline


class Answered(_Answer):
    """A question, and its answer if there is one by now."""

    id: UUID
    run: int
    ended: bool
    """Whether the question has been answered, or has failed; if not, `wait` for it."""
    answer: str
    message: str


class Chain(_Answer):
    """A chain."""

    name: str
    namespace: str
    alert_types: list[str]
    ready: bool
    message: str
    """The reason why it is not ready."""


class Chains(_Answer):
    """A page of the chains that the caller may see, by name."""

    items: list[Chain]
    total: int
    next: str | None
    """The cursor of the next page; null on the last one."""
    unchecked_namespaces: list[str]
    """Namespaces whose chains are missing here, because they cannot be read now."""


def cut(text: str, limit: int, *, note: str = CUT) -> str:
    """Return a text of at most `limit` bytes, as JSON has them, or so many and a note."""
    excerpt = text[:limit]
    if len(text) == len(excerpt) and _size(text) <= limit:
        return text
    length = bisect.bisect_right(range(len(excerpt) + 1), limit, key=lambda length: _size(excerpt[:length])) - 1
    return excerpt[:length] + note


def investigations(read: dict[str, Any]) -> Investigations:
    """Return a page of the API's list."""
    items = [_row(listed) for listed in read["items"]]
    return Investigations.model_validate({**read, "items": items, "unchecked_namespaces": _names_of_unchecked(read)})


def state(read: dict[str, Any], *, url: str | None) -> State:
    """Return an investigation of the API; `url` is that of its page."""
    gaps = [{"tool": cut(gap["tool"], MESSAGE_MAX), "reason": cut(gap["reason"], MESSAGE_MAX)} for gap in read["gaps"]]
    stages = [{**stage, "message": cut(stage["message"], MESSAGE_MAX)} for stage in read["stages"][-STAGES_MAX:]]
    questions = [
        {
            **run,
            "question": cut(run["question"], QUESTION_MAX),
            "answer": cut(run["final_analysis"], QUESTION_MAX),
            "message": cut(run["message"], MESSAGE_MAX),
        }
        for run in read["runs"]
        if run["number"]
    ]
    analysis = cut(read["final_analysis"], ANALYSIS_MAX)
    results = {"ended": has_ended(read), "final_analysis": analysis, "gaps": gaps, "stages": stages, "url": url}
    return State.model_validate({**_row(read), **results, "questions": questions[-QUESTIONS_MAX:]})


def has_ended(read: dict[str, Any]) -> bool:
    """Whether all runs of an investigation of the API have ended."""
    return all(run["ended_at"] for run in read["runs"])


def answered(read: dict[str, Any], number: int) -> Answered:
    """Return the question of a number, of an investigation of the API."""
    run = next(run for run in read["runs"] if run["number"] == number)
    return Answered(
        id=read["id"],
        run=number,
        ended=run["ended_at"] is not None,
        answer=cut(run["final_analysis"], ANALYSIS_MAX),
        message=cut(run["message"], MESSAGE_MAX),
    )


def page(timeline: dict[str, Any]) -> Timeline:
    """Return a page of the API's timeline, which ends before PAGE_MAX bytes, but not inside an entry of the log."""
    events: list[Event] = []
    size = left_out = 0
    for read in timeline["events"]:
        texts = {key: json.dumps(value, ensure_ascii=False) for key, value in read["metadata"].items()}
        metadata = {
            key: value if _size(texts[key]) <= METADATA_MAX else cut(texts[key], METADATA_MAX)
            for key, value in read["metadata"].items()
        }
        event = Event.model_validate({**read, "content": cut(read["content"], CONTENT_MAX), "metadata": metadata})
        size += len(event.model_dump_json().encode())
        if size > PAGE_MAX and events:
            if event.seq != events[0].seq:
                events = [earlier for earlier in events if earlier.seq < event.seq]
                return Timeline(events=events, last=event.seq - 1, more=True, left_out=left_out)
            left_out += 1
        else:
            events.append(event)
    return Timeline(events=events, last=timeline["last"], more=timeline["more"], left_out=left_out)


def chains(read: dict[str, Any], *, after: str) -> Chains:
    """Return a page of the API's chains: those after a cursor ("" begins), with CHAINS_MAX bytes or fewer."""
    items: list[Chain] = []
    size, following = 0, None
    for listed in read["items"]:
        if (listed["name"], listed["namespace"]) <= tuple(after.split("/")):
            continue
        ready = next((condition for condition in listed["conditions"] if condition["type"] == "Ready"), None)
        is_ready = ready is not None and ready["status"] == "True"
        message = cut(ready["message"], MESSAGE_MAX, note="...") if ready and not is_ready else ""
        chain = Chain.model_validate({**listed, "ready": is_ready, "message": message})
        size += len(chain.model_dump_json().encode())
        if size > CHAINS_MAX and items:
            following = f"{items[-1].name}/{items[-1].namespace}"
            break
        items.append(chain)
    unchecked = _names_of_unchecked(read)
    return Chains(items=items, total=read["total"], next=following, unchecked_namespaces=unchecked)


def _row(read: dict[str, Any]) -> dict[str, Any]:
    """Return an investigation of the API with shorter texts."""
    texts = {"summary": SUMMARY_MAX, "message": MESSAGE_MAX, "alert_summary": MESSAGE_MAX}
    return {**read, **{name: cut(read[name], limit) for name, limit in texts.items()}}


def _names_of_unchecked(read: dict[str, Any]) -> list[str]:
    return [namespace["name"] for namespace in read["unchecked_namespaces"]][:UNCHECKED_MAX]


def _size(text: str) -> int:
    """Return the bytes of a text in JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2

"""What is shown of an answer while it is being written: the events that the timeline will have of it. Pure.

They have the ids under which `timeline` tells of the answer once it is committed. What an answer in the ReAct dialect
says is read again as it grows, so what was shown of it may have to be corrected, and what was a thought may turn out to
be none: the commit has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tarsy.transcript import messages, ports, react, record, timeline


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One event, as it stands so far."""

    event: str
    """Its id."""
    type: timeline.Type
    """Of a text it is what it mostly turns out to be; whether it concludes is known at its end."""
    text: str


def shown(turn: ports.Turn, *, thinking: str, text: str) -> list[Shown]:
    """The events of an answer of which so much is there."""
    return [one for one in _all(turn, thinking=thinking, text=text) if one.text]


def _all(turn: ports.Turn, *, thinking: str, text: str) -> Iterator[Shown]:
    place = f"{turn.execution}.{turn.number}"
    yield Shown(event=f"{place}.thinking", type="llm_thinking", text=messages.storable(thinking))
    if not record.is_react(turn.strategy):
        kind: timeline.Type = "executive_summary" if turn.kind == "summary" else "llm_response"
        yield Shown(event=f"{place}.text", type=kind, text=messages.storable(text))
    elif len(text) <= react.READ_MAX:  # beyond it is refused
        reading = react.read(_told(messages.storable(text)))
        yield Shown(event=f"{place}.thought", type="llm_thinking", text=reading.thought)
        yield Shown(event=f"{place}.text", type="llm_response", text=reading.answer)


_LABELS = ("thought", "actioninput", "finalanswer", "observation")
_DRESS = re.compile(r"[\s_*`#+~-]+")


def _told(text: str) -> str:
    """An answer without its last line, as long as that may become a label."""
    before, newline, line = text.rpartition("\n")
    word = _DRESS.sub("", line[:100]).lower()
    return before + newline if any(label.startswith(word) for label in _LABELS) else text


def common(one: str, other: str) -> int:
    """How many characters two texts have in common from their beginning on."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low

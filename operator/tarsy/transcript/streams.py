"""The events of an answer while a model writes it, and of the tool calls after it: pure functions of the text so far.

The events have the ids that the timeline gives them when the answer is committed. The event of a tool call has the
tool's messages, until its result replaces them. A ReAct answer is parsed again as it grows, so an event may be
corrected: only the commit is final. Known secrets are removed from the whole text, not from its pieces. An end that may
be the beginning of a secret is held back until more text follows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tarsy.masking import known_secrets
from tarsy.transcript import messages, ports, react, record, timeline_events


@dataclass(frozen=True, kw_only=True)
class PartialEvent:
    """An event with its text so far."""

    event: str
    """Its id."""
    type: timeline_events.Type
    """The usual type of such a text. Only the commit decides whether it is a conclusion."""
    text: str


def partial_events(
    model_call: ports.StreamedCall,
    *,
    thinking: str,
    text: str,
    secrets: known_secrets.KnownSecrets,
    tools: Mapping[str, str] | None = None,
) -> list[PartialEvent]:
    """Return the events of an answer so far, and of the messages of tools so far (`tools`, by call id).

    Known secrets are removed, and an end that may be the beginning of one.
    """
    thinking, text = secrets.mask_beginning(thinking), secrets.mask_beginning(text)
    results = (
        PartialEvent(event=f"{model_call.execution}.{call}.result", type="tool_result", text=messages.storable(result))
        for call, result in (tools or {}).items()
    )
    return [part for part in (*_answer_events(model_call, thinking=thinking, text=text), *results) if part.text]


def _answer_events(call: ports.StreamedCall, *, thinking: str, text: str) -> Iterator[PartialEvent]:
    prefix = f"{call.execution}.{call.number}"
    if call.result:
        event = timeline_events.summary_id(call.execution, call.result)
        yield PartialEvent(event=event, type="mcp_tool_summary", text=messages.storable(text))
        return
    yield PartialEvent(event=f"{prefix}.thinking", type="llm_thinking", text=messages.storable(thinking))
    if not record.is_react(call.strategy):
        kind: timeline_events.Type = "executive_summary" if call.kind == "summary" else "llm_response"
        yield PartialEvent(event=f"{prefix}.text", type=kind, text=messages.storable(text))
    elif len(text) <= react.READ_MAX:  # a longer one is rejected
        reading = react.read(without_partial_label(messages.storable(text)))
        yield PartialEvent(event=f"{prefix}.thought", type="llm_thinking", text=reading.thought)
        yield PartialEvent(event=f"{prefix}.text", type="llm_response", text=reading.answer)


_LONG = 16 * 1024
"""The length above which a ReAct answer takes milliseconds to parse, in characters."""
_LABELS = ("thought", "actioninput", "finalanswer", "observation")
_DRESS = re.compile(r"[\s_*`#+~-]+")


def without_partial_label(text: str) -> str:
    """Return a ReAct answer without its last line if that may become a label."""
    before, newline, line = text.rpartition("\n")
    word = _DRESS.sub("", line[:100]).lower()
    return before + newline if any(label.startswith(word) for label in _LABELS) else text


class AnswerStream:
    """The stream of an answer, and the events of it that were sent to viewers."""

    def __init__(
        self, call: ports.StreamedCall, *, secrets: known_secrets.KnownSecrets, notify: Callable[[], None]
    ) -> None:
        """`notify` is called after each addition."""
        self._secrets = secrets
        self._call = call
        self._notify = notify
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._tools: dict[str, str] = {}
        self._sent: dict[str, PartialEvent] = {}

    def text(self, piece: str) -> None:
        """Add `piece` to the answer."""
        self._text.append(piece)
        self._notify()

    def thinking(self, piece: str) -> None:
        """Add `piece` to the thoughts."""
        self._thinking.append(piece)
        self._notify()

    def again(self) -> None:
        """Discard the text so far: the request is sent again."""
        self._text, self._thinking = [], []
        self._notify()

    def tool(self, call: str, piece: str) -> None:
        """Add `piece` to the messages of the tool during the call of that id."""
        self._tools[call] = self._tools.get(call, "") + piece
        self._notify()

    @property
    def sent_events(self) -> Collection[PartialEvent]:
        """The events that `changes` has returned; the text of one that no longer exists is ""."""
        return self._sent.values()

    def reading(self) -> tuple[Callable[[], list[PartialEvent]], bool]:
        """Return a function that computes the present events in any thread, and whether it takes long."""
        self._text, self._thinking = ["".join(self._text)], ["".join(self._thinking)]
        (text,), (thinking,) = self._text, self._thinking
        is_long = record.is_react(self._call.strategy) and len(text) > _LONG
        tools = dict(self._tools)
        compute = functools.partial(
            partial_events, self._call, thinking=thinking, text=text, secrets=self._secrets, tools=tools
        )
        return compute, is_long

    def changes(
        self, parts: Sequence[PartialEvent] | None = None, *, anew: bool = False
    ) -> list[tuple[PartialEvent, int]]:
        """Return the events that changed since the last call, each with its first changed offset; `anew`: all of them.

        `parts` are the present events (`reading`); None computes them here.
        """
        parts = self.reading()[0]() if parts is None else parts
        before = self._sent
        gone = {event: replace(part, text="") for event, part in before.items()}
        self._sent = gone | {part.event: part for part in parts}
        if anew:
            return [(part, 0) for part in self._sent.values()]
        return [
            (part, common_length(before[event].text, part.text) if event in before else 0)
            for event, part in self._sent.items()
            if before.get(event) != part
        ]


def common_length(text: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[low:middle] == other[low:middle] else (low, middle - 1)
    return low

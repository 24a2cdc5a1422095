"""The visible parts of an answer that is being written: the events that the timeline will have of it. Pure.

Of its calls these are the messages of their tools during the call; the result replaces them.

The events have the ids that `timeline` gives them once the answer is committed. An answer in the ReAct dialect is
parsed again as it grows, so a text that was shown may have to be corrected, and a thought may turn out to be none: the
commit has the last word. Known secrets are searched for in the whole text, so that they may arrive in any pieces; an
end that may be the beginning of a secret is held back until more follows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tarsy.masking import known_secrets
from tarsy.transcript import messages, ports, react, record, timeline_events


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One event, as it stands so far."""

    event: str
    """Its id."""
    type: timeline_events.Type
    """The type that a text usually turns out to have; only its end tells whether it concludes."""
    text: str


def events_of(
    model_call: ports.StreamedCall,
    *,
    thinking: str,
    text: str,
    secrets: known_secrets.KnownSecrets,
    tools: Mapping[str, str] | None = None,
) -> list[Shown]:
    """The events of an answer of which so much is there, and of its calls, of which `tools` have said so much.

    Without what this process was given, or may be about to be.
    """
    thinking, text = secrets.mask_beginning(thinking), secrets.mask_beginning(text)
    results = (
        Shown(event=f"{model_call.execution}.{call}.result", type="tool_result", text=messages.storable(result))
        for call, result in (tools or {}).items()
    )
    return [part for part in (*_all(model_call, thinking=thinking, text=text), *results) if part.text]


def _all(call: ports.StreamedCall, *, thinking: str, text: str) -> Iterator[Shown]:
    prefix = f"{call.execution}.{call.number}"
    if call.result:
        event = timeline_events.summary_id(call.execution, call.result)
        yield Shown(event=event, type="mcp_tool_summary", text=messages.storable(text))
        return
    yield Shown(event=f"{prefix}.thinking", type="llm_thinking", text=messages.storable(thinking))
    if not record.is_react(call.strategy):
        kind: timeline_events.Type = "executive_summary" if call.kind == "summary" else "llm_response"
        yield Shown(event=f"{prefix}.text", type=kind, text=messages.storable(text))
    elif len(text) <= react.READ_MAX:  # beyond it is refused
        reading = react.read(without_secrets(messages.storable(text)))
        yield Shown(event=f"{prefix}.thought", type="llm_thinking", text=reading.thought)
        yield Shown(event=f"{prefix}.text", type="llm_response", text=reading.answer)


_LONG = 16 * 1024
"""Characters of an answer in the ReAct dialect that are not read in passing: that takes milliseconds."""
_LABELS = ("thought", "actioninput", "finalanswer", "observation")
_DRESS = re.compile(r"[\s_*`#+~-]+")


def without_secrets(text: str) -> str:
    """An answer without its last line, as long as that may become a label."""
    before, newline, line = text.rpartition("\n")
    word = _DRESS.sub("", line[:100]).lower()
    return before + newline if any(label.startswith(word) for label in _LABELS) else text


class Written:
    """An answer that is being written: the stream of its turn, and how much of it is known to those who watch."""

    def __init__(
        self, call: ports.StreamedCall, *, secrets: known_secrets.KnownSecrets, notify: Callable[[], None]
    ) -> None:
        """`notify` is called whenever there is more."""
        self._secrets = secrets
        self._turn = call
        self.without_secrets = notify
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._tools: dict[str, str] = {}
        self._known: dict[str, Shown] = {}

    def text(self, piece: str) -> None:
        """The answer goes on with `piece`."""
        self._text.append(piece)
        self.without_secrets()

    def thinking(self, piece: str) -> None:
        """The thoughts go on with `piece`."""
        self._thinking.append(piece)
        self.without_secrets()

    def again(self) -> None:
        """Discard the text so far: the model is asked again."""
        self._text, self._thinking = [], []
        self.without_secrets()

    def tool(self, call: str, piece: str) -> None:
        """Add `piece` to the messages of the tool during the call of that id."""
        self._tools[call] = self._tools.get(call, "") + piece
        self.without_secrets()

    @property
    def shown_events(self) -> Collection[Shown]:
        """Its events, as `news` has told of them; one that was and is no more has no text."""
        return self._known.values()

    def reading(self) -> tuple[Callable[[], list[Shown]], bool]:
        """Return a function that computes its present events, in any thread, and whether that takes long."""
        self._text, self._thinking = ["".join(self._text)], ["".join(self._thinking)]
        (text,), (thinking,) = self._text, self._thinking
        is_long = record.is_react(self._turn.strategy) and len(text) > _LONG
        return functools.partial(
            events_of, self._turn, thinking=thinking, text=text, tools=dict(self._tools), secrets=self._secrets
        ), is_long

    def news(self, parts: Sequence[Shown] | None = None, *, anew: bool = False) -> list[tuple[Shown, int]]:
        """Its events that have changed since this was asked the last time, and from which character on; `anew`: all.

        `parts` is what `reading` made out; without it they are made out here.
        """
        parts = self.reading()[0]() if parts is None else parts
        before = self._known
        gone = {event: replace(part, text="") for event, part in before.items()}
        self._known = gone | {part.event: part for part in parts}
        if anew:
            return [(part, 0) for part in self._known.values()]
        return [
            (part, common(before[event].text, part.text) if event in before else 0)
            for event, part in self._known.items()
            if before.get(event) != part
        ]


def common(text: str, other: str) -> int:
    """How many characters two texts have in common from their beginning on."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[low:middle] == other[low:middle] else (low, middle - 1)
    return low

"""The parts of an answer that are shown while it is being written."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import hypothesis
import pytest
from hypothesis import strategies
from support.masking import NO_SECRETS
from tarsy.agent import dialects
from tarsy.masking import known_secrets
from tarsy.transcript import entries, messages, ports, react, streams, timeline, timeline_events

NATIVE = ports.StreamedCall(
    investigation="i", run=0, stage="look", execution="e0", number=3, kind="agent", strategy="native-thinking"
)
REACT = replace(NATIVE, strategy="react")
CALL = entries.ModelCall(provider="first", model="m", seconds=0.0)

# Marks, line ends and what makes them up more often than chance would have it; surrogates, alone and in pairs.
_WORDS = ("Thought:", "Action:", "Action Input:", "Final Answer:", "Observation:", "\n", "```", "k8s.get", '{"a": 1}')
in_any_text = strategies.lists(
    strategies.one_of(
        strategies.sampled_from(_WORDS), strategies.text(strategies.characters(), max_size=5), strategies.just("\ud83d")
    ),
    max_size=30,
).map("".join)


def cut(text: str, at: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(position % (len(text) + 1) for position in at)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def with_news(before: dict[str, str], news: Sequence[tuple[streams.PartialEvent, int]]) -> dict[str, str]:
    """Return the texts that a subscriber has after these news, too."""
    after = dict(before)
    for event, at in news:
        assert at <= len(after.get(event.event, "")), "there is no gap"
        after[event.event] = after.get(event.event, "")[:at] + event.text[at:]
    return after


def there(events: Sequence[streams.PartialEvent]) -> dict[str, str]:
    return {event.event: event.text for event in events}


def nothing() -> None:
    """Do nothing: no subscriber waits for it."""


def logged(call: ports.StreamedCall, message: messages.Message) -> dict[str, tuple[str, str]]:
    """Type and content of the events that the timeline has of a committed answer."""
    entry = entries.Answered(execution=call.execution, turn=call.number, messages=(message,), call=CALL)
    kind = timeline_events.ExecutionTraits(kind=call.kind, strategy=call.strategy)
    row = entries.Logged(
        seq=9, at=datetime.now(UTC), claim=1, run=0, stage=call.stage, execution=call.execution, entry=entry
    )
    return {event.id: (event.type, event.content) for event in timeline.fold([row], executions={call.execution: kind})}


@pytest.mark.parametrize("call", [NATIVE, REACT], ids=["native", "react"])
@hypothesis.given(text=in_any_text, thinking=in_any_text, at=strategies.lists(strategies.integers(0, 200), max_size=8))
@hypothesis.settings(deadline=None)
def test_streamed_changes_add_up_to_the_shown_answer_for_any_split(
    call: ports.StreamedCall, text: str, thinking: str, at: Sequence[int]
) -> None:
    written = streams.AnswerStream(call, secrets=NO_SECRETS, notify=nothing)
    seen: dict[str, str] = {}
    for piece in cut(thinking, at):
        written.thinking(piece)
        seen = with_news(seen, written.changes())
    so_far = ""
    for piece in cut(text, at):
        written.text(piece)
        so_far += piece
        seen = with_news(seen, written.changes())
        expected = there(streams.partial_events(call, thinking=thinking, text=so_far, secrets=NO_SECRETS))
        assert {event: text for event, text in seen.items() if text} == expected
    assert with_news({}, written.changes(anew=True)) == seen, "who comes late sees the same"
    assert written.changes() == []


@hypothesis.given(text=in_any_text, thinking=in_any_text)
@hypothesis.settings(deadline=None)
def test_finished_native_answer_is_shown_as_in_the_log(text: str, thinking: str) -> None:
    texts = {
        new.event: new.text for new in streams.partial_events(NATIVE, thinking=thinking, text=text, secrets=NO_SECRETS)
    }
    message = messages.Message(role="assistant", text=messages.storable(text), thinking=messages.storable(thinking))
    assert texts == {event: content for event, (_, content) in logged(NATIVE, message).items()}


@hypothesis.given(
    text=in_any_text, end=strategies.sampled_from(["Final Answer: It is.", "Action: k8s.get\nAction Input: {}\n."])
)
@hypothesis.settings(deadline=None)
def test_finished_readable_react_answer_is_shown_as_in_the_log(text: str, end: str) -> None:
    text = messages.storable(f"Thought: I know.{text}\n{end}")
    answer = dialects.REACT.read(messages.Message(role="assistant", text=text), final=False)
    hypothesis.assume(isinstance(answer, messages.Message) and not dialects.REACT.problem(answer))
    assert isinstance(answer, messages.Message)
    texts = there(streams.partial_events(REACT, thinking="", text=text, secrets=NO_SECRETS))
    calls = tuple(replace(call, id=f"3.{index}") for index, call in enumerate(answer.calls))
    in_log = logged(REACT, replace(answer, calls=calls))
    assert texts == {event: content for event, (_, content) in in_log.items() if event in ("e0.3.thought", "e0.3.text")}


@hypothesis.given(first=in_any_text, second=in_any_text)
@hypothesis.settings(deadline=None)
def test_answer_that_is_asked_for_again_replaces_what_came(first: str, second: str) -> None:
    written = streams.AnswerStream(NATIVE, secrets=NO_SECRETS, notify=nothing)
    written.thinking("hm")
    written.text(first)
    seen = with_news({}, written.changes())
    written.again()
    written.text(second)
    seen = with_news(seen, written.changes())
    assert {event: text for event, text in seen.items() if text} == there(
        streams.partial_events(NATIVE, thinking="", text=second, secrets=NO_SECRETS)
    )


STEPS = [
    ("Thou", {}),
    ("Thought", {}),
    ("Thought: I look", {"thought": "I look"}),
    ("Thought: I look\nAct", {"thought": "I look"}),
    ("Thought: I look\nAction", {"thought": "I look"}),
    ("Thought: I look\nAction: k8s.get\nAction In", {"thought": "I look"}),
    ('Thought: I look\nAction: k8s.get\nAction Input: {"a": 1}', {"thought": "I look"}),
    ("Thought: I know\n**Final An", {"thought": "I know"}),
    ("Thought: I know\nFinal Answer: It is", {"thought": "I know", "text": "It is"}),
    ("Thought: I know\nFinal Answer: It is\nActive", {"thought": "I know", "text": "It is\nActive"}),
]


@pytest.mark.parametrize(("text", "expected"), STEPS, ids=[text[-12:] for text, _ in STEPS])
def test_react_labels_are_not_shown_even_partially(text: str, expected: dict[str, str]) -> None:
    events = streams.partial_events(REACT, thinking="", text=text, secrets=NO_SECRETS)
    assert {event.event: event.text for event in events} == {f"e0.3.{kind}": text for kind, text in expected.items()}


def test_streamed_text_of_summary_is_shown_as_executive_summary() -> None:
    (event,) = streams.partial_events(
        replace(NATIVE, kind="summary"), thinking="", text="It is memory.", secrets=NO_SECRETS
    )
    assert event == streams.PartialEvent(event="e0.3.text", type="executive_summary", text="It is memory.")


def test_react_answer_too_long_to_read_is_not_shown() -> None:
    text = "Final Answer: ".ljust(react.READ_MAX, "x")
    assert streams.partial_events(REACT, thinking="", text=text, secrets=NO_SECRETS)
    assert not streams.partial_events(REACT, thinking="", text=text + "x", secrets=NO_SECRETS)


SECRET = "sk-live-9Qw7Er5Ty3Ui1"


@pytest.mark.parametrize("call", [NATIVE, REACT], ids=["native", "react"])
@hypothesis.given(
    before=in_any_text,
    behind=in_any_text,
    at=strategies.lists(strategies.integers(0, 200), max_size=8),
    encoded=strategies.booleans(),
)
def test_known_secret_appears_in_no_streamed_piece_for_any_split(
    call: ports.StreamedCall, before: str, behind: str, at: Sequence[int], encoded: bool
) -> None:
    secret = base64.b64encode(SECRET.encode()).decode() if encoded else SECRET
    written = streams.AnswerStream(call, secrets=known_secrets.KnownSecrets([SECRET]), notify=nothing)
    seen: dict[str, str] = {}
    for piece in cut(f"Thought: {before}{secret}{behind}\nFinal Answer: {secret}.", at):
        written.text(piece)
        written.thinking(piece)
        seen = with_news(seen, written.changes())
        assert not any(secret[:8] in text or secret[-8:] in text for text in seen.values())
    assert any("[MASKED:secret]" in text for text in seen.values())

"""What is shown of an answer while it is being written."""

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
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def told(shown: dict[str, str], news: Sequence[tuple[streams.PartialEvent, int]]) -> dict[str, str]:
    """What somebody has before him who was told of these too."""
    after = dict(shown)
    for one, at in news:
        assert at <= len(after.get(one.event, "")), "there is no gap"
        after[one.event] = after.get(one.event, "")[:at] + one.text[at:]
    return after


def there(shown: Sequence[streams.PartialEvent]) -> dict[str, str]:
    return {one.event: one.text for one in shown}


def nothing() -> None:
    """Nobody waits for it."""


def logged(turn: ports.StreamedCall, message: messages.Message) -> dict[str, tuple[str, str]]:
    """Type and content of the events that the timeline has of a committed answer."""
    entry = entries.Answered(execution=turn.execution, turn=turn.number, messages=(message,), call=CALL)
    kind = timeline_events.ExecutionTraits(kind=turn.kind, strategy=turn.strategy)
    one = entries.Logged(
        seq=9, at=datetime.now(UTC), claim=1, run=0, stage=turn.stage, execution=turn.execution, entry=entry
    )
    return {event.id: (event.type, event.content) for event in timeline.fold([one], executions={turn.execution: kind})}


@pytest.mark.parametrize("turn", [NATIVE, REACT], ids=["native", "react"])
@hypothesis.given(text=in_any_text, thinking=in_any_text, at=strategies.lists(strategies.integers(0, 200), max_size=8))
@hypothesis.settings(deadline=None)
def test_however_an_answer_is_cut_what_is_told_makes_up_what_is_shown(
    turn: ports.StreamedCall, text: str, thinking: str, at: Sequence[int]
) -> None:
    written = streams.AnswerStream(turn, secrets=NO_SECRETS, notify=nothing)
    seen: dict[str, str] = {}
    for piece in cut(thinking, at):
        written.thinking(piece)
        seen = told(seen, written.changes())
    so_far = ""
    for piece in cut(text, at):
        written.text(piece)
        so_far += piece
        seen = told(seen, written.changes())
        shown = there(streams.partial_events(turn, thinking=thinking, text=so_far, secrets=NO_SECRETS))
        assert {event: text for event, text in seen.items() if text} == shown
    assert told({}, written.changes(anew=True)) == seen, "who comes late sees the same"
    assert written.changes() == []


@hypothesis.given(text=in_any_text, thinking=in_any_text)
@hypothesis.settings(deadline=None)
def test_at_its_end_a_native_answer_is_shown_as_the_log_has_it(text: str, thinking: str) -> None:
    shown = {
        one.event: one.text for one in streams.partial_events(NATIVE, thinking=thinking, text=text, secrets=NO_SECRETS)
    }
    message = messages.Message(role="assistant", text=messages.storable(text), thinking=messages.storable(thinking))
    assert shown == {event: content for event, (_, content) in logged(NATIVE, message).items()}


@hypothesis.given(
    text=in_any_text, end=strategies.sampled_from(["Final Answer: It is.", "Action: k8s.get\nAction Input: {}\n."])
)
@hypothesis.settings(deadline=None)
def test_at_its_end_a_react_answer_that_can_be_read_is_shown_as_the_log_has_it(text: str, end: str) -> None:
    text = messages.storable(f"Thought: I know.{text}\n{end}")
    kept = dialects.REACT.read(messages.Message(role="assistant", text=text), final=False)
    hypothesis.assume(isinstance(kept, messages.Message) and not dialects.REACT.problem(kept))
    assert isinstance(kept, messages.Message)
    shown = there(streams.partial_events(REACT, thinking="", text=text, secrets=NO_SECRETS))
    calls = tuple(replace(call, id=f"3.{place}") for place, call in enumerate(kept.calls))
    in_log = logged(REACT, replace(kept, calls=calls))
    assert shown == {event: content for event, (_, content) in in_log.items() if event in ("e0.3.thought", "e0.3.text")}


@hypothesis.given(first=in_any_text, second=in_any_text)
@hypothesis.settings(deadline=None)
def test_what_is_asked_for_again_replaces_what_came(first: str, second: str) -> None:
    written = streams.AnswerStream(NATIVE, secrets=NO_SECRETS, notify=nothing)
    written.thinking("hm")
    written.text(first)
    seen = told({}, written.changes())
    written.again()
    written.text(second)
    seen = told(seen, written.changes())
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
def test_labels_of_the_react_dialect_are_not_shown_not_even_half_of_one(text: str, expected: dict[str, str]) -> None:
    shown = streams.partial_events(REACT, thinking="", text=text, secrets=NO_SECRETS)
    assert {one.event: one.text for one in shown} == {f"e0.3.{place}": text for place, text in expected.items()}


def test_the_text_of_a_summary_is_shown_as_one() -> None:
    (one,) = streams.partial_events(
        replace(NATIVE, kind="summary"), thinking="", text="It is memory.", secrets=NO_SECRETS
    )
    assert one == streams.PartialEvent(event="e0.3.text", type="executive_summary", text="It is memory.")


def test_a_react_answer_that_is_too_long_to_be_read_is_not_shown() -> None:
    text = "Final Answer: ".ljust(react.READ_MAX, "x")
    assert streams.partial_events(REACT, thinking="", text=text, secrets=NO_SECRETS)
    assert not streams.partial_events(REACT, thinking="", text=text + "x", secrets=NO_SECRETS)


@hypothesis.given(one=strategies.text("ab", max_size=40), other=strategies.text("ab", max_size=40))
def test_what_two_texts_have_in_common_is_the_longest_beginning(one: str, other: str) -> None:
    count = streams.common_length(one, other)
    assert one[:count] == other[:count]
    assert one[count : count + 1] != other[count : count + 1] or one == other


SECRET = "sk-live-9Qw7Er5Ty3Ui1"


@pytest.mark.parametrize("turn", [NATIVE, REACT], ids=["native", "react"])
@hypothesis.given(
    before=in_any_text,
    behind=in_any_text,
    at=strategies.lists(strategies.integers(0, 200), max_size=8),
    encoded=strategies.booleans(),
)
def test_a_known_secret_is_in_no_piece_however_it_is_cut(
    turn: ports.StreamedCall, before: str, behind: str, at: Sequence[int], encoded: bool
) -> None:
    secret = base64.b64encode(SECRET.encode()).decode() if encoded else SECRET
    written = streams.AnswerStream(turn, secrets=known_secrets.KnownSecrets([SECRET]), notify=nothing)
    seen: dict[str, str] = {}
    for piece in cut(f"Thought: {before}{secret}{behind}\nFinal Answer: {secret}.", at):
        written.text(piece)
        written.thinking(piece)
        seen = told(seen, written.changes())
        assert not any(secret[:8] in text or secret[-8:] in text for text in seen.values())
    assert any("[MASKED:secret]" in text for text in seen.values())

"""Answers in the ReAct dialect, as models really write them, and as no model should."""

from __future__ import annotations

import json
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies
from support import steps
from tarsy.transcript import react

from bench import hostile_texts

LOOK = "Thought: I look.\n"
POD = '{"name": "web-0"}'
CALL = f"Action: k8s.get\nAction Input: {POD}"
MANIFEST = "```yaml\nAction: Allow\nAction Input: all\nObservation: none\n```"


def acts(thought: str = "", action: str = "k8s.get", text: str = "", *, rest: str = "") -> tuple[dict[str, str], str]:
    """A reading with an action; `rest` is what does not count."""
    return {"thought": thought, "action": action, "input": text}, rest


def says(answer: str, thought: str = "", *, rest: str = "") -> tuple[dict[str, str], str]:
    return {"thought": thought, "answer": answer}, rest


def wrong(problem: str, thought: str = "", *, rest: str = "") -> tuple[dict[str, str], str]:
    return {"thought": thought, "problem": problem}, rest


CASES: dict[str, tuple[str, tuple[dict[str, str], str]]] = {
    # as asked for
    "a thought and an action": (LOOK + CALL, acts("I look.", text=POD)),
    "a thought and an answer": (LOOK + "Final Answer: It is memory.", says("It is memory.", "I look.")),
    "an answer of many lines": ("Final Answer:\n# Cause\n\nMemory.\n", says("# Cause\n\nMemory.")),
    "text before the first label": ("Let me see.\n" + LOOK + CALL, acts("Let me see.\nI look.", text=POD)),
    "several thoughts": (LOOK + "Thought: And again.\n" + CALL, acts("I look.\nAnd again.", text=POD)),
    "no thought": (CALL, acts(text=POD)),
    "Windows line ends": (
        "Thought: a\r\nb\r\nAction: k8s.get\r\nAction Input: a: 1\r\nb: 2\r\nObservation: x",
        acts("a\nb", text="a: 1\nb: 2", rest="Observation: x"),
    ),
    # labels in other dress
    "bold labels": (f"**Thought:** I look.\n**Action**: k8s.get\n**Action Input:** {POD}", acts("I look.", text=POD)),
    "headings": ("### Thought:\nI look.\n### Final Answer:\nMemory.", says("Memory.", "I look.")),
    "a list": (f"- Thought: I look.\n- Action: k8s.get\n- Action Input: {POD}", acts("I look.", text=POD)),
    "capital labels": (f"THOUGHT: I look.\nACTION: k8s.get\nACTION INPUT: {POD}", acts("I look.", text=POD)),
    "small labels": (f"thought: I look.\naction: k8s.get\naction input: {POD}", acts("I look.", text=POD)),
    "an answer that begins in bold": ("Final Answer: **Memory**, it is.", says("**Memory**, it is.")),
    "a label in the middle of a line": ("the Action: was taken", wrong(react.NEITHER, "the Action: was taken")),
    "a label without a colon": ("Final Answer\nMemory.", wrong(react.NEITHER, "Final Answer\nMemory.")),
    # what the model makes up or says too much
    "a made-up observation": (
        CALL + "\nObservation: all is well\nFinal Answer: nothing",
        acts(text=POD, rest="\nObservation: all is well\nFinal Answer: nothing"),
    ),
    "nothing but an observation": ("Observation: b\n" + CALL, wrong(react.MADE_UP, rest="Observation: b\n" + CALL)),
    "several actions": (
        CALL + "\nAction: k8s.list\nAction Input: {}",
        acts(text=POD, rest="\nAction: k8s.list\nAction Input: {}"),
    ),
    "an action, then an answer": ("Action: k8s.get\nFinal Answer: Memory.", acts(rest="Final Answer: Memory.")),
    "an answer, then an action": ("Final Answer: Memory.\n" + CALL, says("Memory.", rest=CALL)),
    "an answer that recommends an action": (
        "Final Answer: Memory.\nAction: restart the pod\nThen wait.",
        says("Memory.\nAction: restart the pod\nThen wait."),
    ),
    "an answer, then an observation": ("Final Answer: Memory.\nObservation: x", says("Memory.", rest="Observation: x")),
    "text behind JSON": (CALL + "\nI wait for it.", acts(text=POD, rest="\nI wait for it.")),
    # the input
    "an action without an input": ("Action: k8s.list", acts(action="k8s.list")),
    "an empty input": ("Action: k8s.list\nAction Input:\n", acts(action="k8s.list")),
    "JSON on the next line": (f"Action: k8s.get\nAction Input:\n{POD}", acts(text=POD)),
    "JSON of many lines": (
        'Action: k8s.get\nAction Input: {\n  "a": "x\nThought: y"\n}\nThought: z',
        acts(text='{\n  "a": "x\nThought: y"\n}', rest="\nThought: z"),
    ),
    "JSON in a fence": (f"Action: k8s.get\nAction Input:\n```json\n{POD}\n```\n", acts(text=POD)),
    "JSON in code": (f"Action: k8s.get\nAction Input: `{POD}`", acts(text=POD, rest="")),
    "YAML": (
        "Action: k8s.get\nAction Input:\n  name: web-0\n  spec:\n    a: b\n",
        acts(text="name: web-0\nspec:\n  a: b"),
    ),
    "YAML in a fence": (
        f"Action: k8s.apply\nAction Input:\n{MANIFEST}\nMore.",
        acts(action="k8s.apply", text="Action: Allow\nAction Input: all\nObservation: none", rest="\nMore."),
    ),
    "YAML with keys like labels": (
        "Action: k8s.act\nAction Input:\naction: restart\nthought: b\nObservation: x",
        acts(action="k8s.act", text="action: restart\nthought: b", rest="Observation: x"),
    ),
    "broken JSON": (
        "Action: k8s.get\nAction Input: {'name': 'web-0',}\nObservation: x",
        acts(text="{'name': 'web-0',}", rest="Observation: x"),
    ),
    "a fence below the action": (f"Action: k8s.get\n```json\n{POD}\n```", acts(text=POD)),
    "prose below the action": ("Action: k8s.get\nI look at it.", acts()),
    "a call": (f"Action: k8s.get({POD})", acts(text=POD)),
    "a call without anything": ("Action: k8s.list()", acts(action="k8s.list")),
    "JSON on the action's line": (f"Action: k8s.get {POD}", acts(text=POD)),
    "pairs on the action's line": ("Action: k8s.get name=web-0 tail=5", acts(text="name=web-0 tail=5")),
    # the tool's name
    "a tool in code": ("Action: `k8s.get`", acts()),
    "a tool in bold": ("Action: **k8s.get**", acts()),
    "a tool in quotes": ('Action: "k8s.get".', acts()),
    "a tool on the next line": (f"Action:\nk8s.get\nAction Input: {POD}", acts(text=POD)),
    "a tool in a fence": (f"Action:\n```\nk8s.get\n```\nAction Input: {POD}", acts(text=POD)),
    "a tool and why": ("Action: k8s.get (to see the pod)", acts()),
    "no tool's name": ("Action: look at the pod", acts(action="look at the pod")),
    # no action
    "an action that is none": ("Action: None", wrong(react.NO_TOOL)),
    "an empty action": (f"Action:\nAction Input: {POD}", wrong(react.NO_TOOL)),
    "JSON for an action": ('Action: {"action": "k8s.get"}', wrong(react.NO_TOOL)),
    "none, then an action": ("Action: None\n" + CALL, acts(text=POD)),
    "an input without an action": (f"{LOOK}Action Input: {POD}", wrong(react.NO_ACTION, "I look.")),
    "an empty answer": ("Final Answer:  \n", wrong(react.NO_TEXT)),
    "an empty answer, then an action": ("Final Answer:\n" + CALL, acts(text=POD)),
    "only a thought": (LOOK, wrong(react.NEITHER, "I look.")),
    "nothing": ("", wrong(react.EMPTY)),
    # fences
    "an action in a fence": (f"```\n{LOOK}{CALL}\n```", acts("I look.", text=POD)),
    "only the action in a fence": (f"{LOOK}```\n{CALL}\n```\nMore.", acts("I look.", text=POD, rest="\nMore.")),
    "a fence that was cut": (f"```text\n{LOOK}{CALL}\n", acts("I look.", text=POD)),
    "an answer in a fence": (f"```\n{LOOK}Final Answer: Memory.\n```", says("Memory.", "I look.")),
    "an answer in a fence, and more": ("```\nFinal Answer: Memory.\n```\nDone.", says("Memory.", rest="\nDone.")),
    "an answer that quotes labels": (
        f"Final Answer: See\n{MANIFEST}\nDone.\nObservation: x",
        says(f"See\n{MANIFEST}\nDone.", rest="Observation: x"),
    ),
    "a thought that quotes code": ("Thought: a\n```\nb\n```\n" + CALL, acts("a\n```\nb\n```", text=POD)),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_answer_is_read_as_what_it_asks_for(text: str, expected: tuple[dict[str, str], str]) -> None:
    reading, rest = expected
    read = react.read(text)
    assert (read, text[read.used :]) == (react.Reading(**reading, used=len(text) - len(rest)), rest)


@pytest.mark.parametrize("text", [text for text, _ in CASES.values()], ids=CASES)
def test_answer_with_windows_line_ends_is_read_the_same(text: str) -> None:
    def parts_of(reading: react.Reading) -> tuple[str, ...]:
        return tuple(
            getattr(reading, name).replace("\r", "") for name in ("thought", "action", "input", "answer", "problem")
        )

    assert parts_of(react.read(text.replace("\r\n", "\n").replace("\n", "\r\n"))) == parts_of(react.read(text))


ARGUMENTS: dict[str, tuple[str, object]] = {
    "nothing": ("", {}),
    "JSON": ('{"a": [1, null, {"b": "c"}]}', {"a": [1, None, {"b": "c"}]}),
    "JSON with a line break in a string": ('{"a": "b\nc"}', {"a": "b\nc"}),
    "JSON with a comma too much": ('{"a": 1,}', {"a": 1}),
    "Python": ("{'a': True, 'b': None}", {"a": True, "b": None}),
    "JSON that is cut": ('{"a": "b', {"input": '{"a": "b'}),
    "no numbers": ('{"a": NaN, "b": -Infinity, "c": 1e999}', {"a": "NaN", "b": "-Infinity", "c": "1e999"}),
    "a number without an end": ('{"a": ' + "9" * 5000 + "}", {"a": "9" * 5000}),
    "YAML": ("a: b\nc:\n- d\n- e: 1.5\n", {"a": "b", "c": ["d", {"e": 1.5}]}),
    "YAML in one line": ("{a: b, c: [d]}", {"a": "b", "c": ["d"]}),
    "a manifest": ("manifest: |\n  kind: Pod\n  a: b", {"manifest": "kind: Pod\na: b"}),
    "versions in YAML": ("a: 1.10\nb: 1.1\nc: 1.0e3", {"a": "1.10", "b": 1.1, "c": "1.0e3"}),
    "dates and times": (
        "a: 2026-10-01\nb: 12:30:45\nc: 2026-10-01T12:00:00Z",
        {"a": "2026-10-01", "b": "12:30:45", "c": "2026-10-01T12:00:00Z"},
    ),
    "numbers that are none": (
        "a: 0755\nb: 1_000\nc: .inf\nd: .nan",
        {"a": "0755", "b": "1_000", "c": ".inf", "d": ".nan"},
    ),
    "references": ("a: &b [c]\nd: [*b, *b]", {"a": "&b [c]", "d": "[*b, *b]"}),
    "pairs": ("name=web-0, tail=5, previous=true, x=-0.5", {"name": "web-0", "tail": 5, "previous": True, "x": -0.5}),
    "values in quotes": (
        """a="b c, d=e" f='it, g=h' i="say \\"j\\"" """,
        {"a": "b c, d=e", "f": "it, g=h", "i": 'say "j"'},
    ),
    "a selector": ("selector=app=web tail=5", {"selector": "app=web", "tail": 5}),
    "a query": ('query=up{job="a", b="c"} step=5m', {"query": 'up{job="a", b="c"}', "step": "5m"}),
    "words": ("the pod web-0", {"input": "the pod web-0"}),
    "what cannot be stored": ('{"a\ud800": "b\udc00"}', {"a\ufffd": "b\ufffd"}),
}


@pytest.mark.parametrize(("raw", "expected"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_read_as_they_were_meant(raw: str, expected: object) -> None:
    assert json.loads(react.arguments(raw)) == expected


def deep(size: int) -> dict[str, str]:
    return {
        "lists": "{a: " + "[" * size + "]" * size + "}",
        "JSON": '{"a":' * size + "1" + "}" * size,
        "mappings": "".join(" " * depth + "a:\n" for depth in range(min(size, 180))),
        "lists of lists": "a:\n " + "- " * size,
    }


@pytest.mark.parametrize("size", [101, 1_000, 16_000, 100_000])
@pytest.mark.parametrize("kind", deep(1))
def test_input_that_is_nested_too_deep_is_left_as_text(kind: str, size: int) -> None:
    raw = deep(size)[kind]
    assert json.loads(react.arguments(raw)) == {"input": raw.strip()} or kind == "mappings"
    assert react.read(f"Action: k8s.get\nAction Input: {raw}").action == "k8s.get"


def test_references_that_multiply_are_not_followed() -> None:
    raw = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 64))
    assert len(react.arguments(raw)) < 2 * len(raw)


STARTS = [
    f"\n{label}" for label in ("Thought: ", "Action: k8s.get", "Action Input:", "Final Answer: ", "Observation:", "```")
]
TEXTS = (
    strategies.lists(strategies.sampled_from([*hostile_texts.REACT_PARTS, *STARTS, *STARTS]), max_size=40).map("".join)
    | strategies.text()
)


@hypothesis.settings(max_examples=500)
@hypothesis.given(text=TEXTS)
def test_any_react_text_is_readable_and_its_used_part_reads_the_same(text: str) -> None:
    reading = react.read(text)
    assert 0 <= reading.used <= len(text)
    again = react.read(text[: reading.used])
    assert again == (replace(reading, problem=react.EMPTY) if reading.problem == react.MADE_UP else reading)
    assert [bool(reading.action), bool(reading.answer), bool(reading.problem)].count(True) == 1


@hypothesis.settings(max_examples=500)
@hypothesis.given(raw=TEXTS)
def test_any_input_becomes_an_object_of_plain_json(raw: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    written = react.arguments(raw)
    assert isinstance(json.loads(written, parse_constant=refuse), dict)
    written.encode()


VALUES = strategies.none() | strategies.integers() | strategies.text(max_size=20) | strategies.lists(strategies.text())


@hypothesis.given(document=strategies.dictionaries(strategies.text(max_size=20), VALUES, max_size=5))
def test_json_action_input_with_any_content_is_read_up_to_its_end(document: dict[str, object]) -> None:
    raw = json.dumps(document, indent=1)
    assert react.read(f"Action: k8s.get\nAction Input: {raw}\nObservation: x").input == raw
    assert json.loads(react.arguments(raw)) == document


@pytest.mark.parametrize("head", ["", "Action: k8s.get\nAction Input:", "```\nFinal Answer: a"])
def test_lines_of_reading_grow_with_the_length_of_the_text(head: str) -> None:
    for piece in hostile_texts.REACT_PIECES:
        single, double = (head + piece * (size // len(piece)) for size in (4_000, 8_000))
        assert steps.grow_linearly(react.read, single, double), piece


@pytest.mark.parametrize("head", ["", "a: ", "a="])
def test_lines_of_reading_arguments_grow_with_the_length_of_the_text(head: str) -> None:
    for piece in hostile_texts.REACT_PIECES:
        single, double = (head + piece * (size // len(piece)) for size in (4_000, 8_000))
        assert steps.grow_linearly(react.arguments, single, double), piece

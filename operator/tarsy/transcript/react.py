"""Answers in the ReAct dialect, for models that are told of tools in words: `Thought:`, `Action:`, `Action Input:`.

Read leniently, since a model that is refused makes the same mistake again: labels may be dressed up, the input may
stand on the action's line, be fenced, be YAML or pairs. Refused is only what asks for nothing. What the model wrote
behind its first action or answer, such as an observation of its own making, does not count and is not sent back.

All of it is a pure function of the text, so the loop and the timeline read the same; and it takes time in proportion to
the text, whatever that is.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tarsy.transcript import tool_arguments

_EXPECTED = "Write `Action:` and `Action Input:` to call a tool, or `Final Answer:` to conclude."
EMPTY = f"The reply is empty. {_EXPECTED}"
MADE_UP = f"The reply begins with an observation: only tools give those. {_EXPECTED}"
NEITHER = f"The reply has neither an action nor a final answer. {_EXPECTED}"
NO_ACTION = f"The reply has an `Action Input:`, but no `Action:` before it that names a tool. {_EXPECTED}"
NO_TOOL = f"The `Action:` names no tool. {_EXPECTED}"
NO_TEXT = f"There is nothing behind `Final Answer:`. {_EXPECTED}"

READ_MAX = 128 * 1024
"""Characters of an answer: all answers are read again with each request, on the loop."""

LABEL = r"(?:thought|action(?:[ \t_]*+input)?|final[ \t_]*+answer|observation)"
"""The labels of steps, as a regular expression for any case."""

_Kind: TypeAlias = Literal["thought", "action", "input", "answer", "observation"]
_KINDS: dict[str, _Kind] = {"a": "action", "t": "thought", "f": "answer", "o": "observation"}
_MARK = re.compile(
    r"""
    (?:^|(?<=[:\uff1a*]))[ \t]*+(?P<fence>`{3,}+|~{3,}+)(?P<info>[^`\r\n]*+)(?=\r?$)
    | ^[ \t]*+(?P<item>[-*+][ \t]++)?(?:\#{1,6}[ \t]*+)?(?P<dress>[*_`]{1,3})?
    (?P<label>thought|action(?P<input>[ \t_]*+input)?|final[ \t_]*+answer|observation)
    [ \t]*+(?(dress)[*_`]{0,3}+)[ \t]*+[:\uff1a](?(dress)[*_`]{0,3}+)
    """,
    re.ASCII | re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_FENCE_LINE = re.compile(r"^[ \t]*+(?:`{3,}+|~{3,}+)[^`\r\n]*+(?=\r?$)", re.MULTILINE)
_ONLY_FENCES = re.compile(r"[\s`~]*+\Z")
_CLOSING = re.compile(r"\s*+(?:`{3,}+|~{3,}+)[ \t]*+(?=\r?$)", re.MULTILINE)
_TO_INPUT = re.compile(r"\s*+(?:`\s*+(?=\{))?")
"""Blanks, and what puts JSON into code within a line."""

_NAME_LINE = re.compile(r"(?:\s++|(?:`{3,}+|~{3,}+)[^`\r\n]*+(?:\r?\n|\Z))*+(?P<line>[^\r\n]*+)")
_WORD = re.compile(
    r"[\s`*\"'\u201c\u201d\u2018\u2019]*+(?P<word>[^\s`*\"'\u201c\u201d\u2018\u2019(){},=]++)[`*\"'\u201c\u201d\u2018\u2019]*+"
)
_TOOL = re.compile(r"[\w-]++\.[\w.:/-]++")
_NONE = re.compile(
    r"\(?(?:none|null|nothing|n/?a|no (?:action|tool)s?)(?!\.?[\w/-])|[-\u2013\u2014.()\[\]\s]*+\Z", re.IGNORECASE
)
_PAIR_HEAD = re.compile(r"[\w.-]++\s*+=")
_CODE = re.compile("`[^`]+`")
_QUOTES = "`*\"'\u201c\u201d\u2018\u2019 \t"
_JSON = json.JSONDecoder(strict=False)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The request of an answer: an action, or nothing more because it is the conclusion, or the problem with it."""

    thought: str = ""
    """The model's thoughts before an action or the conclusion."""
    action: str = ""
    """The tool that it names, as it wrote it; "" where it calls none."""
    input: str = ""
    """The input of the tool, as the model wrote it; see `arguments`."""
    answer: str = ""
    """Its conclusion."""
    problem: str = ""
    """Why this is neither, in words for the model; "" where it is one of them."""
    used: int
    """How many characters of the text count. Behind them stands what the model made up or said too much."""


@dataclass(frozen=True, slots=True)
class _Label:
    kind: _Kind
    start: int
    """Where its line begins."""
    end: int
    """The offset behind its colon."""
    is_item: bool
    """It stands in a list."""
    is_small: bool
    """It begins with a small letter."""


@dataclass(frozen=True, slots=True)
class _Fence:
    start: int
    end: int
    word: str
    """Its backticks or tildes."""
    is_bare: bool
    """Nothing follows these: it may close a block."""
    closing: int | None
    """The place of the mark that closes a block which this one opens, if there is one."""


_Mark: TypeAlias = _Label | _Fence


def read(text: str) -> Reading:
    """Read one answer; this never fails."""
    return _Reply(text).read()


class _Reply:
    """One answer, and the marks in it: its labels and the fences of its code blocks.

    Fences hide labels in an answer and in an input alone, where they quote something. Elsewhere models put all of their
    reply into one, or what they do.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._marks = _marks(text)

    def read(self) -> Reading:
        """Go on to the first action or answer."""
        text, marks = self._text, self._marks
        thoughts = [self._thought(0, self._next_label(-1))]
        problem = ""
        opened: _Fence | None = None
        least = 0
        for index, mark in enumerate(marks):
            match mark:
                case _Fence():
                    opened = _opened(opened, mark)
                case _Label(kind="thought"):
                    thoughts.append(self._thought(mark.end, self._next_label(index)))
                case _Label(kind="observation"):
                    return self._neither(thoughts, problem, used=max(mark.start, least))
                case _Label(kind="input"):
                    problem = problem or NO_ACTION
                case _Label(kind="action"):
                    name, behind = _name(text, mark.end, self._next_label(index))
                    if name:
                        action_input, used = self._given(index, behind, is_wrapped=opened is not None)
                        used = self._whole(max(used, least))
                        return Reading(thought=_joined(thoughts), action=name, input=action_input, used=used)
                    problem = NO_TOOL
                case _Label(kind="answer"):
                    answer, used = self._answer(index, is_wrapped=opened is not None)
                    if answer:
                        return Reading(thought=_joined(thoughts), answer=answer, used=self._whole(used))
                    problem, least = NO_TEXT, used
        return self._neither(thoughts, problem, used=len(text))

    def _neither(self, thoughts: list[str], problem: str, *, used: int) -> Reading:
        if not problem and not self._text[:used].strip():
            problem = MADE_UP if self._text.strip() else EMPTY
        problem = problem or NEITHER
        return Reading(thought=_joined(thoughts), problem=problem, used=used)

    def _whole(self, used: int) -> int:
        """All of the text, where nothing is left behind `used` that says anything."""
        return len(self._text) if _ONLY_FENCES.match(self._text, used) else used

    def _next_label(self, index: int, *, unless_small: bool = False) -> int:
        """Where the label begins that follows the mark at `index`; the text's end if there is none."""
        for mark in self._behind(index):
            if isinstance(mark, _Label) and not (unless_small and mark.is_small):
                return mark.start
        return len(self._text)

    def _behind(self, index: int) -> Iterator[_Mark]:
        return (self._marks[at] for at in range(index + 1, len(self._marks)))

    def _thought(self, start: int, end: int) -> str:
        """Return the text of a thought, without the fence that only wraps the text before or after it."""
        thought = self._text[start:end].strip()
        fences = list(_FENCE_LINE.finditer(thought))
        if len(fences) % 2:
            first, last = fences[0], fences[-1]
            thought = thought[: last.start()] if last.end() == len(thought) else thought
            thought = thought[first.end() :] if first.start() == 0 else thought
        return _unix(thought)

    def _answer(self, index: int, *, is_wrapped: bool) -> tuple[str, int]:
        """The answer behind the label at `index`, and where it ends.

        It ends at an observation, and at an action that has an input: an answer may well recommend an action. In a list
        an observation is one of the answer's own.
        """
        begin = self._marks[index].end
        text = self._text
        end = used = len(text)
        thought: _Label | None = None
        called: int | None = None
        closing: list[_Fence] = []
        for mark in self._unquoted(index, is_wrapped=is_wrapped):
            match mark:
                case _Fence():
                    closing.append(mark)
                    continue
                case _Label(kind="observation", is_item=False):
                    end = used = mark.start
                    break
                case _Label(kind="input") if called is not None:
                    end = called
                    used = end if _says(text[begin:end]) else mark.end  # that it says nothing is known from here on
                    break
            called = (thought or mark).start if mark.kind == "action" else None
            thought = mark if mark.kind == "thought" else None
        closing = [fence for fence in closing if fence.start < end]
        if is_wrapped and len(closing) % 2 and _says(text[begin : closing[-1].start]):
            end, used = closing[-1].start, closing[-1].end
        return _unix(text[begin:end]) if _says(text[begin:end]) else "", used

    def _unquoted(self, index: int, *, is_wrapped: bool) -> Iterator[_Mark]:
        """The marks behind `index` but for blocks of code: labels, and the bare fences that may end a wrapped reply.

        In a reply that is wrapped itself it cannot be told which bare fence opens and which one closes, so only a fence
        that says what it opens does.
        """
        at = index + 1
        while at < len(self._marks):
            mark = self._marks[at]
            at += 1
            if isinstance(mark, _Label) or (is_wrapped and mark.is_bare):
                yield mark
            elif mark.closing is not None:
                at = mark.closing + 1

    def _given(self, index: int, behind: int, *, is_wrapped: bool) -> tuple[str, int]:
        """The input of the action at `index`, whose name ends at `behind`, and where it ends."""
        following = next((at for at in range(index + 1, len(self._marks)) if self._is_label(at)), None)
        if following is None or not self._is_label(following, kind="input"):
            return self._beside(index, behind, is_wrapped=is_wrapped)
        action_input, used = self._input(following, self._marks[following].end, is_wrapped=is_wrapped)
        if action_input:
            return action_input, used
        action_input, until = self._beside(index, behind, is_wrapped=is_wrapped)
        return action_input, max(used, until)  # a block may hold the label, and end behind it

    def _is_label(self, index: int, *, kind: _Kind | None = None) -> bool:
        mark = self._marks[index]
        return isinstance(mark, _Label) and kind in (None, mark.kind)

    def _beside(self, index: int, behind: int, *, is_wrapped: bool) -> tuple[str, int]:
        """The input that stands without a label behind the action's name: a call's, on its line, or below it."""
        text, limit = self._text, self._next_label(index)
        line_end = min(_line_end(text, behind), limit)
        rest = text[behind:line_end].strip()
        if rest.startswith("(") and not text[behind].isspace():
            return self._called(behind + 1, line_end, limit)
        if (brace := text.find("{", behind, line_end)) >= 0:
            if end := _json_end(text, brace):
                return text[brace:end], _line_end(text, end)
            return self._input(index, brace, is_wrapped=is_wrapped)
        if _PAIR_HEAD.match(rest):
            return _given(rest), limit
        below = _TO_INPUT.match(text, line_end, limit)
        if below and (text.startswith("{", below.end()) or self._fence(index, line_end)):
            return self._input(index, line_end, is_wrapped=is_wrapped)
        return "", limit

    def _called(self, begin: int, line_end: int, limit: int) -> tuple[str, int]:
        """The input between parentheses: JSON that ends, or all up to the one that closes."""
        text = self._text
        if (blank := _TO_INPUT.match(text, begin)) and (end := _json_end(text, blank.end())):
            return text[blank.end() : end], _line_end(text, end)
        closing = text.rfind(")", begin, line_end)
        closing = text.rfind(")", begin, limit) if closing < 0 else closing
        return _given(text[begin : limit if closing < 0 else closing]), limit

    def _input(self, index: int, begin: int, *, is_wrapped: bool) -> tuple[str, int]:
        """The input that stands at `begin`, behind the label at `index`, and where it ends.

        It may be YAML whose keys are named as labels are: in small letters, where the labels are not, they are keys.
        """
        text = self._text
        fence = self._fence(index, begin)
        begin = fence.end if fence else begin
        if (blank := _TO_INPUT.match(text, begin)) and (end := _json_end(text, blank.end())):
            closing = _CLOSING.match(text, end) if fence or is_wrapped else None
            return text[blank.end() : end], closing.end() if closing else end
        if fence and fence.closing is not None:
            block = self._marks[fence.closing]
            return _given(text[begin : block.start]), block.end
        limit = self._next_label(index, unless_small=not self._is_small(index))
        for mark in self._behind(index) if is_wrapped and not fence else ():
            if isinstance(mark, _Fence) and mark.is_bare and begin <= mark.start < limit:
                return _given(text[begin : mark.start]), mark.end
        return _given(text[begin:limit]), limit

    def _is_small(self, index: int) -> bool:
        mark = self._marks[index]
        return isinstance(mark, _Label) and mark.is_small

    def _fence(self, index: int, begin: int) -> _Fence | None:
        """The fence behind the mark at `index` that is the first thing at `begin`."""
        for mark in self._behind(index):
            if mark.start >= begin:
                return mark if isinstance(mark, _Fence) and not self._text[begin : mark.start].strip() else None
        return None


def _marks(text: str) -> list[_Mark]:
    """The marks of `text`, in order; read from the end, so that it is known where a block closes."""
    matches = list(_MARK.finditer(text))
    marks: list[_Mark] = []
    closing: dict[str, int] = {}
    for index in range(len(matches) - 1, -1, -1):
        match = matches[index]
        start, end = match.span()
        if word := match["fence"]:
            is_bare = not match["info"].strip() and text[start - 1 : start] in ("", "\n")
            marks.append(_Fence(start, end, word, is_bare, closing.get(word)))
            if is_bare:
                closing[word] = index
        else:
            label = match["label"]
            kind = "input" if match["input"] else _KINDS[label[0].lower()]
            marks.append(_Label(kind, start, end, is_item=bool(match["item"]), is_small=label[0].islower()))
    marks.reverse()
    return marks


def _opened(before: _Fence | None, fence: _Fence) -> _Fence | None:
    """The fence that stands open behind `fence`, where `before` stood open."""
    if before is None:
        return fence
    return None if fence.is_bare and fence.word == before.word else before


def _name(text: str, start: int, limit: int) -> tuple[str, int]:
    """The tool that is named there, and where its name ends; "" where none is.

    Of a line that goes on in words the first one counts if it looks like a tool; else the line is told as it stands, so
    that the model sees what there is no tool of.
    """
    line = _NAME_LINE.match(text, start, limit)
    if line is None:
        return "", start
    begin, end = line.span("line")
    named = line["line"].strip(_QUOTES)
    word = _WORD.match(text, begin, end)
    if word is None or _NONE.match(named):
        return "", end
    name, rest = word["word"].rstrip(".,;:"), text[word.end() : end]
    goes_on = rest.strip() and not rest.startswith("(") and "{" not in rest and not _PAIR_HEAD.match(rest.strip())
    return (named, end) if goes_on and not _TOOL.fullmatch(name) else (name, word.end())


def _json_end(text: str, start: int) -> int:
    """Where the JSON object ends that begins at `start`; 0 if there is none."""
    if not text.startswith("{", start):
        return 0
    try:
        return _JSON.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return 0


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _says(text: str) -> bool:
    """Whether there is anything but fences."""
    return not _ONLY_FENCES.match(text)


def _joined(thoughts: list[str]) -> str:
    return "\n".join(filter(None, thoughts))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _given(text: str) -> str:
    """An input as it stands, further left, and out of the code within a line that it may be."""
    dedented = textwrap.dedent(text.replace("\r\n", "\n")).strip()
    return dedented[1:-1].strip() if _CODE.fullmatch(dedented) else dedented


def arguments(raw: str) -> str:
    """An action's input as the JSON text of an object; this never fails. See `tool_arguments`."""
    return tool_arguments.to_json(raw)

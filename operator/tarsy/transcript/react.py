"""Parser of answers in the ReAct dialect: `Thought:`, `Action:`, `Action Input:`, `Final Answer:`.

The prompt describes the tools of such a model in words. The parser is lenient, because a model whose answer is refused
makes the same mistake again: labels may be in bold or in headings; the input may be on the action's line, in a code
block, in YAML, or written as pairs. An answer is refused only if it asks for nothing. Text after the first action or
final answer, such as an invented observation, is ignored and not sent back.

Parsing is a pure function of the text, so the loop and the timeline get the same result. It takes linear time.
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
"""The maximum length of an answer, in characters: all answers are parsed again for each request, on the event loop."""

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
_BEFORE_INPUT = re.compile(r"\s*+(?:`\s*+(?=\{))?")
"""White space, and the backtick of JSON in inline code."""

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
    """The result of parsing an answer: an action, a conclusion, or a problem."""

    thought: str = ""
    """The model's thoughts before the action or the conclusion."""
    action: str = ""
    """The name of the tool, as the model wrote it; "" if it calls none."""
    input: str = ""
    """The input of the tool, as the model wrote it; `arguments` converts it."""
    answer: str = ""
    """The conclusion."""
    problem: str = ""
    """Why the answer is neither an action nor a conclusion, in words for the model; else ""."""
    used: int
    """The length of the text that counts, in characters. The rest is ignored."""


@dataclass(frozen=True, slots=True)
class _Label:
    kind: _Kind
    start: int
    """The offset of its line."""
    end: int
    """The offset after its colon."""
    is_list_item: bool
    is_lower_case: bool
    """Whether its first letter is lower case."""


@dataclass(frozen=True, slots=True)
class _Fence:
    start: int
    end: int
    word: str
    """Its backticks or tildes."""
    is_bare: bool
    """Whether the line has nothing else: only such a fence can close a block."""
    closing: int | None
    """The index of the mark that closes the block, if this fence opens one; None if none does."""


_Mark: TypeAlias = _Label | _Fence


def read(text: str) -> Reading:
    """Parse an answer. This never fails."""
    return _Reply(text).read()


class _Reply:
    """An answer, and the marks in it: its labels and the fences of its code blocks.

    Labels inside a code block are ignored only in a conclusion and in an input, where a block quotes something.
    Elsewhere models wrap their whole reply, or an action, in a block.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._marks = _marks(text)

    def read(self) -> Reading:
        """Parse up to the first action or conclusion."""
        text, marks = self._text, self._marks
        thoughts = [self._thought(0, self._next_label(-1))]
        problem = ""
        open_fence: _Fence | None = None
        used_at_least = 0
        for index, mark in enumerate(marks):
            match mark:
                case _Fence():
                    if open_fence is None:
                        open_fence = mark
                    elif mark.is_bare and mark.word == open_fence.word:
                        open_fence = None
                case _Label(kind="thought"):
                    thoughts.append(self._thought(mark.end, self._next_label(index)))
                case _Label(kind="observation"):
                    return self._refused(thoughts, problem, used=max(mark.start, used_at_least))
                case _Label(kind="input"):
                    problem = problem or NO_ACTION
                case _Label(kind="action"):
                    name, name_end = _tool_name(text, mark.end, self._next_label(index))
                    if name:
                        action_input, used = self._action_input(index, name_end, is_wrapped=open_fence is not None)
                        used = self._used_or_all(max(used, used_at_least))
                        return Reading(thought=_joined(thoughts), action=name, input=action_input, used=used)
                    problem = NO_TOOL
                case _Label(kind="answer"):
                    answer, used = self._conclusion(index, is_wrapped=open_fence is not None)
                    if answer:
                        return Reading(thought=_joined(thoughts), answer=answer, used=self._used_or_all(used))
                    problem, used_at_least = NO_TEXT, used
        return self._refused(thoughts, problem, used=len(text))

    def _refused(self, thoughts: list[str], problem: str, *, used: int) -> Reading:
        if not problem and not self._text[:used].strip():
            problem = MADE_UP if self._text.strip() else EMPTY
        problem = problem or NEITHER
        return Reading(thought=_joined(thoughts), problem=problem, used=used)

    def _used_or_all(self, used: int) -> int:
        """Return the length of the text if only fences and white space follow `used`; else `used`."""
        return len(self._text) if _ONLY_FENCES.match(self._text, used) else used

    def _next_label(self, index: int, *, skip_lower_case: bool = False) -> int:
        """Return the offset of the next label after the mark at `index`; the text's end if there is none."""
        for mark in self._marks_after(index):
            if isinstance(mark, _Label) and not (skip_lower_case and mark.is_lower_case):
                return mark.start
        return len(self._text)

    def _marks_after(self, index: int) -> Iterator[_Mark]:
        return (self._marks[at] for at in range(index + 1, len(self._marks)))

    def _thought(self, start: int, end: int) -> str:
        """Return the text of a thought, without an unpaired fence at its beginning or end."""
        thought = self._text[start:end].strip()
        fences = list(_FENCE_LINE.finditer(thought))
        if len(fences) % 2:
            first, last = fences[0], fences[-1]
            thought = thought[: last.start()] if last.end() == len(thought) else thought
            thought = thought[first.end() :] if first.start() == 0 else thought
        return _unix(thought)

    def _conclusion(self, index: int, *, is_wrapped: bool) -> tuple[str, int]:
        """Return the conclusion after the label at `index`, and the offset of its end.

        It ends at an observation, or at an action that has an input: an action without one may be a recommendation. An
        observation in a list is part of the conclusion.
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
                case _Label(kind="observation", is_list_item=False):
                    end = used = mark.start
                    break
                case _Label(kind="input") if called is not None:
                    end = called
                    used = end if _has_words(text[begin:end]) else mark.end
                    break
            called = (thought or mark).start if mark.kind == "action" else None
            thought = mark if mark.kind == "thought" else None
        closing = [fence for fence in closing if fence.start < end]
        if is_wrapped and len(closing) % 2 and _has_words(text[begin : closing[-1].start]):
            end, used = closing[-1].start, closing[-1].end
        return _unix(text[begin:end]) if _has_words(text[begin:end]) else "", used

    def _unquoted(self, index: int, *, is_wrapped: bool) -> Iterator[_Mark]:
        """Yield the marks after `index` outside of code blocks: labels, and bare fences that may end a wrapped reply.

        In a wrapped reply a bare fence may open a block or close one, so only a fence with a language opens one.
        """
        at = index + 1
        while at < len(self._marks):
            mark = self._marks[at]
            at += 1
            if isinstance(mark, _Label) or (is_wrapped and mark.is_bare):
                yield mark
            elif mark.closing is not None:
                at = mark.closing + 1

    def _action_input(self, index: int, name_end: int, *, is_wrapped: bool) -> tuple[str, int]:
        """Return the input of the action at `index`, whose name ends at `name_end`, and the offset of its end."""
        following = next((at for at in range(index + 1, len(self._marks)) if self._is_label(at)), None)
        if following is None or not self._is_label(following, kind="input"):
            return self._unlabelled_input(index, name_end, is_wrapped=is_wrapped)
        action_input, used = self._input(following, self._marks[following].end, is_wrapped=is_wrapped)
        if action_input:
            return action_input, used
        action_input, input_end = self._unlabelled_input(index, name_end, is_wrapped=is_wrapped)
        return action_input, max(used, input_end)  # a code block may hold the label, and end after it

    def _is_label(self, index: int, *, kind: _Kind | None = None) -> bool:
        mark = self._marks[index]
        return isinstance(mark, _Label) and kind in (None, mark.kind)

    def _unlabelled_input(self, index: int, name_end: int, *, is_wrapped: bool) -> tuple[str, int]:
        """Return an input without a label: after the action's name, in parentheses or not, or on the next line."""
        text, limit = self._text, self._next_label(index)
        line_end = min(_line_end(text, name_end), limit)
        rest = text[name_end:line_end].strip()
        if rest.startswith("(") and not text[name_end].isspace():
            return self._input_in_parentheses(name_end + 1, line_end, limit)
        if (brace := text.find("{", name_end, line_end)) >= 0:
            if end := _json_end(text, brace):
                return text[brace:end], _line_end(text, end)
            return self._input(index, brace, is_wrapped=is_wrapped)
        if _PAIR_HEAD.match(rest):
            return _plain_input(rest), limit
        below = _BEFORE_INPUT.match(text, line_end, limit)
        if below and (text.startswith("{", below.end()) or self._fence(index, line_end)):
            return self._input(index, line_end, is_wrapped=is_wrapped)
        return "", limit

    def _input_in_parentheses(self, begin: int, line_end: int, limit: int) -> tuple[str, int]:
        """Return the input from `begin`, after a parenthesis: a JSON object, or the text up to the closing one."""
        text = self._text
        if (blank := _BEFORE_INPUT.match(text, begin)) and (end := _json_end(text, blank.end())):
            return text[blank.end() : end], _line_end(text, end)
        closing = text.rfind(")", begin, line_end)
        closing = text.rfind(")", begin, limit) if closing < 0 else closing
        return _plain_input(text[begin : limit if closing < 0 else closing]), limit

    def _input(self, index: int, begin: int, *, is_wrapped: bool) -> tuple[str, int]:
        """Return the input that begins at `begin`, after the label at `index`, and the offset of its end.

        It may be YAML with keys such as `action:`. A lower-case word is such a key if the label itself is not in lower
        case.
        """
        text = self._text
        fence = self._fence(index, begin)
        begin = fence.end if fence else begin
        if (blank := _BEFORE_INPUT.match(text, begin)) and (end := _json_end(text, blank.end())):
            closing = _CLOSING.match(text, end) if fence or is_wrapped else None
            return text[blank.end() : end], closing.end() if closing else end
        if fence and fence.closing is not None:
            block = self._marks[fence.closing]
            return _plain_input(text[begin : block.start]), block.end
        label = self._marks[index]
        limit = self._next_label(index, skip_lower_case=not (isinstance(label, _Label) and label.is_lower_case))
        for mark in self._marks_after(index) if is_wrapped and not fence else ():
            if isinstance(mark, _Fence) and mark.is_bare and begin <= mark.start < limit:
                return _plain_input(text[begin : mark.start]), mark.end
        return _plain_input(text[begin:limit]), limit

    def _fence(self, index: int, begin: int) -> _Fence | None:
        """Return the fence after the mark at `index` that only white space separates from `begin`."""
        for mark in self._marks_after(index):
            if mark.start >= begin:
                return mark if isinstance(mark, _Fence) and not self._text[begin : mark.start].strip() else None
        return None


def _marks(text: str) -> list[_Mark]:
    """Return the marks of `text`, in order. They are read from the end, so that the end of each block is known."""
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
            marks.append(_Label(kind, start, end, bool(match["item"]), label[0].islower()))
    marks.reverse()
    return marks


def _tool_name(text: str, start: int, limit: int) -> tuple[str, int]:
    """Return the tool name between `start` and `limit`, and the offset of its end; "" if there is none.

    If more words follow on its line, the first word counts if it looks like a tool's name. Otherwise the whole line is
    the name: no tool has it, and the model reads in the error what it wrote.
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
    has_more_words = (
        rest.strip() and not rest.startswith("(") and "{" not in rest and not _PAIR_HEAD.match(rest.strip())
    )
    return (named, end) if has_more_words and not _TOOL.fullmatch(name) else (name, word.end())


def _json_end(text: str, start: int) -> int:
    """Return the end of the JSON object that begins at `start`; 0 if there is none."""
    if not text.startswith("{", start):
        return 0
    try:
        return _JSON.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return 0


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _has_words(text: str) -> bool:
    """Return whether `text` has more than fences and white space."""
    return not _ONLY_FENCES.match(text)


def _joined(thoughts: list[str]) -> str:
    return "\n".join(filter(None, thoughts))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _plain_input(text: str) -> str:
    """Return an input without its indentation and the backticks of inline code."""
    dedented = textwrap.dedent(text.replace("\r\n", "\n")).strip()
    return dedented[1:-1].strip() if _CODE.fullmatch(dedented) else dedented


def arguments(raw: str) -> str:
    """Return an action's input as the JSON text of an object (`tool_arguments.to_json`). This never fails."""
    return tool_arguments.to_json(raw)

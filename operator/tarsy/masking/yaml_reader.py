"""A reader of YAML in block style, and of the similar output of `kubectl describe`.

Lines are distinguished by their columns alone: a mapping is the keys in one column with nothing further left between
them. That is enough for the output of Kubernetes' tools, and works with prose, code blocks and cuts around it. The text
of a block scalar (a manifest in a ConfigMap) is read like all other text.

As in `json_reader`, a document inside a JSON string is read as it is: there a line ends at an escaped newline.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from tarsy.masking import budgets, edits, json_reader, mappings, markers, rules, secret_names

_DEEPEST = 64
_FAR = 1 << 20
_LINE = re.compile(
    rb"(?:%b)"
    rb"(?P<indent>(?:[+<>|]|-(?=[^-\s]|[ ]{2}))?[ \t]*+)"  # the first column of a diff or a quotation is a column
    rb"(?P<dashes>(?:-[ \t]++)*+)"
    rb"(?:(?P<quote>\\*+[\"'])?(?P<key>[-\w./]++)(?(quote)\\*+[\"'])[ ]*+:(?=[\s\\]|$))?" % mappings.LOGGED,
    re.DOTALL,
)
_NAME = rules.rule(
    rb"(?:apiVersion|kind|[Nn]ame|[Kk]ey|path|env|[Ee]nvironment|client-key-data|stringData)\\*[\"']?:(?:\s|\\|\z)"
    rb"|type\\*[\"']?: *\\*[\"']?(?:%b)" % mappings.TYPE
)
_ESCAPES = re.compile(rb"\\++[n\"]?|[\"\n]")
_HASH = 0x23
_LINE_COST, _OPEN_COST = 9, 8
_BREAK = re.compile(rb"---(?:\s|$)|\.\.\.\s*$|```|~~~")
_JSON = {b",", b"{", b"["}
"""The last characters of JSON lines, which `json_reader` reads."""
_FRAGMENT = re.compile(rb"\s*+(?::\s++)?+\S++\s*+")
"""A line of one word, such as the end of a value."""
_HEADING = re.compile(rb"\s*+[-\w./]++:\s*+")
_TEXT = re.compile(rb"[^\r\n]++")


def may_find(doc: bytes, *, level: int) -> bool:
    """Return whether `doc` may have findings at this level: whether it has lines there, and a relevant name."""
    newline = b"\\" * (1 << (level - 1)) + b"n" if level else b""
    return newline in doc and _NAME.search(doc) is not None


def find(doc: bytes, *, level: int, findings: mappings.Findings, budget: budgets.Budget) -> None:
    """Add the spans to be masked in the documents at this level to the findings."""
    for lines in _documents(doc, level, budget):
        _Reader(doc, findings, budget).read(lines)


def _documents(doc: bytes, level: int, budget: budgets.Budget) -> Iterator[Iterable[mappings.Span]]:
    """Yield the lines of each document: of the text, or of each string with escaped newlines of this level."""
    if level == 0:
        yield (line.span() for line in budget.metered(_TEXT.finditer(doc), cost=_LINE_COST))
        return
    lines: list[mappings.Span] = []
    start = 0
    for token in budget.metered(_ESCAPES.finditer(doc)):
        slashes = token.end() - token.start() - 1
        last = doc[token.end() - 1]
        if last == 0x6E and slashes % 2**level == 2 ** (level - 1):
            budget.spend(_LINE_COST)
            lines.append((start, token.end() - 1 - 2 ** (level - 1)))
            start = token.end()
        elif last == 0x0A or (last == 0x22 and (slashes + 1) % 2**level):
            if lines:
                yield [*lines, (start, token.start())]
            lines, start = [], token.end()
    if lines:
        yield [*lines, (start, len(doc))]


class _Reader:
    def __init__(self, doc: bytes, findings: mappings.Findings, budget: budgets.Budget) -> None:
        self._budget = budget
        self._doc = doc
        self._findings = findings
        self._stack: list[mappings.Mapping] = []
        self._last = 0
        """The end of the last line that was no comment."""
        self._comments: list[mappings.Span] = []
        """The columns and ends of the comments since that line; in a block scalar they belong to a value."""
        self._begin: int | None = None
        """The beginning of the document, or of its part; None before its first line."""
        self._leftmost: int | None = None
        """The column of the document's leftmost key."""
        self._torn: list[mappings.Span] = []
        """The data of the outermost mappings so far, which may turn out to be in a list of Secrets."""

    def read(self, lines: Iterable[mappings.Span]) -> None:
        for start, end in lines:
            line = _LINE.match(self._doc, start, end)
            if line is not None and (at := line.end("dashes")) < end:
                self._line(line, at, end)
        self._end(column=-1)

    def _line(self, line: re.Match[bytes], at: int, end: int) -> None:
        """Read a `line` from `at` on, after its indent and dashes."""
        stack, key = self._stack, line["key"]
        start, indented = line.span("indent")
        left, column = indented - start, at - start
        if self._begin is None:
            self._begin = start
            if key and key not in mappings.READ:
                self._leftmost = _FAR  # the beginning of the line may be missing, so its columns are unknown
                self._end_line(end)
                return
        if key is None or (line["quote"] and self._doc[end - 1 : end] in _JSON):
            if self._doc[at] == _HASH:
                self._comments.append((column, end))
            elif at == indented and _BREAK.match(self._doc, at, end):
                self._end(column=left - 1)
                self._begin, self._leftmost, self._torn = end, None, []
            else:
                self._end(column=left)
                if column == left and stack and stack[-1].column == column:
                    self._entry(stack[-1])
                self._end_line(end)
            return
        self._end(column=left)
        if stack and stack[-1].column == column and left == column:
            self._entry(stack[-1])
            if key in stack[-1].seen:
                self._end(column=column - 1)
        if not stack or stack[-1].column != column or left != column:
            self._open(column)
            if len(stack) == 1 and not line["quote"]:
                self._first(stack[0], (self._begin, start))
        mapping = stack[-1]
        mapping.key = key if mapping.is_relevant_key(key) else b""
        mapping.mark = line.end()
        self._end_line(end)

    def _end_line(self, end: int) -> None:
        self._last = end
        if self._comments:
            self._comments = []

    def _open(self, column: int) -> None:
        self._budget.spend(_OPEN_COST)
        stack = self._stack
        stack.append(mappings.Mapping(0, parent=stack[-1] if stack else None, column=column))
        if len(stack) > _DEEPEST:
            self._entry(stack[0])
            self._findings.end(stack.pop(0), parent=None)

    def _first(self, mapping: mappings.Mapping, before: mappings.Span) -> None:
        """Begin the mapping that is furthest left so far: after a text `before` it, its own beginning was cut off."""
        if self._leftmost is None:
            if _FRAGMENT.fullmatch(self._doc, *before):
                mapping.add_keys()
                mapping.cut.append(before)
            self._leftmost = mapping.column
        elif mapping.column < self._leftmost:
            if _HEADING.fullmatch(self._doc, *before):
                self._leftmost = mapping.column
                return
            mapping.add_keys()
            mapping.is_torn = True
            mapping.cut.append(before)
            mapping.orphans += self._torn
            self._leftmost, self._torn = mapping.column, []

    def _end(self, *, column: int) -> None:
        """End the mappings whose column is greater than `column`."""
        while self._stack and self._stack[-1].column > column:
            mapping = self._stack.pop()
            self._entry(mapping)
            self._findings.end(mapping, parent=self._stack[-1] if self._stack else None)
            if not self._stack and mapping.is_relevant and not mapping.kind:
                self._torn += mapping.orphans + mapping.data + mapping.cut

    def _entry(self, mapping: mappings.Mapping) -> None:
        if mapping.key:
            comments = itertools.takewhile(lambda comment: comment[0] > mapping.column, self._comments)
            span = (mapping.mark, max(mapping.mark, self._last, *(end for _, end in comments)))
            self._findings.entry(
                mapping, span=span, scalar=mappings.scalar(self._doc[span[0] : min(span[1], span[0] + 512)])
            )
        mapping.key = None


def values(doc: bytes, span: mappings.Span, *, level: int, budget: budgets.Budget) -> list[edits.Edit]:
    """Mask all values of the mapping at `span`, which begins after the colon of the mapping's own key.

    A line that is no key of the mapping is masked whole, so that unusual spellings are masked as well.
    """
    (first, *rest) = budget.metered(_lines(doc, span, level), cost=_LINE_COST)
    head = doc[slice(*first)].strip()
    if head.startswith(b"{"):
        return json_reader.values(doc, span, level=level, budget=budget)
    if head and not head.startswith((b"#", b"&", b"!")):
        return value(doc, span, level=level)
    changes: list[edits.Edit] = []
    column, entry_span = -1, None
    for start, end in rest:
        line = _LINE.match(doc, start, end)
        if line is None or line.end("dashes") == end:
            continue
        here = line.end("dashes") - line.start("indent")
        column = here if column < 0 else column
        if here > column and entry_span:
            entry_span = (entry_span[0], end)
            continue
        if entry_span:
            changes += value(doc, entry_span, level=level)
            entry_span = None
        if here == column and line["key"] and not line["dashes"]:
            entry_span = (line.end(), end)
        else:
            changes += value(doc, (line.end("indent"), end), level=level)
    if entry_span:
        changes += value(doc, entry_span, level=level)
    return changes


def value(doc: bytes, span: mappings.Span, *, level: int) -> list[edits.Edit]:
    """Mask the value at `span`, with its further lines, unless it is empty."""
    text = doc[slice(*span)]
    start = span[0] + len(text) - len(text.lstrip(b" \t"))
    if secret_names.is_empty(text):
        return []
    gap = b" " if start == span[0] and doc[start - 1 : start] == b":" else b""
    return [edits.Edit(start, span[1], gap + markers.quoted("secret", level=level))]


def _lines(doc: bytes, span: mappings.Span, level: int) -> Iterator[mappings.Span]:
    newline = b"\\" * 2 ** (level - 1) + b"n" if level else b"\n"
    start = span[0]
    while (end := doc.find(newline, start, span[1])) >= 0:
        yield start, end
        start = end + len(newline)
    yield start, span[1]

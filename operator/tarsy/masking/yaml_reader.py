"""Secrets in YAML's block style, and in what `kubectl describe` prints, which reads the same way.

Lines are told apart by their columns alone: a mapping is the keys that stand in one column with nothing further left
between them. That is enough for what Kubernetes' tools print, it survives prose, fences and cuts around it, and what
stands in a block scalar (a manifest in a ConfigMap) is read like everything else.

As in `json_reader`, a document inside a JSON string is read as it stands: there a line ends at an escaped newline.
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
    """Whether it is worth reading `doc` at this level: whether it has lines there, and a name that tells anything."""
    newline = b"\\" * (1 << (level - 1)) + b"n" if level else b""
    return newline in doc and _NAME.search(doc) is not None


def find(doc: bytes, *, level: int, mappings_found: mappings.Found, budget: budgets.Budget) -> None:
    """Find what is to be masked in the documents at this level."""
    for lines in _documents(doc, level, budget):
        _Reader(doc, mappings_found, budget).read(lines)


def _documents(doc: bytes, level: int, budget: budgets.Budget) -> Iterator[Iterable[mappings.Span]]:
    """The lines of each document: of the whole text, or of each string that has escaped newlines of this level."""
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
    def __init__(self, doc: bytes, mappings_found: mappings.Found, budget: budgets.Budget) -> None:
        self._budget = budget
        self._doc = doc
        self._found = mappings_found
        self._stack: list[mappings.Mapping] = []
        self._last = 0
        """Where the last line ends that had anything on it but a comment."""
        self._comments: list[mappings.Span] = []
        """The columns and ends of the comments since; in a block scalar they belong to a value."""
        self._begin: int | None = None
        """Where the document begins, which may be in the middle of one."""
        self._leftmost: int | None = None
        """The column of the leftmost key since."""
        self._torn: list[mappings.Span] = []
        """The data of what stood furthest left until now, if it turns out to have stood in a list of Secrets."""

    def read(self, lines: Iterable[mappings.Span]) -> None:
        for start, end in lines:
            line = _LINE.match(self._doc, start, end)
            if line is not None and (at := line.end("dashes")) < end:
                self._line(line, at, end)
        self._end(column=-1)

    def _line(self, line: re.Match[bytes], at: int, end: int) -> None:
        """Read what begins at `at`, behind the indent and the dashes of a `line`."""
        stack, key = self._stack, line["key"]
        start, indented = line.span("indent")
        left, column = indented - start, at - start
        if self._begin is None:
            self._begin = start
            if key and key not in mappings.READ:
                self._leftmost = _FAR  # the line may have lost its head, so it says nothing of columns
                self._went_on(end)
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
                self._went_on(end)
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
        mapping.key = key if mapping.knows(key) else b""
        mapping.mark = line.end()
        self._went_on(end)

    def _went_on(self, end: int) -> None:
        self._last = end
        if self._comments:
            self._comments = []

    def _open(self, column: int) -> None:
        self._budget.spend(_OPEN_COST)
        stack = self._stack
        stack.append(mappings.Mapping(0, parent=stack[-1] if stack else None, column=column))
        if len(stack) > _DEEPEST:
            self._entry(stack[0])
            self._found.end(stack.pop(0), parent=None)

    def _first(self, mapping: mappings.Mapping, before: mappings.Span) -> None:
        """`mapping` is the first that stands so far left: if any stood `before` it, its own beginning was cut off."""
        if self._leftmost is None:
            if _FRAGMENT.fullmatch(self._doc, *before):
                mapping.tell()
                mapping.cut.append(before)
            self._leftmost = mapping.column
        elif mapping.column < self._leftmost:
            if _HEADING.fullmatch(self._doc, *before):
                self._leftmost = mapping.column
                return
            mapping.tell()
            mapping.is_torn = True
            mapping.cut.append(before)
            mapping.orphans += self._torn
            self._leftmost, self._torn = mapping.column, []

    def _end(self, *, column: int) -> None:
        """End the mappings that stand further right than `column`."""
        while self._stack and self._stack[-1].column > column:
            mapping = self._stack.pop()
            self._entry(mapping)
            self._found.end(mapping, parent=self._stack[-1] if self._stack else None)
            if not self._stack and mapping.is_telling and not mapping.kind:
                self._torn += mapping.orphans + mapping.data + mapping.cut

    def _entry(self, mapping: mappings.Mapping) -> None:
        if mapping.key:
            comments = itertools.takewhile(lambda comment: comment[0] > mapping.column, self._comments)
            span = (mapping.mark, max(mapping.mark, self._last, *(end for _, end in comments)))
            self._found.entry(
                mapping, span=span, scalar=mappings.scalar(self._doc[span[0] : min(span[1], span[0] + 512)])
            )
        mapping.key = None


def values(doc: bytes, span: mappings.Span, *, level: int, budget: budgets.Budget) -> list[edits.Edit]:
    """Mask every value of the mapping whose text is `span`, from behind the colon of its own key.

    A line that is no key of it is masked whole, so that nothing passes for being written in an unusual way.
    """
    (first, *rest) = budget.metered(_lines(doc, span, level), cost=_LINE_COST)
    head = doc[slice(*first)].strip()
    if head.startswith(b"{"):
        return json_reader.values(doc, span, level=level, budget=budget)
    if head and not head.startswith((b"#", b"&", b"!")):
        return value(doc, span, level=level)
    changes: list[edits.Edit] = []
    column, under_way = -1, None
    for start, end in rest:
        line = _LINE.match(doc, start, end)
        if line is None or line.end("dashes") == end:
            continue
        here = line.end("dashes") - line.start("indent")
        column = here if column < 0 else column
        if here > column and under_way:
            under_way = (under_way[0], end)
            continue
        if under_way:
            changes += value(doc, under_way, level=level)
            under_way = None
        if here == column and line["key"] and not line["dashes"]:
            under_way = (line.end(), end)
        else:
            changes += value(doc, (line.end("indent"), end), level=level)
    if under_way:
        changes += value(doc, under_way, level=level)
    return changes


def value(doc: bytes, span: mappings.Span, *, level: int) -> list[edits.Edit]:
    """Mask the one value at `span`, with the lines that it goes on for, unless it is empty."""
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

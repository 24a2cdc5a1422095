"""A reader of JSON and similar texts: YAML in braces, prints of Python and Go, parts of a document.

A document may be a string inside another document's string, where each quote has backslashes. Each level of this
nesting is read in the text as it is, by its own form of a quote. That needs no unescaping, so unmasked text stays
unchanged. It needs no outer quotes either, so a line without its beginning is read as well.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from tarsy.masking import budgets, edits, mappings, markers, rules, secret_names

_DEEPEST = 64
"""The maximal number of open mappings; the outermost ones beyond it are dropped. Kubernetes nests about 20."""
_LONGEST_KEY = 256
_QUOTES = b"\"'\\"
_UNQUOTED = rules.rule(rb"\"(?:[^\"\n]|\\\")*\{(?:[^\"\n]|\\\")*(?:apiVersion|kind|name|env|client-key-data)'?:")
"""YAML in braces or a print of Python, inside a string."""
_KEY = re.compile(rb"(?:\s|\\++[nrt]?+|[\"'])*+[-.\w]{1,253}+[\s\"'\\]*+")
_SECRET_KEYS = rules.rule(rb"kind\\*[\"']\s*:\s*\\*[\"'][Ss]ecret|stringData\\*[\"']\s*:|%b" % mappings.TYPE)
"""Keys of a Secret without its beginning."""
_SENTENCE = re.compile(rb"\s*+[^\s\"':]++\s++\S")
"""The beginning of prose, which is no end of a value."""
_BRACKETS = {b"{", b"["}
_NO_KEY = {None, mappings.CUT}
_QUOTE = re.compile(rb"\\++\"")
_ESCAPED_SPACE = re.compile(rb"(?:\s|\\++[nrt])*+")
_OPEN, _CLOSE = {0x7B: False, 0x5B: True}, {0x7D: False, 0x5D: True}
_COLON, _COMMA = 0x3A, 0x2C
_TOKEN_COST, _OPEN_COST, _PAIR_COST, _VARIABLE_COST, _TORN_COST = 2, 4, 5, 8, 16


def _quotes(level: int) -> tuple[bytes, bytes]:
    """Return the patterns of a backslash and of a quote in a string of this level."""
    return rb"\\" * 2**level, rb"\\" * (2**level - 1) + rb'"'


def _string(level: int) -> bytes:
    """Return a pattern for the rest of a string after its first quote."""
    unit, quote = _quotes(level)
    return rb'(?:[^\\"\n]++|%b(?:%b|%b)|\\++(?!"))*+%b(?!\w)' % (unit, quote, unit, quote)


@functools.cache
def _rest(level: int) -> re.Pattern[bytes]:
    """Return a pattern for the rest of a string whose beginning was cut off."""
    return re.compile(_string(level) + rb"(?=\s*+[,:}\]])")


@functools.cache
def _tokens(level: int, *, every: bool = False) -> re.Pattern[bytes]:
    """Return a pattern for one token: the text up to the next punctuation or quote of an outer string (group 1).

    A string ends on its line, and before a character that may follow a string: else a quote in prose (5" disks) would
    swap strings and the text between them. Every byte is read at most twice: once in an assumed string that is none,
    and once after its quote. The last token is empty, at the end of the text, so that the rest is not read again from
    each of its bytes. Items of a list are one token, unless `every` item is to be one.
    """
    unit, quote = _quotes(level)
    double = quote + _string(level)
    single = rb"(?<=[\[{:, ])'(?:[^'\\\n{]++|''|\\.)*+'(?=\s*+[,:}\]])"
    outer = rb"" if level == 0 else rb'"'
    text = rb"%b|%b|%b(?:%b|%b)|[^{}\[\],:\"'\\\n]++|\n(?:%b)|[^{}\[\],:%b]" % (
        *(double, single, unit, quote, unit),
        *(mappings.LOGGED, outer),
    )
    marks = rb"[{}\[\],:%b]" % outer
    if not every:
        marks = rb",(?:[-.\w\s]*+,)*+|:(?:[-.\w\s]*+:)*+|[{}\[\]%b]" % outer
    return re.compile(rb"(?:%b)*+(%b|\Z)" % (text, marks))


def may_find(doc: bytes, *, level: int) -> bool:
    """Return whether `doc` may have findings at this level: whether it has a relevant name in quotes."""
    if level == 0:
        return b"{" in doc or b"}" in doc
    if level == 1 and b"{" in doc and _UNQUOTED.search(doc) is not None:
        return True
    quote = b"\\" * ((1 << level) - 1) + b'"'
    return quote in doc and (
        any(name + quote in doc for name in mappings.RELEVANT) or _SECRET_KEYS.search(doc) is not None
    )


def find(doc: bytes, *, level: int, findings: mappings.Findings, budget: budgets.Budget) -> None:
    """Add the spans to be masked in the documents at this level to the findings."""
    start, reader = 0, _Reader(doc, findings, budget)
    if doc.lstrip(edits.SPACE)[:1] not in _BRACKETS and _SECRET_KEYS.search(doc) is not None:
        start = reader.begin_torn(level)
    reader.read(budget.metered(_tokens(level).finditer(doc, start), cost=_TOKEN_COST))


class _Reader:
    def __init__(self, doc: bytes, findings: mappings.Findings, budget: budgets.Budget) -> None:
        self._budget = budget
        self._doc = doc
        self._findings = findings
        self._stack: list[mappings.Mapping] = []
        self._lists = 0
        self._begin = 0
        """The beginning of the document, or of its part."""
        self._is_torn = False

    def begin_torn(self, level: int) -> int:
        """Begin in the middle of a document, maybe in a string; return the position to read from."""
        self._around(0).key = mappings.CUT
        rest = _rest(level).match(self._doc)
        return rest.end() if rest else 0

    def read(self, tokens: Iterator[re.Match[bytes]]) -> None:
        doc, stack = self._doc, self._stack
        for token in tokens:
            at, end = token.span(1)
            if at == end:
                break
            byte = doc[at]
            if byte == _COLON:
                if stack and (top := stack[-1]).key in _NO_KEY and not top.is_list:
                    self._key(top, at)
            elif byte == _COMMA:
                if stack:
                    if (top := stack[-1]).key:
                        self._entry(top, at)
                    top.key, top.mark = None, end
            elif byte in _OPEN:
                self._open(at + 1, is_list=_OPEN[byte])
            elif byte in _CLOSE:
                self._close(at, is_list=_CLOSE[byte])
            else:
                self._end(at)
        self._end(len(doc))

    def _key(self, mapping: mappings.Mapping, at: int) -> None:
        text = self._doc[max(mapping.mark, at - _LONGEST_KEY) : at].rstrip(edits.SPACE)
        if text.endswith((b'"', b"'")):
            quote, text = text[-1:], text[:-1].rstrip(b"\\")
            key = text[text.rfind(quote) + 1 :]
        else:
            key = text.rpartition(b" ")[2].lstrip(_QUOTES + b"\n")
        if mapping.is_env:
            self._budget.spend(_VARIABLE_COST)
        if key in mappings.READ or (mapping.is_env and mapping.is_relevant_key(key)):
            mapping.key = key
        elif mapping.key == mappings.CUT:
            return
        else:
            mapping.key = b""
        mapping.mark = at + 1

    def _entry(self, mapping: mappings.Mapping, at: int) -> None:
        if mapping.key == mappings.CUT and _SENTENCE.match(self._doc, mapping.mark, at):
            mapping.key = b""
        if mapping.key:
            self._findings.entry(
                mapping,
                span=(mapping.mark, at),
                scalar=mappings.scalar(self._doc[mapping.mark : min(at, mapping.mark + 512)]),
            )
        mapping.key = None
        mapping.mark = at + 1

    def _open(self, mark: int, *, is_list: bool) -> None:
        self._budget.spend(_OPEN_COST)
        stack = self._stack
        parent = stack[-1] if stack else None
        stack.append(mappings.Mapping(mark, parent=parent, is_list=is_list))
        self._lists += is_list
        if len(stack) > _DEEPEST:
            self._pop(0, mark)

    def _close(self, at: int, *, is_list: bool) -> None:
        stack = self._stack
        if not stack or (stack[-1].is_torn and len(stack) == 1):
            self._torn(at, is_list=is_list)
        elif self._lists if is_list else self._lists < len(stack):
            while self._pop(-1, at).is_list is not is_list:
                pass

    def _torn(self, at: int, *, is_list: bool) -> None:
        """End a mapping or list whose beginning was cut off; its parent's was too, and is read from here on."""
        around = self._around(at + 1)
        if not self._is_torn and not is_list:
            around.add_keys()
            around.cut.append((self._begin, at))
        self._is_torn = True
        while len(self._stack) > 1:
            self._pop(-1, at)

    def _around(self, mark: int) -> mappings.Mapping:
        """Open a parent of all open mappings."""
        self._budget.spend(_TORN_COST)
        around = mappings.Mapping(mark, parent=None)
        around.is_torn = True
        self._stack.insert(0, around)
        return around

    def _end(self, at: int) -> None:
        while self._stack:
            self._pop(-1, at)
        self._begin, self._is_torn = at, False

    def _pop(self, index: int, at: int) -> mappings.Mapping:
        mapping = self._stack.pop(index)
        self._lists -= mapping.is_list
        if mapping.key:
            self._entry(mapping, at)
        if mapping.is_relevant:
            self._findings.end(mapping, parent=self._stack[-1] if self._stack and index else None)
        return mapping


def values(doc: bytes, span: mappings.Span, *, level: int, budget: budgets.Budget) -> list[edits.Edit]:
    """Mask all values of the mapping at `span`, and all other text in it that is no key.

    Anything but a mapping is masked whole.
    """
    start, end = trimmed(doc, span)
    if doc[start : start + 1] != b"{":
        return value(doc, span, level=level)
    changes: list[edits.Edit] = []
    stack: list[bool] = []
    mark, colon = start + 1, -1
    for token in budget.metered(_tokens(level, every=True).finditer(doc, start, end), cost=_PAIR_COST):
        at = token.start(1)
        if at == token.end():
            break
        byte = doc[at]
        if byte in _OPEN:
            stack.append(_OPEN[byte])
        elif byte in _CLOSE and _CLOSE[byte] in stack[-_DEEPEST:]:
            while stack.pop() is not _CLOSE[byte]:
                pass
        if not stack or (len(stack) == 1 and byte == _COMMA):
            changes += _pair(doc, mark, colon, at, level=level)
            mark, colon = at + 1, -1
            if not stack:
                break
        elif len(stack) == 1 and byte == _COLON and colon < 0:
            colon = at
    return [*changes, *_pair(doc, mark, colon, end, level=level)]


def _pair(doc: bytes, mark: int, colon: int, end: int, *, level: int) -> list[edits.Edit]:
    if colon >= 0 and _KEY.fullmatch(doc, mark, colon):
        return value(doc, (colon + 1, end), level=level)
    return value(doc, (mark, end), level=level)


def value(doc: bytes, span: mappings.Span, *, level: int) -> list[edits.Edit]:
    """Mask the one value at `span`, unless it is empty."""
    start, end = trimmed(doc, span)
    if secret_names.is_empty(doc[start:end]):
        return []
    quote = _QUOTE.match(doc, start, end)
    text = quote[0] + markers.marker("secret") + quote[0] if quote else markers.quoted("secret", level=level)
    return [edits.Edit(start, end, text)]


def trimmed(doc: bytes, span: mappings.Span) -> mappings.Span:
    """Return `span` without the white space at its ends, also without escaped white space after a quoted value."""
    text = doc[slice(*span)]
    start = span[0] + len(text) - len(text.lstrip(edits.SPACE))
    text = text.strip(edits.SPACE)
    opening = text.lstrip(b"\\")[:1]
    if opening in {b'"', b"'"}:
        close = text.rfind(opening) + 1
        if _ESCAPED_SPACE.fullmatch(text, close):
            text = text[:close]
    return start, start + len(text)

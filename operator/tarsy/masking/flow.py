"""Secrets in JSON, and in what looks like it: YAML in braces, Python's and Go's prints, halves of a document.

A document may be a string inside another one's string, where each quote carries backslashes. Each depth of this
nesting (`level`) is read on the document as it stands, by its own form of a quote. That needs no unescaping, so what is
not masked stays as it was, and it needs no outer quotes either, so a line that was cut at its head is read all the
same.
"""

from __future__ import annotations

import functools
import re

from tarsy.masking import edits, mappings, names

_DEEPEST = 64
"""Mappings that are kept open; beyond, the outermost is forgotten. Kubernetes nests about 20 deep."""
_QUOTES = b"\"'\\"
_KEY = re.compile(rb"(?:\s|\\++[nrt]|[\"'\\])*+[-.\w]{1,253}+[\s\"'\\]*+")
_OPEN, _CLOSE = {0x7B: False, 0x5B: True}, {0x7D: False, 0x5D: True}
_COLON, _COMMA = 0x3A, 0x2C


@functools.cache
def _tokens(level: int) -> re.Pattern[bytes]:
    """The tokens at a level: strings, which are passed over, punctuation, and the quotes that end an outer string.

    A string ends on its line, and before something that may follow a string: else a quote in prose (5" disks) would
    turn the rest inside out. Every byte is looked at twice at most: once in a string that turns out not to be one, once
    beyond its quote.
    """
    unit = rb"\\" * 2**level
    quote = rb"\\" * (2**level - 1) + rb'"'
    double = rb'%b(?:[^\\"\n]++|%b(?:%b|%b|[^\\"\n]))*+%b(?!\w)' % (quote, unit, quote, unit, quote)
    single = rb"(?<=[\[{:, ])'(?:[^'\\\n]++|\\.)*+'(?=\s*+[,:}\]])"
    outer = rb"" if level == 0 else rb'|"'
    return re.compile(rb"%b|%b|%b(?:%b|%b)|[{}\[\],:]%b" % (double, single, unit, quote, unit, outer))


def find(doc: bytes, *, level: int, found: mappings.Found) -> None:
    """Find what is to be masked in the documents at this level."""
    _Reader(doc, found).read(level)


class _Reader:
    def __init__(self, doc: bytes, found: mappings.Found) -> None:
        self._doc = doc
        self._found = found
        self._stack: list[mappings.Mapping] = []

    def read(self, level: int) -> None:
        doc, stack = self._doc, self._stack
        for token in _tokens(level).finditer(doc):
            at = token.start()
            byte = doc[at]
            if byte == _COLON:
                if stack and stack[-1].key is None and not stack[-1].is_list:
                    self._key(stack[-1], at)
            elif byte == _COMMA:
                if stack:
                    self._entry(stack[-1], at)
            elif byte in _OPEN:
                self._open(at + 1, is_list=_OPEN[byte])
            elif byte in _CLOSE:
                self._close(at, is_list=_CLOSE[byte])
            elif token.end() == at + 1:
                self._end(at)
        self._end(len(doc))

    def _key(self, mapping: mappings.Mapping, at: int) -> None:
        text = self._doc[max(mapping.mark, at - 256) : at].rstrip(edits.SPACE + _QUOTES)
        key = text[max(text.rfind(separator) for separator in (b'"', b"'", b" ", b"\n", b"{", b",")) + 1 :]
        mapping.key = key if mapping.knows(key) else b""
        mapping.mark = at + 1

    def _entry(self, mapping: mappings.Mapping, at: int) -> None:
        if mapping.key:
            self._found.entry(mapping, span=(mapping.mark, at), scalar=_scalar(self._doc, mapping.mark, at))
        mapping.key = None
        mapping.mark = at + 1

    def _open(self, mark: int, *, is_list: bool) -> None:
        stack = self._stack
        parent = stack[-1] if stack else None
        stack.append(mappings.Mapping(mark=mark, parent=parent, is_list=is_list))
        if len(stack) > _DEEPEST:
            self._entry(stack[0], mark)
            self._found.end(stack.pop(0), parent=None)

    def _close(self, at: int, *, is_list: bool) -> None:
        if any(mapping.is_list is is_list for mapping in self._stack):
            while self._pop(at).is_list is not is_list:
                pass

    def _end(self, at: int) -> None:
        while self._stack:
            self._pop(at)

    def _pop(self, at: int) -> mappings.Mapping:
        mapping = self._stack.pop()
        self._entry(mapping, at)
        self._found.end(mapping, parent=self._stack[-1] if self._stack else None)
        return mapping


def values(doc: bytes, span: mappings.Span, *, level: int) -> list[edits.Edit]:
    """Mask every value of the mapping at `span`, and whatever else is in there and is no key.

    What is no mapping is masked whole.
    """
    start, end = trimmed(doc, span)
    if doc[start : start + 1] != b"{":
        return value(doc, span, level=level)
    changes: list[edits.Edit] = []
    depth, mark, colon = 0, start + 1, -1
    for token in _tokens(level).finditer(doc, start, end):
        byte, at = doc[token.start()], token.start()
        depth += (byte in _OPEN) - (byte in _CLOSE)
        if depth == 1 and byte == _COLON and colon < 0:
            colon = at
        elif (depth == 1 and byte == _COMMA) or (depth == 0 and byte in _CLOSE):
            changes += _pair(doc, mark, colon, at, level=level)
            mark, colon = at + 1, -1
    if depth:
        changes += _pair(doc, mark, colon, end, level=level)
    return changes


def _pair(doc: bytes, mark: int, colon: int, end: int, *, level: int) -> list[edits.Edit]:
    if colon >= 0 and _KEY.fullmatch(doc, mark, colon):
        return value(doc, (colon + 1, end), level=level)
    return value(doc, (mark, end), level=level)


def value(doc: bytes, span: mappings.Span, *, level: int) -> list[edits.Edit]:
    """Mask the one value at `span`, unless it is empty."""
    start, end = trimmed(doc, span)
    if names.is_empty(doc[start:end]):
        return []
    return [edits.Edit(start, end, edits.quoted("secret", level=level))]


def trimmed(doc: bytes, span: mappings.Span) -> mappings.Span:
    """`span` without the white space at its ends; behind a value in quotes also without what is escaped."""
    text = doc[slice(*span)]
    start = span[0] + len(text) - len(text.lstrip(edits.SPACE))
    text = text.strip(edits.SPACE)
    opening = text.lstrip(b"\\")[:1]
    if opening in {b'"', b"'"} and text.rfind(opening) > text.find(opening):
        text = text[: text.rfind(opening) + 1]
    return start, start + len(text)


def _scalar(doc: bytes, start: int, end: int) -> bytes:
    text = doc[start : min(end, start + 300)].lstrip(edits.SPACE + b"\\")
    if text[:1] in {b'"', b"'"}:
        return text[1:].split(text[:1], 1)[0].rstrip(b"\\")
    return text.split(b"\\", 1)[0].strip()

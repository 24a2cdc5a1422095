"""Documents that a log splits: each line of a Secret in a record of its own, or after a prefix of its own.

`mappings.LOGGED` matches the prefixes that most tools write. This module handles JSON and logfmt records, whose strings
are the lines, and other prefixes of a Secret's lines (a pod's name, as stern writes it). It joins the
lines, so that they can be read like any text, and translates the edits back.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tarsy.masking import budgets, edits, mappings, rules

_NEEDED = rules.rule(rb"[Ss]ecret|stringData|%b" % mappings.TYPE)
_RECORD = rules.rule(
    rb"(?m)^(?:[^\n{]*\{(?:[^\n]*?[,{\s])??"
    rb"\"(?:log|msg|message|MESSAGE|line|text|content|body|event|output|stdout|data)\"\s*:\s*\"((?:[^\"\\\n]|\\.)*)\""
    rb"|(?:[^\n]*?\s)??(?:msg|message|log|line)=(?:\"((?:[^\"\\\n]|\\.)*)\"|([^\s\"]+)))"
)
"""A line with a string: in JSON or in logfmt."""
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ANCHOR = rules.rule(
    rb"(?m)^([^\n]*?\w[^\n]*? )(?:- )?"
    rb"(?:(?:apiVersion: v1|kind: [Ss]ecret(?:List)?|data:|stringData:|type: (?:%b))\r?$"
    rb"|\"kind\": ?\"[Ss]ecret|\"(?:stringD|d)ata\": ?\{)" % mappings.TYPE
)
_SIMPLE = {
    b"\\" + bytes([letter]): bytes([character])
    for letter, character in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True)
}
_LOGGED = re.compile(mappings.LOGGED)
_VARIES = re.compile(rb"(\d++)|( ++)(?=\S)|[^\d ]++| ++")
_PREFIXES_MAX, _PREFIX_BYTES = 4, 256
"""The maximal number of prefixes, and of bytes of each."""
_COST, _ESCAPE_COST = 12, 4


class View(NamedTuple):
    """Joined lines of a document, and the position of each in the document."""

    text: bytes
    starts: list[int]
    """The beginning of each piece in `text`."""
    pieces: list[_Piece]

    def translate(self, changes: Iterable[edits.Edit]) -> Iterator[edits.Edit]:
        """Yield the `changes` as edits of the document; the replacement of each goes to its first piece."""
        for change in changes:
            text = change.text
            index = bisect.bisect_right(self.starts, change.start) - 1
            while index < len(self.pieces) and self.starts[index] < change.end:
                piece, begin = self.pieces[index], self.starts[index]
                start, end = max(change.start - begin, 0), min(change.end - begin, piece.length)
                if start < end:
                    yield edits.Edit(piece.outside(start), piece.outside(end), piece.written(text))
                    text = b""
                index += 1


class _Piece(NamedTuple):
    start: int
    length: int
    escapes: tuple[list[int], list[int]] | None
    """In a string: the positions after each escape, in the decoded and in the encoded text; None in a line."""

    def outside(self, at: int) -> int:
        if self.escapes is None:
            return self.start + at
        inside, outside = self.escapes
        index = bisect.bisect_right(inside, at) - 1
        return outside[index] + at - inside[index]

    def written(self, text: bytes) -> bytes:
        return text if self.escapes is None else text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def views(doc: bytes, budget: budgets.Budget) -> Iterator[View]:
    """Yield the joined lines of `doc`, if any of them may belong to a Secret."""
    if _NEEDED.search(doc) is None:
        return
    if (view := _view(_records(doc, budget), budget)) is not None:
        yield view
    for prefix in _prefixes(doc, budget):
        matches = budget.metered(rules.rule(rb"(?m)^%b([^\n]*)$" % prefix).finditer(doc), cost=_COST)
        lines = ((line[1], _Piece(line.start(1), len(line[1]), None)) for line in matches)
        if (view := _view(lines, budget)) is not None:
            yield view


def _view(lines: Iterable[tuple[bytes, _Piece]], budget: budgets.Budget) -> View | None:
    texts: list[bytes] = []
    pieces: list[_Piece] = []
    for text, piece in budget.metered(lines, cost=_COST):
        texts.append(text)
        pieces.append(piece)
    if len(pieces) < 2:
        return None
    if not any(text.endswith(b"\n") for text in texts):  # else one without a line end is a part of a line
        texts = [text + b"\n" for text in texts]
    starts = list(itertools.accumulate((len(text) for text in texts[:-1]), initial=0))
    return View(b"".join(texts), starts, pieces)


def _records(doc: bytes, budget: budgets.Budget) -> Iterator[tuple[bytes, _Piece]]:
    for record in budget.metered(_RECORD.finditer(doc), cost=_COST):
        group = 1 if record.start(1) >= 0 else 2 if record.start(2) >= 0 else 3
        text, escapes = _unescaped(record[group], record.start(group), budget)
        yield text, _Piece(record.start(group), len(text), escapes)


def _unescaped(string: bytes, start: int, budget: budgets.Budget) -> tuple[bytes, tuple[list[int], list[int]]]:
    """Return a JSON string's text, and the positions after each escape, decoded and encoded."""
    texts: list[bytes] = []
    inside, outside = [0], [start]
    done = length = 0
    for escape in budget.metered(_ESCAPE.finditer(string), cost=_ESCAPE_COST):
        plain = string[done : escape.start()]
        character = _SIMPLE.get(escape[0]) or _unescape(escape[0])
        texts += [plain, character]
        length += len(plain) + len(character)
        done = escape.end()
        inside.append(length)
        outside.append(start + done)
    texts.append(string[done:])
    return b"".join(texts), (inside, outside)


def _unescape(escape: bytes) -> bytes:
    try:
        character: str = json.loads(b'"%b"' % escape)
    except ValueError:
        return escape[1:]
    return character.encode("utf-8", "surrogatepass")


def _prefixes(doc: bytes, budget: budgets.Budget) -> list[bytes]:
    """Return the prefixes of the lines of Secrets, as patterns."""
    prefixes: list[bytes] = []
    for anchor in budget.metered(_ANCHOR.finditer(doc), cost=_COST):
        prefix = anchor[1].rstrip(b" ") + b" "
        if len(prefix) > _PREFIX_BYTES:
            continue
        if prefix.strip(b"-+>| \t#") and _LOGGED.fullmatch(prefix) is None:
            pattern = b"".join(
                rb"\d+" if part[1] else rb" +" if part[2] else re.escape(part[0]) for part in _VARIES.finditer(prefix)
            )
            if pattern not in prefixes:
                prefixes.append(pattern)
            if len(prefixes) == _PREFIXES_MAX:
                break
    return prefixes

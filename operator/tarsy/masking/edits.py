"""Edits, which the parts of this room exchange: places in a document and their replacements.

Documents are UTF-8 bytes: RE2 then needs no decoding of offsets, and everything we look for is ASCII. Every place
starts and ends beside an ASCII character, so no character is ever cut in two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from tarsy.masking import rules

SPACE = b" \t\r\n"

MARKED = rules.rule(rb"\[MASKED:[a-z0-9_]+(?::([0-9a-f]{4}))?\]")
"""A marker, and its fingerprint where it has one."""
_MARK = b"[MASKED:"
_NEAR = 64
"""Bytes that a marker may have."""


class Edit(NamedTuple):
    """`doc[start:end]` becomes `text`."""

    start: int
    end: int
    text: bytes


@functools.cache
def marker(name: str) -> bytes:
    """Return the marker for a secret: `[MASKED:password]`."""
    return b"[MASKED:%s]" % name.encode()


def quoted(name: str, *, level: int) -> bytes:
    """The marker as a JSON string, inside as many other JSON strings as `level` says."""
    quote = b"\\" * ((1 << level) - 1) + b'"'
    return quote + marker(name) + quote


def marked(doc: bytes, at: int) -> int:
    """The end of the marker that begins at `at`; -1 where none does."""
    if not doc.startswith(_MARK, at):
        return -1
    match = MARKED.match(doc, at, at + _NEAR)
    return -1 if match is None else match.end()


def around(doc: bytes, start: int, end: int) -> tuple[int, int] | None:
    """The place from `start` to `end`, made wider so that it cuts no marker in two; None where it lies within one."""
    at = doc.rfind(_MARK, max(0, start - _NEAR), start + len(_MARK))
    if at >= 0 and (stop := marked(doc, at)) > start:
        if stop >= end:
            return None
        start = at
    at = doc.rfind(_MARK, start, end + len(_MARK) - 1)
    return start, max(end, marked(doc, at)) if at >= 0 else end


def merged(changes: Iterable[Edit]) -> list[Edit]:
    """`changes` in their order; of those that overlap, the first one's text stands for all of them."""
    disjoint: list[Edit] = []
    for change in sorted(changes, key=lambda change: (change.start, -change.end)):
        if disjoint and change.start < disjoint[-1].end:
            disjoint[-1] = disjoint[-1]._replace(end=max(disjoint[-1].end, change.end))
        else:
            disjoint.append(change)
    return disjoint


def apply(doc: bytes, changes: Iterable[Edit]) -> bytes:
    """`doc` with all `changes`, which may overlap."""
    pieces, done = [], 0
    for change in merged(changes):
        pieces += [doc[done : change.start], change.text]
        done = change.end
    return b"".join([*pieces, doc[done:]])

"""Edits: spans of a document and their replacements.

Documents are UTF-8 bytes: RE2 then needs no decoding of offsets, and all patterns are ASCII. Every span starts and ends
beside an ASCII character, so no character is ever cut in two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tarsy.masking import markers

SPACE = b" \t\r\n"


class Edit(NamedTuple):
    """`doc[start:end]` becomes `text`."""

    start: int
    end: int
    text: bytes


def around(doc: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Widen a span so that it cuts no marker in two; return None if it lies within one."""
    at = doc.rfind(markers.PREFIX, max(0, start - markers.LONGEST), start + len(markers.PREFIX))
    if at >= 0 and (marker_end := markers.marker_end(doc, at)) > start:
        if marker_end >= end:
            return None
        start = at
    at = doc.rfind(markers.PREFIX, start, end + len(markers.PREFIX) - 1)
    return start, max(end, markers.marker_end(doc, at)) if at >= 0 else end


def merged(changes: Iterable[Edit]) -> list[Edit]:
    """Return the `changes` in order; of overlapping ones, the first one's text replaces all."""
    disjoint: list[Edit] = []
    for change in sorted(changes, key=lambda change: (change.start, -change.end)):
        if disjoint and change.start < disjoint[-1].end:
            disjoint[-1] = disjoint[-1]._replace(end=max(disjoint[-1].end, change.end))
        else:
            disjoint.append(change)
    return disjoint


def apply(doc: bytes, changes: Iterable[Edit]) -> bytes:
    """Return `doc` with all `changes`, which may overlap."""
    pieces, done = [], 0
    for change in merged(changes):
        pieces += [doc[done : change.start], change.text]
        done = change.end
    return b"".join([*pieces, doc[done:]])

"""Known secrets: the values that this process was given, masked by value in all that it stores, sends and shows.

They are keys of providers, tokens, the database's password, and the settings that MCP servers are started with. They
are masked whatever name stands before them. One automaton (Aho-Corasick) finds all of them at once, plain and as JSON,
URLs, HTML, hex and base64 write them, also within a longer text in base64.

`process` builds one KnownSecrets and hands it to the log, the maskers, the clients and the views. A reload of the
platform file adds values to it. Former values stay known as long as there is space, because a run may still hold them.

A value is masked if it can be told from common text: from 8 characters on, and from 16 on if it is only words or only
digits. `postgres` as a password would take that word out of every text.
"""

from __future__ import annotations

import bisect
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ahocorasick_rs

from tarsy.masking import edits, encodings, markers

SHORTEST = 8
"""Characters of a value that is looked for."""
SHORTEST_COMMON = 16
"""The same, of one that is like words or a number."""
LONGEST = 8 * 1024
"""Characters of a value that is looked for as a whole; of a longer one its beginning is, and each of its lines."""
VALUES_MAX = 2000
"""Values that are looked for."""
_COMMON = re.compile(r"[A-Za-z]*(?:[-_./: ][A-Za-z]+)*|[\d.:-]+")
_LINE = 16
"""Characters of a line of a value (a key in PEM has some) that is looked for by itself."""
_TAIL = re.compile(rb"[A-Za-z0-9+/_-]{0,4}+={0,2}+")
_MARKER = markers.marker("secret")


_HEAD = 4
"""Bytes by which it is told whether a form may begin somewhere; each has more."""


@dataclass(frozen=True, kw_only=True)
class _Sought:
    """All forms of all values, made ready to be looked for."""

    automaton: ahocorasick_rs.BytesAhoCorasick
    are_base64: list[bool]
    forms: list[bytes]
    """In order."""
    heads: frozenset[bytes]
    """The first bytes of the secrets."""
    longest: int
    """Bytes."""

    @classmethod
    def build(cls, forms: Mapping[bytes, bool]) -> _Sought:
        """`forms`, and whether they are base64."""
        return cls(
            automaton=ahocorasick_rs.BytesAhoCorasick(forms, matchkind=ahocorasick_rs.MatchKind.LeftmostLongest),
            are_base64=list(forms.values()),
            forms=sorted(forms),
            heads=frozenset(form[:_HEAD] for form in forms),
            longest=max(map(len, forms)),
        )

    def places(self, doc: bytes) -> Iterator[tuple[int, int]]:
        """Where forms stand, from the beginning to the end, with what belongs to them."""
        for index, start, end in self.automaton.find_matches_as_indexes(doc):
            tail = _TAIL.match(doc, end) if self.are_base64[index] else None
            yield start, tail.end() if tail else end

    def settled(self, doc: bytes) -> int:
        """How much of `doc` stands whatever follows: behind it a form may have begun, or one may yet become longer."""
        at = max(0, len(doc) - self.longest)
        while at < len(doc) and not self._may_begin(doc, at):
            at += 1
        matches = self.automaton.find_matches_as_indexes(doc)
        across = (start for _, start, end in matches if start < at < end)
        return next(across, at)

    def _may_begin(self, doc: bytes, at: int) -> bool:
        """Whether all that stands behind `at` is the beginning of a form, but not all of it."""
        if len(doc) - at >= _HEAD and doc[at : at + _HEAD] not in self.heads:
            return False
        rest = doc[at:]
        following = bisect.bisect_right(self.forms, rest)
        return following < len(self.forms) and self.forms[following].startswith(rest)


class KnownSecrets:
    """The values that this process was given, as far as they differ from common words."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: tuple[str, ...] = ()
        self._sought: _Sought | None = None
        self._pepper = b""
        self.add(values)

    def set_pepper(self, pepper: str) -> None:
        """Set the secret part of all fingerprint keys: once, so that a value keeps its fingerprint."""
        self._pepper = pepper.encode("utf-8", "surrogatepass")

    def add(self, values: Iterable[str]) -> None:
        """Mask these values too; beyond VALUES_MAX the oldest are forgotten."""
        spellings = (spelling for value in values for spelling in _searchable(value))
        values_kept = tuple(dict.fromkeys((*spellings, *self._values)))[:VALUES_MAX]
        forms: dict[bytes, bool] = {}
        for value in values_kept:
            for form, is_base64 in _forms(value):
                forms.setdefault(form, is_base64)
        self._values = values_kept
        self._sought = _Sought.build(forms) if forms else None

    def mask(self, text: str) -> str:
        """`text` without what was given; nothing else of it is changed."""
        if self._sought is None:
            return text
        doc = text.encode("utf-8", "surrogatepass")
        masked = self.mask_bytes(doc)
        return text if masked is doc else masked.decode("utf-8", "surrogatepass")

    def mask_beginning(self, text: str) -> str:
        """The same of a text that goes on, as far as it stands whatever follows: a value may have begun at its end."""
        if (sought := self._sought) is None:
            return text
        doc = text.encode("utf-8", "surrogatepass")
        return self.mask_bytes(doc[: sought.settled(doc)]).decode("utf-8", "surrogatepass")

    def mask_json(self, value: Any) -> Any:
        """JSON, the same for all texts in it; `value` itself where there is nothing to mask."""
        if self._sought is None or (text := json.dumps(value, ensure_ascii=False)) == self.mask(text):
            return value
        return self._texts(value)

    def _texts(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {self.mask(key): self._texts(below) for key, below in value.items()}
        return [self._texts(below) for below in value] if isinstance(value, list | tuple) else value

    def mask_bytes(self, doc: bytes) -> bytes:
        """The same of bytes; `doc` itself where it has none."""
        if (sought := self._sought) is None:
            return doc
        spans = (edits.around(doc, *span) for span in sought.places(doc))
        changes = [edits.Edit(*span, _MARKER) for span in spans if span is not None]
        return edits.apply(doc, changes) if changes else doc

    def fingerprint_key(self, investigation: str) -> bytes:
        """Return the key of an investigation's fingerprints."""
        return markers.fingerprint_key(investigation, pepper=self._pepper)


def _searchable(value: str) -> Iterator[str]:
    """Yield the searchable forms of a value: all of it, and each of several lines."""
    value = value.strip()
    if _can_be_told(value):
        yield value[:LONGEST]
    lines = value.splitlines()
    if len(lines) > 1:
        long = (line for line in map(str.strip, lines) if len(line) >= _LINE and not line.startswith("-----"))
        yield from filter(_can_be_told, long)


def _can_be_told(value: str) -> bool:
    if "MASKED" in value:
        return False
    return len(value) >= (SHORTEST_COMMON if _COMMON.fullmatch(value) else SHORTEST)


def _forms(value: str) -> Iterator[tuple[bytes, bool]]:
    """How a value may be written, and whether that is base64, which goes on behind it."""
    doc = value.encode("utf-8", "surrogatepass")
    for written in dict.fromkeys((value, *_written(value))):
        yield written.encode("utf-8", "surrogatepass"), False
    for infix in encodings.base64_infixes(doc):
        yield infix, True
        yield infix.translate(_URL_SAFE), True
    yield doc.hex().encode(), False
    yield doc.hex().upper().encode(), False


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _written(value: str) -> Iterator[str]:
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    in_json |= {"".join(_GO.get(character, character) for character in form) for form in in_json}
    in_json |= {form.replace("/", "\\/") for form in in_json}
    for form in sorted(in_json):
        yield form
        yield json.dumps(form)[1:-1]
    for quoted in (
        urllib.parse.quote(value, safe="", errors="surrogatepass"),
        urllib.parse.quote(value, errors="surrogatepass"),
        urllib.parse.quote_plus(value, errors="surrogatepass"),
    ):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
    yield html.escape(value)
    yield html.escape(value, quote=False)
    yield value.replace("'", "''")
    yield value.replace("'", "\\'")


_GO = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}
"""The characters that Go's JSON escapes."""

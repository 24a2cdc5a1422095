"""Known secrets: the values that this process was given, masked by value in all that it stores, sends and shows.

They are keys of providers, tokens, the database's password, and the settings that MCP servers are started with. They
are masked, even without a name before them. One automaton (Aho-Corasick) finds all of them at once, plain and as JSON,
URLs, HTML, hex and base64 write them, also within a longer text in base64.

`process` builds one KnownSecrets and hands it to the log, the maskers, the clients and the views. A reload of the
platform file adds values to it. Former values stay known as long as there is space, because a run may still hold them.

A value is masked if it differs from common text: from 8 characters on, and from 16 on if it is only words or only
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
"""The minimal length of a value that is masked, in characters."""
SHORTEST_COMMON = 16
"""The minimal length of a value that is only words or only digits."""
LONGEST = 8 * 1024
"""Characters of a value that are searched for; of a longer value that is its beginning, and each of its lines."""
VALUES_MAX = 2000
"""The maximal number of values."""
_COMMON = re.compile(r"[A-Za-z]*(?:[-_./: ][A-Za-z]+)*|[\d.:-]+")
_LINE = 16
"""The minimal length of a line of a value, such as a key in PEM, that is masked by itself."""
_TAIL = re.compile(rb"[A-Za-z0-9+/_-]{0,4}+={0,2}+")
_MARKER = markers.marker("secret")


_HEAD = 4
"""The first bytes of a spelling, which show whether one may begin at a position; each spelling is longer."""


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for all spellings of all values."""

    automaton: ahocorasick_rs.BytesAhoCorasick
    are_base64: list[bool]
    forms: list[bytes]
    """The spellings, sorted."""
    heads: frozenset[bytes]
    """The first bytes of the spellings."""
    longest: int
    """The length of the longest spelling in bytes."""

    @classmethod
    def build(cls, forms: Mapping[bytes, bool]) -> _Search:
        """Build the search; `forms` has the spellings, each with whether it is base64."""
        return cls(
            automaton=ahocorasick_rs.BytesAhoCorasick(forms, matchkind=ahocorasick_rs.MatchKind.LeftmostLongest),
            are_base64=list(forms.values()),
            forms=sorted(forms),
            heads=frozenset(form[:_HEAD] for form in forms),
            longest=max(map(len, forms)),
        )

    def spans(self, doc: bytes) -> Iterator[tuple[int, int]]:
        """Yield the spans of the matches in order; that of base64 includes the rest of its last group."""
        for index, start, end in self.automaton.find_matches_as_indexes(doc):
            tail = _TAIL.match(doc, end) if self.are_base64[index] else None
            yield start, tail.end() if tail else end

    def final_length(self, doc: bytes) -> int:
        """Return the length of the part of `doc` in which no later text can complete or extend a match."""
        at = max(0, len(doc) - self.longest)
        while at < len(doc) and not self._may_begin(doc, at):
            at += 1
        matches = self.automaton.find_matches_as_indexes(doc)
        across = (start for _, start, end in matches if start < at < end)
        return next(across, at)

    def _may_begin(self, doc: bytes, at: int) -> bool:
        """Return whether the rest of `doc` from `at` on is the beginning of a longer spelling."""
        if len(doc) - at >= _HEAD and doc[at : at + _HEAD] not in self.heads:
            return False
        rest = doc[at:]
        following = bisect.bisect_right(self.forms, rest)
        return following < len(self.forms) and self.forms[following].startswith(rest)


class KnownSecrets:
    """The known secrets of a process, as far as they differ from common words; values can be added at any time."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: tuple[str, ...] = ()
        self._search: _Search | None = None
        self._pepper = b""
        self.add(values)

    def set_pepper(self, pepper: str) -> None:
        """Set the secret part of all fingerprint keys: once, so that a value keeps its fingerprint."""
        self._pepper = pepper.encode("utf-8", "surrogatepass")

    def add(self, values: Iterable[str]) -> None:
        """Mask these values too; beyond VALUES_MAX the oldest are forgotten."""
        added = (text for value in values for text in _searchable(value))
        self._values = tuple(dict.fromkeys((*added, *self._values)))[:VALUES_MAX]
        forms: dict[bytes, bool] = {}
        for value in self._values:
            for form, is_base64 in _forms(value):
                forms.setdefault(form, is_base64)
        self._search = _Search.build(forms) if forms else None

    def mask(self, text: str) -> str:
        """Return `text` with markers in the place of known secrets."""
        if self._search is None:
            return text
        doc = text.encode("utf-8", "surrogatepass")
        masked = self.mask_bytes(doc)
        return text if masked is doc else masked.decode("utf-8", "surrogatepass")

    def mask_beginning(self, text: str) -> str:
        """Mask the beginning of a growing text; an end that may be the beginning of a secret is left out."""
        if (search := self._search) is None:
            return text
        doc = text.encode("utf-8", "surrogatepass")
        return self.mask_bytes(doc[: search.final_length(doc)]).decode("utf-8", "surrogatepass")

    def mask_json(self, value: Any) -> Any:
        """Mask all texts of a JSON value; return `value` itself if there is nothing to mask."""
        if self._search is None or (text := json.dumps(value, ensure_ascii=False)) == self.mask(text):
            return value
        return self._mask_json(value)

    def _mask_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {self.mask(key): self._mask_json(member) for key, member in value.items()}
        return [self._mask_json(member) for member in value] if isinstance(value, list | tuple) else value

    def mask_bytes(self, doc: bytes) -> bytes:
        """Mask UTF-8; return `doc` itself if there is nothing to mask."""
        if (search := self._search) is None:
            return doc
        spans = (edits.around(doc, *span) for span in search.spans(doc))
        changes = [edits.Edit(*span, _MARKER) for span in spans if span is not None]
        return edits.apply(doc, changes) if changes else doc

    def fingerprint_key(self, investigation: str) -> bytes:
        """Return the key of an investigation's fingerprints."""
        return markers.fingerprint_key(investigation, pepper=self._pepper)


def _searchable(value: str) -> Iterator[str]:
    """Yield the texts that are searched for: the value, and each of its lines if it has several."""
    value = value.strip()
    if _is_distinct(value):
        yield value[:LONGEST]
    lines = value.splitlines()
    if len(lines) > 1:
        long = (line for line in map(str.strip, lines) if len(line) >= _LINE and not line.startswith("-----"))
        yield from filter(_is_distinct, long)


def _is_distinct(value: str) -> bool:
    if "MASKED" in value:
        return False
    return len(value) >= (SHORTEST_COMMON if _COMMON.fullmatch(value) else SHORTEST)


def _forms(value: str) -> Iterator[tuple[bytes, bool]]:
    """Yield the spellings of a value, each with whether it is base64, whose last group may continue after it."""
    doc = value.encode("utf-8", "surrogatepass")
    for spelling in dict.fromkeys((value, *_escaped(value))):
        yield spelling.encode("utf-8", "surrogatepass"), False
    for infix in encodings.base64_infixes(doc):
        yield infix, True
        yield infix.translate(_URL_SAFE), True
    yield doc.hex().encode(), False
    yield doc.hex().upper().encode(), False


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _escaped(value: str) -> Iterator[str]:
    """Yield a value as JSON, URLs, HTML, YAML and shells escape it."""
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

"""Repeats of secrets: a secret that is found once in a text is masked wherever the text repeats it.

A password follows its name in one line and stands alone in the next; a Secret's value in base64 is plain in the log of
the container that reads it. So all secrets that other modules find are searched for in the whole text by one automaton
(Aho-Corasick): as they were found, decoded, and in base64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import ahocorasick_rs

from tarsy.masking import budgets, edits, encodings, markers, rules, secret_names

_SHORTEST, _LONGEST = 8, 1024
"""The limits of a value's length in bytes."""
_FORMS_MAX = 500_000
"""The maximal length of all spellings of one text in bytes, which bounds the automaton; others are not searched for."""
_KINDS = {
    markers.marker(name)
    for name in (
        *("api_key", "aws_access_key", "aws_secret_key", "github_token", "password", "private_key", "secret"),
        *("secret_key", "slack_token", "ssh_key", "token"),
    )
}
_QUOTES = {b'"', b"'"}
_WORD = re.compile(rb"(?:[^\s\\\"']|\\(?![nrt\\\"']))++")
_TAIL = re.compile(rb"[A-Za-z0-9+/]{0,4}+={0,2}+")
_CREDENTIALS = re.compile(rb"(?:[^\s/@:]*+://)?[^\s/@:]*+:([^\s/@]++)(?:@.*+)?")
"""User and password in a URL or a header; the group is the password."""
_DISTINCT = rules.rule(
    rb"[!-~\x80-\xff]*(?:[A-Za-z][!-~\x80-\xff]*[0-9!#$%^&*+=@~?|\x80-\xff]"
    rb"|[0-9!#$%^&*+=@~?|\x80-\xff][!-~\x80-\xff]*[A-Za-z])[!-~\x80-\xff]*|[A-Za-z]{20,}"
)
_PRONOUNCEABLE = (
    rb"(?:[A-Z]{0,4}(?:[a-z]{2,}[aeiouy][a-z]*|[a-z][aeiouy][a-z]+|[aeiouy][a-z]{2,})"
    rb"|[AEIOU][a-z]{2,}|[A-Z]{1,4}[aeiouy][a-z])"
)
"""A word with vowels among its consonants."""
_CAMEL = rb"%b(?:(?:[A-Z]{2,5}[0-9]{1,3}|[A-Z][aeiouy]|[AEIOU][a-z])?%b)*(?:[A-Z]{1,3}|[A-Z]?[0-9]{1,2})?" % (
    _PRONOUNCEABLE,
    _PRONOUNCEABLE,
)
_PART = (
    rb"[a-z]+[0-9]{0,4}|[A-Z]+v?[0-9]{0,4}|[0-9]+[a-z]{0,10}|(?:[a-z]{1,4}[0-9]{1,3}){2}|[A-Z]?[a-z]+[0-9]+[a-zA-Z]?|%b"
    % _CAMEL
)
"""A word, a number, and what people make of both: `utf8mb4`, `AES256`, `1password`, `Xmx1024m`, `PostgreSQL95`."""
_COMMON = rules.rule(
    rb"[a-z]+[0-9]*(?:[-._][a-z0-9]+)+|[A-Z]?[a-z][a-z-]*[0-9]{0,2}|[A-Z][A-Z_]*[0-9]{0,2}|[0-9][0-9.,:]*[A-Za-z%%]{0,3}"
    rb"|0x[0-9a-f]+|[0-9-]{10}[T ][0-9:.Z+-]+|[a-z+]+://[^@\s]*|[~.]{0,2}(?:/[\w.-]+)+/?|[\w.]+[(\[].*|.*\[MASKED.*"
    rb"|[a-z0-9.-]+(?:/[a-z0-9._-]+)+(?::[\w.-]+)?|sha256:[0-9a-f]{64}"
    rb"|%b|[-_.:/+@]*(?:%b)(?:[-_.:/,+@=&]+(?:%b|[0-9a-z]{1,10}))+|-[A-Za-z]+[0-9]+[A-Za-z]?" % (_CAMEL, _PART, _PART)
)
"""Names of objects, words, numbers, times, addresses, paths, calls, images: texts with other uses."""
_ASSIGNED = re.compile(rb"(?:[A-Z][A-Z0-9_]*+|[a-z][a-z_.-]*+)=(?=[^=])")
_READ_MAX = 16 * 1024
"""Bytes of a masked span that are read for values."""
_COST, _VALUE_COST, _FORM_COST, _MATCH_COST, _BYTES_A_STEP, _FINGERPRINT_COST = 12, 6, 12, 14, 4, 8


class Repeats:
    """The secrets that were found in one text, and the search for their repeats."""

    def __init__(self, budget: budgets.Budget, *, key: bytes = b"") -> None:
        """With a `key`, markers get fingerprints (see `markers`)."""
        self._budget = budget
        self._key = key
        self._forms: dict[bytes, tuple[bytes, bool]] = {}
        """The spellings, each with its marker, and whether it is the beginning of a base64 text."""
        self._bytes_left = _FORMS_MAX
        self._automaton: ahocorasick_rs.BytesAhoCorasick | None = None

    def fingerprinted(self, doc: bytes, changes: Sequence[edits.Edit]) -> Sequence[edits.Edit]:
        """Return the `changes` to `doc`, with fingerprints in their markers if there is a key."""
        if not self._key:
            return changes
        return [
            change._replace(text=self._fingerprinted(change.text, doc[change.start : change.end]))
            for change in self._budget.metered(changes, cost=_FINGERPRINT_COST)
        ]

    def apply(self, doc: bytes, changes: Iterable[edits.Edit]) -> bytes:
        """Return `doc` with all `changes`, which may overlap, and with fingerprints if there is a key."""
        return edits.apply(doc, self.fingerprinted(doc, edits.merged(changes)))

    def _fingerprinted(self, marker: bytes, value: bytes) -> bytes:
        self._budget.spend(len(value) // _BYTES_A_STEP)
        return markers.add_fingerprint(marker, value, key=self._key) if self._key else marker

    def add(self, doc: bytes, changes: Iterable[edits.Edit]) -> None:
        """Add the values that `changes` mask in `doc`, if they are long enough and no words or names."""
        for change in self._budget.metered(changes, cost=_COST):
            marker = change.text.strip(b' \\"')
            if marker in _KINDS and change.end - change.start >= _SHORTEST:
                text = doc[change.start : min(change.end, change.start + _READ_MAX)]
                self._budget.spend(len(text) // _BYTES_A_STEP)
                for value in self._budget.metered(_values(text), cost=_VALUE_COST):
                    self._add_value(value, marker)

    def _add_value(self, value: bytes, marker: bytes) -> None:
        if not _is_distinct(value) or value in self._forms:
            return
        marker = self._fingerprinted(marker, value)
        self._add_form(value, marker, is_head=False)
        for head in encodings.base64_infixes(value):
            self._add_form(head, marker, is_head=True)

    def _add_form(self, form: bytes, marker: bytes, *, is_head: bool) -> None:
        self._budget.spend(_FORM_COST + len(form) // 8)
        if form not in self._forms and self._bytes_left >= len(form):
            self._bytes_left -= len(form)
            self._forms[form] = marker, is_head
            self._automaton = None

    def mask(self, doc: bytes) -> bytes:
        """Return `doc` with the repeats masked."""
        if not self._forms:
            return doc
        return edits.apply(doc, self._matches(doc))

    def _matches(self, doc: bytes) -> Iterator[edits.Edit]:
        if self._automaton is None:
            self._automaton = ahocorasick_rs.BytesAhoCorasick(
                self._forms, matchkind=ahocorasick_rs.MatchKind.LeftmostLongest
            )
        forms = list(self._forms.values())
        for index, start, end in self._budget.metered(self._automaton.find_matches_as_indexes(doc), cost=_MATCH_COST):
            marker, is_head = forms[index]
            if is_head and (tail := _TAIL.match(doc, end)):
                end = tail.end()
            if (span := edits.around(doc, start, end)) is not None:
                yield edits.Edit(*span, marker)


def _values(text: bytes) -> Iterator[bytes]:
    """Yield the values of a masked span: its value, or the key-like words in it; of base64 also the decoded words."""
    text = text.strip(edits.SPACE).lstrip(b"\\")
    if (quote := text[:1]) in _QUOTES and text.endswith(quote):
        text = text[1:-1].rstrip(b"\\")
    words = _WORD.findall(text)
    for value in words if len(words) == 1 else [word for word in words if secret_names.is_blob(word)]:
        yield value
        for word in _WORD.findall(encodings.decode_base64(value).strip(edits.SPACE) or value):
            yield word
            if credentials := _CREDENTIALS.fullmatch(word):
                yield credentials[1]


def _is_distinct(value: bytes) -> bool:
    if assigned := _ASSIGNED.match(value):
        value = value[assigned.end() :]
    return (
        _SHORTEST <= len(value) <= _LONGEST
        and _DISTINCT.fullmatch(value) is not None
        and _COMMON.fullmatch(value) is None
    )

"""Words that a pattern cannot match without, all of them looked for at once.

A pattern takes two microseconds to find nothing in a short text, and there are fifty. Most need a word that few texts
have, so one automaton (Aho-Corasick) tells, in a microsecond, which of them are worth asking.
"""

from __future__ import annotations

from collections.abc import Iterable

import ahocorasick_rs

_WINDOW = 4096
"""Bytes that are looked at together, which bounds the list of words that are found."""


class Prefilter:
    """The words that each pattern of a table needs."""

    def __init__(self, needs: Iterable[bytes]) -> None:
        """Take the words of each pattern, in lower case and with `|` between: one of them is in all that it matches.

        A pattern that needs none may find something anywhere.
        """
        owners: dict[bytes, list[int]] = {}
        for number, words in enumerate(needs):
            for word in words.split(b"|"):
                owners.setdefault(word, []).append(number)
        self._always = frozenset(owners.pop(b"", ()))
        self._owners = list(owners.values())
        self._automaton = ahocorasick_rs.BytesAhoCorasick(owners)
        self._longest = max(map(len, owners))

    def may_find(self, doc: bytes) -> frozenset[int]:
        """The numbers of the patterns that may find something in `doc`."""
        words = {
            word
            for start in range(0, len(doc), _WINDOW)
            for word, _, _ in self._automaton.find_matches_as_indexes(
                doc[start : start + _WINDOW + self._longest].lower(), overlapping=True
            )
        }
        return self._always.union(*(self._owners[word] for word in words))

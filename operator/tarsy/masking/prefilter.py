"""A prefilter of patterns by the words that they need, all of which are searched for at once.

A pattern takes two microseconds to find nothing in a short text, and there are fifty. Most need a word that few texts
have, so one automaton (Aho-Corasick) finds in a microsecond which patterns have to run.
"""

from __future__ import annotations

from collections.abc import Iterable

import ahocorasick_rs

_WINDOW = 4096
"""Bytes that are searched together, which bounds the list of matches."""


class Prefilter:
    """The words that each pattern of a table needs, and the search for all of them."""

    def __init__(self, needs: Iterable[bytes]) -> None:
        """`needs` has the words of each pattern, in lower case and joined by `|`: each match contains one of them.

        A pattern with an empty text always runs.
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
        """Return the numbers of the patterns that may match in `doc`."""
        words = {
            word
            for start in range(0, len(doc), _WINDOW)
            for word, _, _ in self._automaton.find_matches_as_indexes(
                doc[start : start + _WINDOW + self._longest].lower(), overlapping=True
            )
        }
        return self._always.union(*(self._owners[word] for word in words))

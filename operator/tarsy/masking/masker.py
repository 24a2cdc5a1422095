"""The masker: what every alert and every tool result goes through before it is stored or sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tarsy.masking import efforts, patterns, repeats, secrets

_PASSES = 8
_FREE_STEPS = 150_000
_STEPS_A_PASS, _STEPS = 0.5, 0.65
"""For each byte. What clusters print takes 0.1 to 0.7, two passes together; Secrets without end take the most."""
_MEGABYTE = 1_000_000
_SECONDS, _SECONDS_A_MEGABYTE = 2.0, 0.5


class UnknownGroupError(ValueError):
    """A group of patterns that there is not; the message lists what there is."""


class Masker:
    """Masks text: Kubernetes' Secrets by structure, always, and what the chosen patterns find."""

    def __init__(self, *, groups: Iterable[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """Choose groups of patterns; an UnknownGroupError names the first that there is not."""
        self._names = frozenset(name for group in groups for name in _named(group))
        self._clock = clock

    def text(self, text: str) -> str:
        """`text` with markers, such as `[MASKED:password]`, where secrets were.

        Masking twice changes nothing. Takes any text, in time linear in its length: what cannot be parsed is read as
        plain text. A text that asks for more work than any honest one, or for more than 2 s and 0.5 s for each
        megabyte beyond the first, is withheld, and `withheld` stands for all of it. More than 64 KB belong into a
        thread.
        """
        doc = text.encode("utf-8", "surrogatepass")
        try:
            return self._masked(doc).decode("utf-8", "surrogatepass")
        except efforts.TooMuchWorkError:
            return withheld(len(doc))

    def _masked(self, doc: bytes) -> bytes:
        size = len(doc)
        seconds = _SECONDS + _SECONDS_A_MEGABYTE * max(0, size - _MEGABYTE) / _MEGABYTE
        effort = efforts.Effort(_FREE_STEPS + int(_STEPS * size), clock=self._clock, seconds=seconds)
        found = repeats.Repeats(effort)
        for _ in range(_PASSES):
            effort.begin(_FREE_STEPS + int(_STEPS_A_PASS * size))
            masked = found.mask(patterns.mask(secrets.mask(doc, effort, found), self._names, effort, found))
            effort.in_time()
            if masked == doc:
                return doc
            doc = masked
        raise efforts.TooMuchWorkError


def withheld(size: int) -> str:
    """What stands for a text of so many bytes that was not masked in time."""
    return f"[MASKED:withheld] (all {size} bytes: there was no time to look through a text like this one)"


def _named(group: str) -> Iterable[str]:
    if group not in patterns.GROUPS:
        raise UnknownGroupError(
            f"unknown pattern group {group!r}; available groups: {', '.join(sorted(patterns.GROUPS))}"
        )
    return patterns.GROUPS[group]

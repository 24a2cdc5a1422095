"""The masker: what every alert and every tool result goes through before it is stored or sent."""

from __future__ import annotations

from collections.abc import Iterable

from tarsy.masking import patterns, secrets

_PASSES = 4


class UnknownPatternError(ValueError):
    """A pattern or a group of them that there is not; the message lists what there is."""


class Masker:
    """Masks text: Kubernetes' Secrets by structure, always, and what the chosen patterns find."""

    def __init__(self, *, groups: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        """Choose patterns, by group and by name; an UnknownPatternError names the first that there is not."""
        self._names = frozenset(_names(groups, patterns))

    def text(self, text: str) -> str:
        """`text` with markers, such as `[MASKED:password]`, where secrets were.

        Masking twice changes nothing. Takes any text, in time linear in its length: what cannot be parsed is read as
        plain text. A megabyte takes 0.02 to 0.5 s, a hostile one up to 2 s:
        more than 64 KB belong into a thread.
        """
        doc = text.encode("utf-8", "surrogatepass")
        for _ in range(_PASSES):
            masked = patterns.mask(secrets.mask(doc), self._names)
            if masked == doc:
                break
            doc = masked
        return doc.decode("utf-8", "surrogatepass")


def _names(groups: Iterable[str], single: Iterable[str]) -> Iterable[str]:
    for group in groups:
        if group not in patterns.GROUPS:
            raise UnknownPatternError(
                f"unknown pattern group {group!r}; available groups: {', '.join(sorted(patterns.GROUPS))}"
            )
        yield from patterns.GROUPS[group]
    for name in single:
        if name not in patterns.NAMES:
            raise UnknownPatternError(
                f"unknown pattern {name!r}; available patterns: {', '.join(sorted(patterns.NAMES))}"
            )
        yield name

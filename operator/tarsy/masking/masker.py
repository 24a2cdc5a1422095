"""The masker: what every alert and every tool result goes through before it is stored or sent."""

from __future__ import annotations

from collections.abc import Iterable

from tarsy.masking import patterns, secrets

_PASSES = 4


class UnknownGroupError(ValueError):
    """A group of patterns that there is not; the message lists what there is."""


class Masker:
    """Masks text: Kubernetes' Secrets by structure, always, and what the chosen patterns find."""

    def __init__(self, *, groups: Iterable[str] = ()) -> None:
        """Choose groups of patterns; an UnknownGroupError names the first that there is not."""
        self._names = frozenset(name for group in groups for name in _named(group))

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


def _named(group: str) -> Iterable[str]:
    if group not in patterns.GROUPS:
        raise UnknownGroupError(
            f"unknown pattern group {group!r}; available groups: {', '.join(sorted(patterns.GROUPS))}"
        )
    return patterns.GROUPS[group]

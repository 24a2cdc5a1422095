"""Detection of a stream that repeats itself: its end is one passage, over and over.

A model that has begun this does not stop by itself, and its output costs until a limit ends it. Passages are compared
character by character, so log lines that differ in a timestamp or a number do not count.
"""

from __future__ import annotations

TAIL = 6_000
"""Characters at the end of a stream that are nothing but one passage repeated."""
LONGEST = 500
"""Characters of the longest passage. There is no shortest: what repeats a shorter one repeats twice as long a one."""
EVERY = 250
"""Characters between two looks, so that none costs more than a few of the characters it is about."""


class Watch:
    """Looks at the end of one stream, at each 250th character, however the stream is cut into pieces."""

    def __init__(self) -> None:
        self._tail = ""
        self._pieces: list[str] = []
        self._size = 0
        """The characters of all pieces; the tail was checked."""

    def add(self, piece: str) -> int:
        """Take what came next; the length of the passage, if the stream has come to repeat one, or else 0."""
        self._pieces.append(piece)
        self._size += len(piece)
        return self._repeated_length() if self._size >= EVERY else 0

    def _repeated_length(self) -> int:
        text = self._tail + "".join(self._pieces)
        seen = len(self._tail)
        ends = range(seen + EVERY, len(text) + 1, EVERY)
        passage_length = next(
            (length for end in ends if end >= TAIL and (length := passage(text[end - TAIL : end]))), 0
        )
        looked_at = ends[-1]
        self._tail = text[max(0, looked_at - TAIL) : looked_at]
        self._pieces = [text[looked_at:]]
        self._size = len(text) - looked_at
        return passage_length


def passage(tail: str) -> int:
    """The length of the shortest passage of which all of `tail` consists, the last time perhaps not whole; or else 0.

    One comparison is enough. If `tail`, of twice the longest passage at least, repeats any passage, then the shortest
    one that its beginning can repeat divides that passage (Fine and Wilf), so all of `tail` repeats it as well.
    """
    length = tail.find(tail[:LONGEST], 1, 2 * LONGEST)
    return length if length > 0 and tail.startswith(tail[length:]) else 0

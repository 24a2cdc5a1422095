"""The standard error of a stdio MCP server, as lines of our log.

It is as foreign as an alert: lines are masked, cut, cleaned of control characters, and limited in number. Lines beyond
the limit are counted and dropped, so that a child that writes without end fills neither our log nor our memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tarsy.masking import masker

LINE_MAX = 1024
"""Characters of a line that are logged."""
KEPT_MAX = 4 * LINE_MAX
"""Bytes of a line that are kept for it: UTF-8 takes up to four for a character."""
BURST = 50
"""Lines that are logged at once."""
SECONDS = 0.02
"""For so long lines are masked that came at once; the rest of them is dropped."""
LINES_A_SECOND = 2.0
"""Lines that are logged of a server that goes on and on."""

log = logging.getLogger(__name__)


class Chatter:
    """The standard error of one server, through all of its lives."""

    def __init__(self, server: str, *, mask: Callable[[str], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._mask = mask
        self._clock = clock
        self._allowed = float(BURST)
        self._counted = clock()
        self._line = b""
        self._cut = False
        self._dropped = 0

    def write(self, chunk: bytes) -> None:
        """Log the lines that `chunk` ends; the time it takes does not grow with lines that are dropped."""
        self._refill()
        start, begun = 0, self._clock()
        while self._allowed >= 1 and self._clock() - begun < SECONDS and (end := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk[start:end])
            self._end_line()
            start = end + 1
        rest = chunk[start:]
        if (dropped := rest.count(b"\n")) > 0:
            self._dropped += dropped
            self._line, self._cut = b"", False
            rest = rest[rest.rfind(b"\n") + 1 :]
        self._keep(rest)

    def close(self) -> None:
        """Log what the server wrote last, though it did not end its line, and how much was dropped."""
        self._refill()
        if self._line and self._allowed >= 1:
            self._end_line()
        self._line, self._cut = b"", False
        self._tell_dropped()

    def _keep(self, chunk: bytes) -> None:
        room = KEPT_MAX - len(self._line)
        self._cut = self._cut or len(chunk) > room
        self._line += chunk[:room]

    def _end_line(self) -> None:
        text = self._line.decode("utf-8", "replace")
        cut = self._cut or len(text) > LINE_MAX
        self._line, self._cut = b"", False
        # Masked before it is cut: of a secret that stands across the cut, its pattern would know only a part.
        masked = masker.or_withheld(self._mask, text)[:LINE_MAX]
        text = "".join(character if character.isprintable() else " " for character in masked).strip()
        self._allowed -= 1  # an empty line takes as long to find as any other
        if text:
            self._tell_dropped()
            self._log(text + " [cut]" if cut else text)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._log(f"[{self._dropped} lines are not shown]")
            self._dropped = 0

    def _log(self, text: str) -> None:
        log.info("%s", text, extra={"action": "mcp_stderr", "server": self._server})

    def _refill(self) -> None:
        now = self._clock()
        self._allowed = min(float(BURST), self._allowed + (now - self._counted) * LINES_A_SECOND)
        self._counted = now

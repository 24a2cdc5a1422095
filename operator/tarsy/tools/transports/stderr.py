"""The standard error of a stdio MCP server, as lines of our log.

It is as untrusted as an alert: lines are masked, cut, cleaned of control characters, and limited in number. Lines
beyond the limit are counted and dropped, so that a child that writes without end fills neither the log nor the memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tarsy.masking import masker
from tarsy.tools.transports import token_bucket

LINE_MAX = 1024
"""Characters of a line that are logged."""
READ_MAX = 4 * LINE_MAX
"""Bytes of a line that are read, because UTF-8 takes up to four for a character."""
BURST = 50
"""Lines that are logged at once."""
SECONDS = 0.02
"""The seconds for masking the lines of one chunk; its other lines are dropped."""
LINES_A_SECOND = 2.0
"""Lines that are logged of a server that writes without end."""

log = logging.getLogger(__name__)


class StandardError:
    """The standard error of one server, through all its restarts."""

    def __init__(self, server: str, *, mask: Callable[[str], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._mask = mask
        self._clock = clock
        self._lines = token_bucket.TokenBucket(BURST, LINES_A_SECOND, clock=clock)
        self._line = b""
        self._is_cut = False
        self._dropped = 0

    def write(self, chunk: bytes) -> None:
        """Log the lines that `chunk` completes; its time does not grow with dropped lines."""
        self._lines.refill()
        start, begun = 0, self._clock()
        while self._lines.tokens >= 1 and self._clock() - begun < SECONDS and (end := chunk.find(b"\n", start)) >= 0:
            self._append(chunk[start:end])
            self._end_line()
            start = end + 1
        rest = chunk[start:]
        if (dropped := rest.count(b"\n")) > 0:
            self._dropped += dropped
            self._line, self._is_cut = b"", False
            rest = rest[rest.rfind(b"\n") + 1 :]
        self._append(rest)

    def close(self) -> None:
        """Log an unfinished last line, and the number of dropped lines."""
        if self._line and self._lines.refill() >= 1:
            self._end_line()
        self._line, self._is_cut = b"", False
        self._log_dropped()

    def _append(self, chunk: bytes) -> None:
        left = READ_MAX - len(self._line)
        self._is_cut = self._is_cut or len(chunk) > left
        self._line += chunk[:left]

    def _end_line(self) -> None:
        text = self._line.decode("utf-8", "replace")
        is_cut = self._is_cut or len(text) > LINE_MAX
        self._line, self._is_cut = b"", False
        # Masked before it is cut: the pattern of a secret would not match a part of it.
        masked = masker.or_withheld(self._mask, text)[:LINE_MAX]
        text = "".join(character if character.isprintable() else " " for character in masked).strip()
        self._lines.tokens -= 1  # an empty line takes as long to find as any other
        if text:
            self._log_dropped()
            self._log(text + " [cut]" if is_cut else text)

    def _log_dropped(self) -> None:
        if self._dropped:
            self._log(f"[{self._dropped} lines are not shown]")
            self._dropped = 0

    def _log(self, text: str) -> None:
        log.info("%s", text, extra={"action": "mcp_stderr", "server": self._server})

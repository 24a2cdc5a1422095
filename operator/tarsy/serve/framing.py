"""Request framing that every HTTP parser reads in the same way (RFC 9112, sections 2.2, 5.2, 6.1 and 6.3).

h11 reads lines that end in a bare LF, joins folded headers, and goes by Transfer-Encoding where a Content-Length stands
beside it. A proxy in front that reads any of these otherwise finds another end of the request: what it takes for a body
is then a request here, whose answer reaches the next caller. Such a request is refused and its connection closed.

h11 has no hook for this, so `Lines` takes the place of its receive buffer, which has the bytes of heads and trailers
before they are parsed.
"""

from __future__ import annotations

import re
from typing import NoReturn

import h11
from h11 import _receivebuffer

_END = re.compile(rb"\n\r?\n")
_FOLD = (b" ", b"\t")
_BARE = "a line of it ends in LF without CR"


class Lines(_receivebuffer.ReceiveBuffer):
    """A receive buffer of h11's that refuses ambiguous lines."""

    def __init__(self) -> None:
        """An empty one."""
        super().__init__()
        self.problem = ""
        """The reason of the refusal, for the caller; empty if nothing was refused."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a whole head or trailer, or None if its end has not come yet.

        Raises `h11.LocalProtocolError`, as the parser's own checks do, if another parser could read it otherwise.
        """
        if self._data.startswith(b"\n"):
            self._refuse(_BARE)
        if self._data.startswith(b"\r\n"):
            self._extract(2)
            return []
        end = _END.search(self._data, self._multiple_lines_search)
        if end is None:
            self._multiple_lines_search = max(0, len(self) - 2)
            return None
        block = self._extract(end.end())
        lines = block.split(b"\r\n")
        if block.count(b"\n") != len(lines) - 1:
            self._refuse(_BARE)
        del lines[-2:]  # the empty line, and what follows it
        self._check(lines)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line that tells a chunk's size, or None if its end has not come yet; the same errors."""
        line = super().maybe_extract_next_line()
        if line is not None and (b"\r" in line[:-2] or b"\n" in line[:-2]):
            self._refuse("the line of a chunk's size has a bare CR or LF")
        return line

    def _check(self, lines: list[bytearray]) -> None:
        """Refuse folded lines, and two statements of one body's length."""
        if any(line.startswith(_FOLD) for line in lines):
            self._refuse("a header of it is folded into a second line")
        names = {bytes(line.partition(b":")[0]).strip().lower() for line in lines}
        if b"transfer-encoding" in names:
            if b"content-length" in names:
                self._refuse("it has both Content-Length and Transfer-Encoding")
            if lines[0].endswith(b"HTTP/1.0"):
                self._refuse("it has a Transfer-Encoding, which HTTP/1.0 does not know")

    def _refuse(self, problem: str) -> NoReturn:
        self.problem = problem
        raise h11.LocalProtocolError(problem)

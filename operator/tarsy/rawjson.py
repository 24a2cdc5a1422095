"""JSON from elsewhere before it is parsed: how many values it has, and surrogates that have lost their other half.

A parser makes objects of what it reads, 50 to 100 bytes of memory for two of JSON, so values are counted first. And it
refuses a text that was cut inside an emoji, as honest programs do that count in UTF-16 (RFC 8259, section 8.2).
"""

from __future__ import annotations

import re

_STRING = re.compile(rb'"[^"\r\n]*["\r\n]')
"""A string without escapes; none goes on in another line, be it of JSON or of an event stream."""
_BEGINS = (b",", b"[", b"{")
_HEX = rb"[0-9a-fA-F]"
_PAIR = rb"\\u[dD][89abAB]%b{2}\\u[dD][c-fC-F]%b{2}" % (_HEX, _HEX)
_SURROGATES = re.compile(rb"(?<!\\)((?:\\\\)*)(?:((?:%b){1,1000})|\\u[dD][89a-fA-F]%b{2})" % (_PAIR, _HEX))
"""Pairs of surrogates, or a surrogate alone, behind backslashes that are escaped; none begins within an escape."""
_REPLACEMENT = rb"\ufffd"


class Values:
    """Counts the values of JSON that comes in pieces, without parsing it: text in strings does not count."""

    def __init__(self, most: int) -> None:
        """`most` is the number of values that may come."""
        self.count = 0
        self._most = most
        self._carried = b""

    def feed(self, chunk: bytes) -> bool:
        """Count on; False when there are too many."""
        chunk = (self._carried + chunk).replace(b"\\\\", b"")
        escape = b"\\" if chunk.endswith(b"\\") else b""
        chunk = chunk[: len(chunk) - len(escape)].replace(b'\\"', b"")
        outside, begun, _ = _STRING.sub(b"", chunk).partition(b'"')
        self._carried = begun + escape
        self.count += sum(map(outside.count, _BEGINS))
        return self.count <= self._most


def has_more_values(raw: bytes, most: int) -> bool:
    """Return whether JSON or an event stream, from its beginning or that of a line, has more than `most` values.

    Linear, and cheap where even the commas and brackets of its strings would not be too many.
    """
    return sum(map(raw.count, _BEGINS)) > most and not Values(most).feed(raw)


def repair(raw: bytes) -> bytes:
    """Return JSON with U+FFFD for each surrogate without its other half, and for bytes that are not UTF-8.

    Everything else stays as it is: pairs, other escapes, backslashes that are escaped. Linear.
    """
    if not raw.isascii():
        raw = raw.decode("utf-8", "replace").encode()
    return _SURROGATES.sub(_repaired, raw) if b"\\ud" in raw or b"\\uD" in raw else raw


def _repaired(match: re.Match[bytes]) -> bytes:
    return match[0] if match[2] else match[1] + _REPLACEMENT

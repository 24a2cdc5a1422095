"""JSON before it is parsed: the number of its values, and the repair of lone surrogates.

A parser may need 50 to 100 bytes of memory for two bytes of JSON, so values are counted first. A parser also refuses
half a surrogate pair. Programs that count in UTF-16 write one when they cut a text inside an emoji (RFC 8259, section
8.2).
"""

from __future__ import annotations

import re
from typing import NoReturn

_STRING = re.compile(rb'"[^"\r\n]*["\r\n]')
"""A string without escapes. It ends at the end of its line at the latest, in JSON and in an event stream."""
_BEGINS = (b",", b"[", b"{")
_HEX = rb"[0-9a-fA-F]"
_PAIR = rb"\\u[dD][89abAB]%b{2}\\u[dD][c-fC-F]%b{2}" % (_HEX, _HEX)
_SURROGATES = re.compile(rb"(?<!\\)((?:\\\\)*)(?:((?:%b){1,1000})|\\u[dD][89a-fA-F]%b{2})" % (_PAIR, _HEX))
"""Surrogate pairs or a lone surrogate, after any number of escaped backslashes."""
_REPLACEMENT = rb"\ufffd"


class Values:
    """Counts the values of JSON that arrives in chunks, without parsing it."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        self._carried = b""

    def feed(self, chunk: bytes) -> bool:
        """Count the values of a chunk. Return False if there are more than the limit in all."""
        chunk = (self._carried + chunk).replace(b"\\\\", b"")
        escape = b"\\" if chunk.endswith(b"\\") else b""
        chunk = chunk[: len(chunk) - len(escape)].replace(b'\\"', b"")
        outside, begun, _ = _STRING.sub(b"", chunk).partition(b'"')
        self._carried = begun + escape
        self.count += sum(map(outside.count, _BEGINS))
        return self.count <= self._limit


def has_more_values(raw: bytes, limit: int) -> bool:
    """Return whether JSON or an event stream has more than `limit` values. It must begin with a whole line.

    This takes linear time. It is fast if there are at most `limit` commas and brackets, including those in strings.
    """
    return sum(map(raw.count, _BEGINS)) > limit and not Values(limit).feed(raw)


def repair(raw: bytes) -> bytes:
    """Return JSON with U+FFFD in place of lone surrogates and of bytes that are not UTF-8. This takes linear time.

    Surrogate pairs, other escapes and escaped backslashes stay.
    """
    if not raw.isascii():
        raw = raw.decode("utf-8", "replace").encode()
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    return _SURROGATES.sub(lambda match: match[0] if match[2] else match[1] + _REPLACEMENT, raw)


def refuse_constant(name: str) -> NoReturn:
    """Raise a ValueError: JSON has no NaN and no Infinity, although Python's parser takes them."""
    raise ValueError(f"{name} is not JSON")

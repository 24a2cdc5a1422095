"""Base64: its decoded texts, and its parts that contain a value."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{8,}+={0,2}+")
_STANDARD = bytes.maketrans(b"-_", b"+/")


def decode_base64(value: bytes) -> bytes:
    """Return the UTF-8 text that `value` encodes, also in the URL-safe alphabet; b"" if it encodes none."""
    if _BASE64.fullmatch(value) is None:
        return b""
    try:
        decoded = base64.b64decode(value.translate(_STANDARD), validate=True)
        decoded.decode()
    except (binascii.Error, UnicodeDecodeError):
        return b""
    return decoded


def base64_infixes(value: bytes) -> Iterator[bytes]:
    """Yield the common parts of all base64 texts that contain `value`, by its offset in a group of three bytes."""
    for before, lost in ((0, 0), (1, 2), (2, 3)):
        yield base64.b64encode(bytes(before) + value)[lost : (before + len(value)) // 3 * 4]

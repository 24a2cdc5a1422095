"""Fingerprints: four digits in a marker, equal for equal secrets: `[MASKED:token:7f3a]`.

They come from an HMAC whose key belongs to one investigation, so that they say nothing beside another's. Four hex
digits are 16 bits: two secrets of one investigation look alike once in 65,536 times. A person who can have texts masked
with that key, and reads the result, can test guesses: a guess with the right fingerprint is the secret in all but one
of 65,536 cases. So fingerprints are off unless they are asked for, and alerts never have them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from tarsy.masking import edits

_DIGITS = 4
_AROUND = edits.SPACE + b"\\\"'`"
"""The characters around a value that are no part of it."""
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{8,}+={0,2}+")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_LONGEST = 16 * 1024
"""Bytes of a value that are looked at for base64."""


def key(investigation: str, *, pepper: bytes) -> bytes:
    """The key of an investigation; `pepper` is what keeps those who know its id from making it."""
    return hmac.digest(pepper, investigation.encode("utf-8", "surrogatepass"), hashlib.sha256)


def marker(text: bytes, value: bytes, *, key: bytes) -> bytes:
    """`text`, which is to stand for `value`: with the digits of the value, where it is a marker.

    A value in which a secret is masked already is none any more: its digits are those of the marker in it, or none.
    """
    bare = text.strip(_AROUND)
    match = edits.MARKED.fullmatch(bare)
    if match is None or match[1]:
        return text
    masked = edits.MARKED.search(value)
    if masked is not None:
        digits = masked[1] or b""
    else:
        digits = hmac.new(key, _plain(value), hashlib.sha256).hexdigest()[:_DIGITS].encode()
    return text.replace(b"]", b":%b]" % digits) if digits else text


def _plain(value: bytes) -> bytes:
    """Return the meaning of a value: the same in quotes and without, in base64 and plain."""
    value = value.strip(_AROUND)
    if len(value) > _LONGEST or _ENCODED.fullmatch(value) is None:
        return value
    try:
        plain = base64.b64decode(value.translate(_STANDARD), validate=True)
        decoded = plain.decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return value
    return decoded.encode() if decoded and decoded.isprintable() else value

"""Markers, which replace secrets: `[MASKED:password]`, with a fingerprint `[MASKED:token:7f3a]`.

A fingerprint is four digits that are equal for equal secrets. They come from an HMAC whose key belongs to one
investigation, so they cannot be compared with another's. Four hex digits are 16 bits: two secrets of one investigation
look alike once in 65,536 times. A person who can have texts masked with that key, and reads the result, can test
guesses: a guess with the right fingerprint is the secret in all but one of 65,536 cases. So fingerprints are off unless
they are asked for, and alerts never have them.
"""

from __future__ import annotations

import functools
import hashlib
import hmac

from tarsy.masking import encodings, rules

MARKER = rules.rule(rb"\[MASKED:[a-z0-9_]+(?::([0-9a-f]{4}))?\]")
"""A marker, and its fingerprint if it has one."""
PREFIX = b"[MASKED:"
LONGEST = 64
"""The maximal length of a marker in bytes."""
_DIGITS = 4
_AROUND = b" \t\r\n\\\"'`"
"""The characters around a value that are no part of it."""
_DECODED_MAX = 16 * 1024
"""The maximal length of a base64 value, in bytes, whose fingerprint is that of its meaning."""


@functools.cache
def marker(name: str) -> bytes:
    """Return the marker for a secret: `[MASKED:password]`."""
    return b"[MASKED:%s]" % name.encode()


def quoted(name: str, *, level: int) -> bytes:
    """Return the marker as a JSON string, nested in `level` other JSON strings."""
    quote = b"\\" * ((1 << level) - 1) + b'"'
    return quote + marker(name) + quote


def marker_end(doc: bytes, at: int) -> int:
    """Return the end of the marker that begins at `at`; -1 if none does."""
    if not doc.startswith(PREFIX, at):
        return -1
    match = MARKER.match(doc, at, at + LONGEST)
    return -1 if match is None else match.end()


def fingerprint_key(investigation: str, *, pepper: bytes) -> bytes:
    """Return the key of an investigation's fingerprints; without the `pepper` it cannot be made from the id."""
    return hmac.digest(pepper, investigation.encode("utf-8", "surrogatepass"), hashlib.sha256)


def add_fingerprint(text: bytes, value: bytes, *, key: bytes) -> bytes:
    """Return the replacement `text` for `value`, with the value's fingerprint if it is a marker.

    If the value itself contains a marker, the fingerprint is that marker's, or none.
    """
    match = MARKER.fullmatch(text.strip(_AROUND))
    if match is None or match[1]:
        return text
    masked = MARKER.search(value)
    if masked is not None:
        digits = masked[1] or b""
    else:
        digits = hmac.new(key, _meaning(value), hashlib.sha256).hexdigest()[:_DIGITS].encode()
    return text.replace(b"]", b":%b]" % digits) if digits else text


def _meaning(value: bytes) -> bytes:
    """Return the meaning of a value: the same with and without quotes, in base64 and plain."""
    value = value.strip(_AROUND)
    decoded = encodings.decode_base64(value).decode().strip() if len(value) <= _DECODED_MAX else ""
    return decoded.encode() if decoded and decoded.isprintable() else value

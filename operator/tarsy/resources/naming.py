"""Names of the objects that webhooks create: a pure function of the alert.

Two notifications of one alert episode (a retry, or the other Alertmanager of a pair) give the same name, so the API
server refuses the second object with 409: that is the first and cheapest deduplication.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_LABEL_MAX = 63
NAMED_MAX = 256
"""The number of characters of an alert's name that are used for the object's name."""


def for_alert(*, alertname: str, fingerprint: str, starts_at: datetime) -> str:
    """Return the name of the investigation of an alert episode: `<slug>-<fingerprint>-<start>`, up to 63 characters.

    The start is in milliseconds since 1970, in base 36, padded to 8 digits.
    """
    tail = _base36(milliseconds(starts_at)).rjust(8, "0")
    return f"{slug(alertname, longest=_LABEL_MAX - 18 - len(tail))}-{hex16(fingerprint)}-{tail}"


def suffixed(name: str, suffix: str) -> str:
    """Return `<name>-<suffix>`, up to 63 characters. A long name loses its beginning: its end identifies the alert."""
    return f"{name[-(_LABEL_MAX - 1 - len(suffix)) :].lstrip('-')}-{suffix}"


def slug(text: str, *, longest: int) -> str:
    """Return `text` as a part of a name: lower case, with dashes for other characters; `alert` if nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].rstrip("-") or "alert"


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds since 1970 UTC, rounded down; 0 for earlier times (Alertmanager's zero is year 1)."""
    try:
        return max(0, (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1))
    except OverflowError:  # year 1 in a zone east of UTC
        return 0


def hex16(fingerprint: str) -> str:
    """Return the fingerprint if it has Alertmanager's form (16 hex digits); else 16 digits of its SHA-256."""
    if _FINGERPRINT.fullmatch(fingerprint):
        return fingerprint
    return hashlib.sha256(fingerprint.encode(errors="surrogatepass")).hexdigest()[:16]


def _base36(number: int) -> str:
    """Return a non-negative integer in lower-case base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"

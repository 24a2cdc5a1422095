"""Names of objects that webhooks make: a pure function of the alert, so that a repeat meets the object it repeats.

Two notifications of one alert episode (a retry, the other half of an Alertmanager pair) give the same name; the API
server's 409 is then the first and cheapest deduplication.
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
"""Characters of an alert's name that its object's name is made of."""


def for_alert(*, alertname: str, fingerprint: str, starts_at: datetime) -> str:
    """Name the investigation of one alert episode: `<slug>-<fingerprint>-<start>`, at most 63 characters.

    The start is milliseconds since 1970 in base 36, padded to 8 digits.
    """
    tail = _base36(milliseconds(starts_at)).rjust(8, "0")
    return f"{slug(alertname, longest=_LABEL_MAX - 18 - len(tail))}-{hex16(fingerprint)}-{tail}"


def suffixed(name: str, suffix: str) -> str:
    """`<name>-<suffix>`, at most 63 characters: of a long name the end is kept, which tells alerts apart."""
    return f"{name[-(_LABEL_MAX - 1 - len(suffix)) :].lstrip('-')}-{suffix}"


def slug(text: str, *, longest: int) -> str:
    """`text` as a part of a name: lower case, other characters as single dashes; `alert` where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].rstrip("-") or "alert"


def milliseconds(moment: datetime) -> int:
    """Milliseconds since 1970 UTC, rounded down; never negative (Alertmanager's zero time is year 1)."""
    try:
        return max(0, (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1))
    except OverflowError:  # year 1 in a zone east of UTC
        return 0


def hex16(fingerprint: str) -> str:
    """The fingerprint where it is Alertmanager's (16 hex digits), else 16 digits of its SHA-256."""
    if _FINGERPRINT.fullmatch(fingerprint):
        return fingerprint
    return hashlib.sha256(fingerprint.encode(errors="surrogatepass")).hexdigest()[:16]


def _base36(number: int) -> str:
    """A non-negative integer in lower-case base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"

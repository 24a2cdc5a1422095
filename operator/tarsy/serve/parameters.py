"""Types of parameters that routes of several subjects have."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, BeforeValidator

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _ensure_rfc3339(value: object) -> object:
    """Refuse other spellings of times, which pydantic would accept."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("give a time of RFC 3339 with its zone, such as 2026-11-21T20:26:18Z; in a URL a + is %2B")
    return value


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("give a time between the years 1 and 9999") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_ensure_rfc3339), AfterValidator(_in_utc)]
"""A time of RFC 3339, in UTC."""

NO_NUL = r"^[^\x00]*$"
"""A pattern for texts that Postgres can compare."""


def text_filter(description: str, *, longest: int, example: str) -> Any:
    """Return the query parameter of a filter by a text of up to `longest` characters."""
    return Query(min_length=1, max_length=longest, pattern=NO_NUL, description=description, examples=[example])

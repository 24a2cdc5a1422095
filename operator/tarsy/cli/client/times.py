"""Times and durations, as kubectl writes and reads them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0)
SECONDS_MAX = 100 * 365 * 86400.0


def seconds(text: str) -> float:
    """Return the seconds of a duration such as 90s, 1h30m or 7d. Raises a ValueError."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"{text!r} is no duration: write one such as 90s, 15m, 1h30m or 7d")
    total = sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)
    if total > SECONDS_MAX:
        raise ValueError(f"{text} is longer than a hundred years")
    return total


class Duration(click.ParamType[float]):
    """An option's value in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a duration."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[datetime]):
    """An option's value as a time: RFC 3339, or a duration before now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read a time or a duration."""
        if isinstance(value, datetime):
            return value
        try:
            return datetime.now(UTC) - timedelta(seconds=seconds(value))
        except ValueError:
            try:
                moment = parse(value)
            except ValueError:
                self.fail(
                    f"{value!r} is neither a duration such as 15m or 2d nor a time such as 2026-11-21T03:00:00Z",
                    param,
                    ctx,
                )
        return moment


def parse(text: str) -> datetime:
    """Return the time of an RFC 3339 text. Raises a ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.astimezone(UTC)


def duration_text(seconds: float | None) -> str:
    """Return a duration as kubectl writes ages: 45s, 3m20s, 5h, 7d; "" for None."""
    if seconds is None:
        return ""
    total = max(0, int(seconds))
    if total < 120:
        return f"{total}s"
    if total < 600:
        return f"{total // 60}m{total % 60}s" if total % 60 else f"{total // 60}m"
    if total < 3 * 3600:
        return f"{total // 60}m"
    if total < 8 * 3600:
        return f"{total // 3600}h{total % 3600 // 60}m" if total % 3600 // 60 else f"{total // 3600}h"
    return f"{total // 3600}h" if total < 48 * 3600 else f"{total // 86400}d"


def since(text: str | None, *, until: str | None = None) -> float | None:
    """Return the seconds from one time to another, by default to now; None without a start."""
    if not text:
        return None
    end = parse(until) if until else datetime.now(UTC)
    return (end - parse(text)).total_seconds()

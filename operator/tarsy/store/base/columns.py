"""The columns that most tables have."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import BigInteger, Column, DateTime, Text, func

UPDATED_OFTEN = {"fillfactor": 70}
"""For rows that each commit updates: with free space in its page, a new row version needs no index entries."""


def moment(name: str, *, default: bool = False) -> Column[dt.datetime]:
    """Return a column of times: null until the moment comes, or by `default` the time of the insertion."""
    time = DateTime(timezone=True)
    return Column(name, time, nullable=False, server_default=func.now()) if default else Column(name, time)


def text(name: str, *, nullable: bool = False, primary_key: bool = False, default: str | None = None) -> Column[str]:
    """Return a column of text."""
    return Column(name, Text, nullable=nullable, primary_key=primary_key, server_default=default)


def count(name: str) -> Column[int]:
    """Return a column of counts, which begin at 0."""
    return Column(name, BigInteger, nullable=False, server_default="0")

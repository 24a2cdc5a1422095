"""Reads of one investigation: the parameters of a page of its log, and the problems of a read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import Query

from tarsy import errors
from tarsy.serve import problems

ENTRIES_MAX = 500
"""Entries of the log whose messages or calls are on one page."""

After = Annotated[int, Query(ge=0, le=2**63 - 1, description="`last` of the page before; 0 begins.")]
Limit = Annotated[
    int,
    Query(ge=1, le=ENTRIES_MAX, description="Entries of the log; a page has fewer where they are large."),
]


@contextmanager
def store_is_up() -> Iterator[None]:
    """Raise a Problem if the store is away."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def none_such(identity: UUID) -> problems.Problem:
    """Return the problem of an investigation that does not exist."""
    return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")

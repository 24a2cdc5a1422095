"""Lists of investigations, for people and programs: filtered, searched, sorted, counted, and told page by page.

A cursor is the place of a page's last investigation, with a digest of what was asked: with another question it would
lead to a place that means nothing there. It is no secret and grants nothing.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator

from tarsy import errors
from tarsy.auth import permissions
from tarsy.resources import investigations
from tarsy.serve import openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.reads import listing
from tarsy.views import shapes

PAGE_DEFAULT = 25
PAGE_MAX = 100
SEARCH_MAX = 256
"""Characters of a search."""
SEARCHES = 2
"""At once in a process: the connections to the database are there for everybody."""
WAIT_SECONDS = 5.0
"""How long another one waits for its turn."""
CURSOR_MAX = 8192
"""Characters of a cursor: the longest sort key, in JSON and base64."""

_NO_NUL = r"^[^\x00]*$"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")

Sort = Literal[
    "-admitted_at",
    "admitted_at",
    "-ended_at",
    "ended_at",
    "-alert_type",
    "alert_type",
    "-chain",
    "chain",
    "-author",
    "author",
    "-name",
    "name",
]


def _spelled(value: Any) -> Any:
    """Refuse what pydantic would take for a time and RFC 3339 does not."""
    if isinstance(value, str) and not _RFC3339.fullmatch(value):
        raise ValueError("give a time of RFC 3339 with its zone, such as 2026-11-21T20:26:18Z; in a URL a + is %2B")
    return value


def _truth(value: Any) -> Any:
    """Refuse spellings that JSON has not, such as 1 and yes."""
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("give true or false")
    return value


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("give a time between the years 1 and 9999") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_spelled), AfterValidator(_in_utc)]

Phases = Annotated[
    list[investigations.Phase] | None,
    Query(max_length=16, description="In this phase; repeated: in one of these.", examples=[["Running", "Queued"]]),
]
AlertType = Annotated[
    str | None,
    Query(min_length=1, max_length=253, pattern=_NO_NUL, description="Of this type.", examples=["KubePodCrashLooping"]),
]
Chain = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=253,
        pattern=_NO_NUL,
        description="Which a chain of this name investigates.",
        examples=["pod-crash"],
    ),
]
Author = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=investigations.AUTHOR_MAX,
        pattern=_NO_NUL,
        description="Which this caller asked for.",
        examples=["api-client"],
    ),
]
Fingerprint = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=64,
        pattern=_NO_NUL,
        description="Of the alert with this fingerprint of Alertmanager's.",
        examples=["6eb8c03418906421"],
    ),
]
Grounded = Annotated[
    Annotated[bool, BeforeValidator(_truth)] | None,
    Query(
        description="Whose result stands on what was looked at, or does not; one without a result is neither.",
        examples=[False],
    ),
]
Since = Annotated[
    Moment | None,
    Query(description="Admitted then or later; a time of RFC 3339.", examples=["2026-11-21T00:00:00Z"]),
]
Until = Annotated[
    Moment | None,
    Query(description="Admitted before then; a time of RFC 3339.", examples=["2026-11-22T00:00:00Z"]),
]
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=SEARCH_MAX,
        pattern=_NO_NUL,
        description=(
            "All these words occur in the first 65,536 characters of alert, analysis or summary, in any case; "
            '"quoted words" stand there one behind the other. Names are found by their parts: web finds shop/web-0. '
            f"For quoted words {listing.LOOKED_INTO:,} investigations are looked into for a page, and the list's first "
            "for `counts`: a page may be short, or empty, and have a `next`, and `counts_exact` be false. What takes "
            f"longer than {listing.SEARCH_SECONDS:g} seconds is 422: give rarer words, fewer, or a shorter time."
        ),
        examples=['web "exit code 137"'],
    ),
]
SortedBy = Annotated[
    Sort,
    Query(
        description="What to sort by, with a leading - from the last to the first. One that is open ends last.",
        examples=["-admitted_at"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="The most investigations of a page.", examples=[50])]
Cursor = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=CURSOR_MAX,
        pattern=_NO_NUL,
        description="`next` of the page before; all else but `limit` is to be as it was asked there.",
        examples=["eyJhIjoiMjAyNi0xMS0yMVQwMzoxNzo0MC41MTJaIn0"],
    ),
]


class Page(BaseModel):
    """A page of investigations."""

    items: list[shapes.Row]
    counts: dict[investigations.Phase, int]
    """How many fit all filters but `phase`, by phase."""
    counts_exact: bool
    """Whether they are all; else there may be more: see `q`."""
    next: str | None
    """The cursor of the next page; None where this is the last. A page that has one may have few items: see `q`."""


class Lists:
    """Pages of lists, and of what is searched for: so many searches at once, for all paths together."""

    def __init__(self, database: databases.Database) -> None:
        self._database = database
        self._searches = asyncio.Semaphore(SEARCHES)

    async def page(
        self,
        query: listing.Query,
        *,
        search: str | None,
        parameter: str = "query.q",
        after: str | None = None,
        skip: int = 0,
        limit: int,
    ) -> tuple[listing.Query, listing.Page]:
        """Return a page of the investigations that match the query and the words of `search`, and the query with them.

        `parameter` is where the search stands in the request, `after` the cursor of the page before. Raises a Problem
        that names what is wrong with them, or what the database could not do.
        """
        with _search_problems(parameter):
            if search is None:
                return query, await self._read(query, after=after, skip=skip, limit=limit)
            query = dataclasses.replace(query, search=await self._understood(search, parameter))
            async with self._turn():
                return query, await self._read(query, after=after, skip=skip, limit=limit)

    async def _read(self, query: listing.Query, *, after: str | None, skip: int, limit: int) -> listing.Page:
        behind = None if after is None else place_of(after, query)
        return await listing.page(self._database, query, after=behind, skip=skip, limit=limit)

    async def _understood(self, search: str, parameter: str) -> listing.Search:
        understood = await listing.understood(self._database, search)
        if understood is None:
            message = 'give a word to search for, of letters or digits, such as web or "exit code 137"'
            raise problems.invalid([problems.Fault(place=parameter, message=message)])
        return understood

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the searches; a Problem where none is free within WAIT_SECONDS."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._searches.acquire()
        except TimeoutError:
            message = f"{SEARCHES} searches are under way and others wait: ask again"
            later = {"Retry-After": str(math.ceil(WAIT_SECONDS))}
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=later) from None
        try:
            yield
        finally:
            self._searches.release()


def routes(lists: Lists, may: permissions.Access) -> APIRouter:
    """`GET /api/v1/investigations`."""
    router = strict.router(prefix="/api/v1", tag="investigations")

    @router.get(
        "/investigations", operation_id="listInvestigations", responses=openapi.problem_responses(HTTPStatus.NOT_FOUND)
    )
    async def investigations(
        scope: permissions.Scope = Depends(may.lists),
        phase: Phases = None,
        alert_type: AlertType = None,
        chain: Chain = None,
        author: Author = None,
        fingerprint: Fingerprint = None,
        grounded: Grounded = None,
        since: Since = None,
        until: Until = None,
        q: Search = None,
        sort: SortedBy = "-admitted_at",
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor = None,
    ) -> Page:
        """List the investigations of a namespace, those of a search alone if there is one, and count them."""
        query = listing.Query(
            namespace=scope.namespace,
            namespace_uid=scope.uid,
            phases=tuple(phase or ()),
            alert_type=alert_type,
            chain=chain,
            author=author,
            fingerprint=fingerprint,
            grounded=grounded,
            since=since,
            until=until,
            key=cast("listing.Key", sort.removeprefix("-")),
            descending=sort.startswith("-"),
        )
        query, listed = await lists.page(query, search=q, after=cursor, limit=limit)
        return Page(
            items=[row(listed_row) for listed_row in listed.items],
            counts=dict(listed.counts),
            counts_exact=listed.exact,
            next=cursor_of(listed.next, query) if listed.next else None,
        )

    return router


@contextmanager
def _search_problems(parameter: str) -> Iterator[None]:
    """Tell what the database could not do as a problem."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    except databases.TooLongError as error:
        message = (
            f"the search takes more than {listing.SEARCH_SECONDS:g} s: give rarer words or fewer of them, or a shorter "
            "time"
        )
        raise problems.invalid([problems.Fault(place=parameter, message=message)]) from error


def row(listed: listing.Listed) -> shapes.Row:
    """An investigation as it is answered in a list."""
    return shapes.Row(**dataclasses.asdict(listed), seconds=seconds(listed.started_at, listed.ended_at))


def seconds(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from start to end; None where there is none of the two."""
    return None if start is None or end is None else (end - start).total_seconds()


def cursor_of(position: listing.Place, query: listing.Query) -> str:
    """The cursor of the page behind `position`."""
    value = position.value.isoformat() if isinstance(position.value, datetime) else position.value
    document = json.dumps([value, str(position.id), _digest(query)], ensure_ascii=False)
    return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")


def place_of(cursor: str, query: listing.Query) -> listing.Place:
    """The place that a cursor of this query tells; a Problem where it is none, or of another."""
    try:
        value, identity, digest = json.loads(_decoded(cursor))
        position = listing.Place(value=_value(value, key=query.key), id=UUID(identity))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        message = "this is no cursor; give `next` of the page before, or none for the first page"
        raise problems.invalid([problems.Fault(place="query.cursor", message=message)]) from None
    if digest != _digest(query):
        message = "it is of another query; repeat the one that it came from (namespace, filters, sort)"
        raise problems.invalid([problems.Fault(place="query.cursor", message=message)])
    return position


def _decoded(cursor: str) -> str:
    if not _BASE64URL.fullmatch(cursor):
        raise ValueError("no base64url")
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


def _value(text: Any, *, key: listing.Key) -> datetime | str | None:
    """A sort key's value as a cursor tells it; a ValueError or TypeError where it is none."""
    if key in ("admitted_at", "ended_at"):
        if text is None and key == "ended_at":
            return None
        return _in_utc(datetime.fromisoformat(_spelled(text)))
    if not isinstance(text, str) or "\0" in text:
        raise ValueError("no text")
    text.encode()  # half a character cannot be sent
    return text


def _digest(query: listing.Query) -> str:
    asked = dataclasses.asdict(query) | {"phases": sorted(set(query.phases))}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]

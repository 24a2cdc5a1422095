"""Lists of investigations, for people and programs: filtered, searched, sorted, counted, and told page by page.

A cursor is the place of a page's last investigation, with a digest of what was asked: with another question it would
lead to a place that means nothing there. It is no secret and grants nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict

from tarsy import errors
from tarsy.api import access, described, problems, strict
from tarsy.resources import investigation
from tarsy.store import database as databases
from tarsy.store import listing

PAGE_DEFAULT = 25
PAGE_MAX = 100
SEARCH_MAX = 256
"""Characters of a search."""
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


def _spelled(given: Any) -> Any:
    """Refuse what pydantic would take for a time and RFC 3339 does not."""
    if isinstance(given, str) and not _RFC3339.fullmatch(given):
        raise ValueError("give a time of RFC 3339 with its zone, such as 2026-11-21T20:26:18Z; in a URL a + is %2B")
    return given


def _in_utc(given: datetime) -> datetime:
    try:
        return given.astimezone(UTC)
    except OverflowError:
        raise ValueError("give a time between the years 1 and 9999") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_spelled), AfterValidator(_in_utc)]

Phases = Annotated[
    list[investigation.Phase] | None,
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
        max_length=investigation.AUTHOR_MAX,
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
            '"quoted words" stand there one behind the other. Names are found by their parts: web finds shop/web-0.'
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


class Item(BaseModel):
    """An investigation in a list."""

    model_config = ConfigDict(from_attributes=True, frozen=True, use_attribute_docstrings=True)

    id: UUID
    namespace: str
    name: str
    alert_type: str
    alert_status: Literal["firing", "resolved"] | None
    severity: str | None
    fingerprint: str | None
    author: str
    chain_name: str | None
    phase: investigation.Phase
    progress: str
    """Ended stages of all stages."""
    current_stage: str | None
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    duration: float | None
    """Seconds from start to end; None until it has ended, and where it never started."""
    total_tokens: int
    cost: float | None
    """None where no model call had a price."""
    summary: str
    """The first 1,024 characters of it."""
    message: str
    """Why it ended so, or what it waits for."""
    duplicates: int
    """Repeats of its alert that were counted on it."""


class Page(BaseModel):
    """A page of investigations."""

    items: list[Item]
    counts: dict[investigation.Phase, int]
    """How many fit all filters but `phase`, by phase."""
    next: str | None
    """The cursor of the next page; None where this is the last."""


def routes(database: databases.Database, may: access.Access) -> APIRouter:
    """`GET /api/v1/investigations`."""
    router = strict.router(prefix="/api/v1", tag="investigations")

    @router.get("/investigations", operation_id="listInvestigations", responses=described.tells(HTTPStatus.NOT_FOUND))
    async def investigations(
        scope: access.Scope = Depends(may.lists),
        phase: Phases = None,
        alert_type: AlertType = None,
        chain: Chain = None,
        author: Author = None,
        fingerprint: Fingerprint = None,
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
            since=since,
            until=until,
            phrases=() if q is None else phrases(q),
            key=cast("listing.Key", sort.removeprefix("-")),
            descending=sort.startswith("-"),
        )
        return await _read(database, query, after=cursor, limit=limit)

    return router


async def _read(database: databases.Database, query: listing.Query, *, after: str | None, limit: int) -> Page:
    place = None if after is None else place_of(after, query)
    try:
        found = await listing.page(database, query, after=place, limit=limit)
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    return Page(
        items=[_item(one) for one in found.items],
        counts=dict(found.counts),
        next=cursor_of(found.items[-1].place(query.key), query) if found.more else None,
    )


def _item(found: listing.Listed) -> Item:
    duration = None
    if found.started_at and found.ended_at:
        duration = (found.ended_at - found.started_at).total_seconds()
    return Item(**dataclasses.asdict(found), duration=duration)


def phrases(search: str, *, place: str = "query.q") -> tuple[str, ...]:
    """What a search is for: what it quotes, and each of its other words; a Problem where it has no word at all.

    A quote that is not closed goes to the end. `place` is where the search stands in the request.
    """
    if not any(map(str.isalnum, search)):
        raise problems.invalid([problems.Fault(place=place, message="give a word to search for")])
    outside, quoted = search.split('"')[::2], search.split('"')[1::2]
    words = (word for piece in outside for name in piece.split() for word in _NAME_PARTS.split(name))
    return tuple(phrase for phrase in (*words, *quoted) if any(map(str.isalnum, phrase)))


_NAME_PARTS = re.compile(r"[^\w]+|_+")


def cursor_of(place: listing.Place, query: listing.Query) -> str:
    """The cursor of the page behind `place`."""
    value = place.value.isoformat() if isinstance(place.value, datetime) else place.value
    told = json.dumps([value, str(place.id), _digest(query)], ensure_ascii=False)
    return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")


def place_of(cursor: str, query: listing.Query) -> listing.Place:
    """The place that a cursor of this query tells; a Problem where it is none, or of another."""
    try:
        value, identity, digest = json.loads(_decoded(cursor))
        place = listing.Place(value=_value(value, key=query.key), id=UUID(identity))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        message = "this is no cursor; give `next` of the page before, or none for the first page"
        raise problems.invalid([problems.Fault(place="query.cursor", message=message)]) from None
    if digest != _digest(query):
        message = "it is of another query; repeat the one that it came from (namespace, filters, sort)"
        raise problems.invalid([problems.Fault(place="query.cursor", message=message)])
    return place


def _decoded(cursor: str) -> str:
    if not _BASE64URL.fullmatch(cursor):
        raise ValueError("no base64url")
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


def _value(told: Any, *, key: listing.Key) -> datetime | str | None:
    """A sort key's value as a cursor tells it; a ValueError or TypeError where it is none."""
    if key in ("admitted_at", "ended_at"):
        if told is None and key == "ended_at":
            return None
        return _in_utc(datetime.fromisoformat(_spelled(told)))
    if not isinstance(told, str) or "\0" in told:
        raise ValueError("no text")
    told.encode()  # half a character cannot be sent
    return told


def _digest(query: listing.Query) -> str:
    asked = dataclasses.asdict(query) | {"phases": sorted(set(query.phases))}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]

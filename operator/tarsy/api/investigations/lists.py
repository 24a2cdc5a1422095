"""Lists of investigations: filtered, searched, sorted, counted, and paged.

A cursor is the position of a page's last investigation, with a digest of the query, because the position has no meaning
in another query. It is not a secret, and grants no right. A request that names no namespace gets those that its caller
may read then: if that changes between two pages, the second one goes on at the same position with the present ones.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BeforeValidator, Field, TypeAdapter

from tarsy.auth import permissions
from tarsy.resources import investigations
from tarsy.serve import limits, openapi, parameters, problems, strict
from tarsy.store.base import databases
from tarsy.store.reads import listing, verdicts
from tarsy.views import rows

PAGE_DEFAULT = 25
PAGE_MAX = 100
SEARCH_MAX = 256
"""Characters of a search."""
SEARCHES = 2
"""Concurrent searches in a process, so that its connections to the database serve other requests as well."""
WAIT_SECONDS = 5.0
"""The seconds that a search waits for others to end."""
CURSOR_MAX = 8192
"""Characters of a cursor: the longest sort key, in JSON and base64."""

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


def _ensure_json_boolean(value: object) -> object:
    """Refuse other spellings of booleans, such as 1 and yes."""
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("give true or false")
    return value


Boolean = Annotated[bool, BeforeValidator(_ensure_json_boolean)]
Phases = Annotated[
    list[investigations.Phase] | None,
    Query(max_length=16, description="The phase; if repeated, one of these.", examples=[["Running", "Queued"]]),
]
AlertType = Annotated[
    str | None,
    parameters.text_filter("The alert type.", longest=253, example="KubePodCrashLooping"),
]
Chain = Annotated[
    str | None,
    parameters.text_filter("The name of the chain.", longest=253, example="pod-crash"),
]
Author = Annotated[
    str | None,
    parameters.text_filter("The author.", longest=investigations.AUTHOR_MAX, example="api-client"),
]
Fingerprint = Annotated[
    str | None,
    parameters.text_filter(
        "The alert's fingerprint, as investigations have it.", longest=64, example="6eb8c03418906421"
    ),
]
Severity = Annotated[
    str | None,
    parameters.text_filter("The severity of the alert.", longest=63, example="critical"),
]
Name = Annotated[
    str | None,
    parameters.text_filter(
        "The name of the object.", longest=253, example="kubepodcrashlooping-6eb8c03418906421-mwqv3726"
    ),
]
Grounded = Annotated[
    Boolean | None,
    Query(
        description="Whether the result rests on something that was inspected; without a result neither matches.",
        examples=[False],
    ),
]
Feedback = Annotated[
    verdicts.Verdict | Literal["none"] | None,
    Query(
        description="A verdict of at least one person; none for investigations without feedback.", examples=["wrong"]
    ),
]
Deleted = Annotated[
    Boolean,
    Query(
        description=(
            "Those that were deleted and can be restored, with `deletion` in each; it needs the right to delete, too. "
            "By default none of them is listed."
        ),
        examples=[True],
    ),
]
Since = Annotated[
    parameters.Moment | None,
    Query(description="Admitted then or later; a time of RFC 3339.", examples=["2026-11-21T00:00:00Z"]),
]
Until = Annotated[
    parameters.Moment | None,
    Query(description="Admitted before then; a time of RFC 3339.", examples=["2026-11-22T00:00:00Z"]),
]
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=SEARCH_MAX,
        pattern=parameters.NO_NUL,
        description=(
            "Words that all occur in the first 65,536 characters of alert, analysis or summary, in any case; "
            '"quoted words" follow one another there. Parts of names match: web finds shop/web-0. '
            f"For quoted words {listing.LOOKED_INTO:,} investigations are searched for a page, and the list's first "
            "for `counts`: a page may be short, or empty, and have a `next`, and `counts_exact` may be false. A search "
            f"of more than {listing.SEARCH_SECONDS:g} seconds gets 422: give rarer words, fewer, or a shorter time."
        ),
        examples=['web "exit code 137"'],
    ),
]
SortedBy = Annotated[
    Sort,
    Query(
        description="The sort key; a leading - reverses the order. Of ends, an open one is the latest.",
        examples=["-admitted_at"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Investigations of a page at most.", examples=[50])]
Cursor = Annotated[
    str | None,
    parameters.text_filter(
        "`next` of the page before; all other parameters but `limit` have to be the same.",
        longest=CURSOR_MAX,
        example="eyJhIjoiMjAyNi0xMS0yMVQwMzoxNzo0MC41MTJaIn0",
    ),
]


class Lists:
    """Pages of lists and searches; all paths together share the limit of searches."""

    def __init__(self, database: databases.Database, *, purge_after: Callable[[], timedelta | None]) -> None:
        """`purge_after` returns the time from a deletion to the purge by the platform file, or None in a dry run."""
        self._database = database
        self._purge_after = purge_after
        self._searches = limits.Gate(SEARCHES)

    async def page(
        self,
        query: listing.Query,
        *,
        named: Sequence[str] = (),
        search: str | None,
        parameter: str = "query.q",
        after: str | None = None,
        skip: int = 0,
        limit: int,
    ) -> tuple[listing.Query, listing.Page]:
        """Return a page of the investigations that match the query and the words of `search`, and the query with them.

        `named` are the namespaces that the request names, `parameter` is the place of the search in it, `after` the
        cursor of the page before. Raises a Problem if one of them is wrong, or the search takes too long.
        """
        if search is None:
            return query, await self._read(query, named=named, after=after, skip=skip, limit=limit)
        try:
            words = await listing.understood(self._database, search)
            if words is None:
                message = 'give a word to search for, of letters or digits, such as web or "exit code 137"'
                raise problems.invalid([problems.Fault(place=parameter, message=message)])
            query = dataclasses.replace(query, search=words)
            refusal = f"{SEARCHES} searches are under way and others wait: try again later"
            async with self._searches.slot(seconds=WAIT_SECONDS, refusal=refusal):
                return query, await self._read(query, named=named, after=after, skip=skip, limit=limit)
        except databases.TooLongError as error:
            message = (
                f"the search takes more than {listing.SEARCH_SECONDS:g} s: give rarer words or fewer of them, or a "
                "shorter time"
            )
            raise problems.invalid([problems.Fault(place=parameter, message=message)]) from error

    async def rows(self, request: ListRequest) -> rows.Page:
        """Return the requested page. Raises the same Problems as `page`."""
        named = request.scope.named
        query, listed = await self.page(
            request.query, named=named, search=request.search, after=request.cursor, limit=request.limit
        )
        return rows.page(
            listed,
            namespaces=query.namespaces,
            unchecked=request.scope.unchecked,
            cursor=encode_cursor(listed.next, query, named=named) if listed.next else None,
            purge_after=self._purge_after(),
        )

    async def _read(
        self, query: listing.Query, *, named: Sequence[str], after: str | None, skip: int, limit: int
    ) -> listing.Page:
        position = None if after is None else decode_cursor(after, query, named=named)
        return await listing.page(self._database, query, after=position, skip=skip, limit=limit)


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """The parameters of a request for a list."""

    scope: permissions.Scope
    query: listing.Query
    search: str | None
    cursor: str | None
    limit: int


def list_request(access: permissions.Access) -> Callable[..., Awaitable[ListRequest]]:
    """Return the dependency that reads the parameters of a list, for callers that may list."""

    async def read(
        request: Request,
        scope: permissions.Scope = Depends(access.list_in),
        phase: Phases = None,
        alert_type: AlertType = None,
        chain: Chain = None,
        author: Author = None,
        fingerprint: Fingerprint = None,
        severity: Severity = None,
        name: Name = None,
        grounded: Grounded = None,
        feedback: Feedback = None,
        deleted: Deleted = False,  # noqa: FBT002 - a parameter of the request
        since: Since = None,
        until: Until = None,
        q: Search = None,
        sort: SortedBy = "-admitted_at",
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor = None,
    ) -> ListRequest:
        if deleted:
            scope = await access.also_delete(request, scope)
        query = listing.Query(
            namespaces=scope.namespaces,
            phases=tuple(phase or ()),
            alert_type=alert_type,
            chain=chain,
            author=author,
            fingerprint=fingerprint,
            severity=severity,
            name=name,
            grounded=grounded,
            feedback=feedback,
            deleted=deleted,
            since=since,
            until=until,
            key=cast("listing.Key", sort.removeprefix("-")),
            descending=sort.startswith("-"),
        )
        return ListRequest(scope=scope, query=query, search=q, cursor=cursor, limit=limit)

    return read


def routes(lists: Lists, may: permissions.Access) -> APIRouter:
    """Return the route `GET /api/v1/investigations`."""
    router = strict.router(prefix="/api/v1", tag="investigations")
    read_request = list_request(may)

    @router.get(
        "/investigations",
        operation_id="listInvestigations",
        responses=openapi.problem_responses(HTTPStatus.NOT_FOUND),
    )
    async def investigations(request: ListRequest = Depends(read_request)) -> rows.Page:
        """List the investigations that match the filters and the search, and count them by phase."""
        return await lists.rows(request)

    return router


_Text = Annotated[str, Field(pattern=parameters.NO_NUL)]
_CURSORS: dict[listing.Key, TypeAdapter[tuple[Any, UUID, str]]] = {
    "admitted_at": TypeAdapter(tuple[parameters.Moment, UUID, str]),
    "ended_at": TypeAdapter(tuple[parameters.Moment | None, UUID, str]),
    **dict.fromkeys(("alert_type", "chain", "author", "name"), TypeAdapter(tuple[_Text, UUID, str])),
}
"""The content of a cursor, by sort key: the key's value, the investigation, the digest of the query."""


def encode_cursor(position: listing.Position, query: listing.Query, *, named: Sequence[str] = ()) -> str:
    """Return the cursor of the page after `position`; `named` are the namespaces that the request names."""
    value = position.value.isoformat() if isinstance(position.value, datetime) else position.value
    content = json.dumps([value, str(position.id), _digest(query, named)], ensure_ascii=False)
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, query: listing.Query, *, named: Sequence[str] = ()) -> listing.Position:
    """Return the position of a cursor of this query. Raises a Problem if it is no cursor, or another query's."""
    try:
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        value, identity, digest = _CURSORS[query.key].validate_json(content)
    except ValueError:
        message = "this is not a cursor; give `next` of the page before, or none for the first page"
        raise problems.invalid([problems.Fault(place="query.cursor", message=message)]) from None
    if digest != _digest(query, named):
        message = "it belongs to another query; repeat namespace, filters and sort of the page before"
        raise problems.invalid([problems.Fault(place="query.cursor", message=message)])
    return listing.Position(value=value, id=identity)


def _digest(query: listing.Query, named: Sequence[str] = ()) -> str:
    fields = dataclasses.asdict(query) | {"phases": sorted(set(query.phases)), "namespaces": sorted(named)}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:16]

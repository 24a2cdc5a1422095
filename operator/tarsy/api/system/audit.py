"""The audit, page by page, newest first.

A cursor is the time and the id of a page's last row. New rows come before the first page, so a cursor stays valid, and
has a meaning with other filters as well.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from tarsy.auth import permissions
from tarsy.resources import investigations
from tarsy.serve import openapi, parameters, strict
from tarsy.store.base import audit, databases
from tarsy.views import audit as views
from tarsy.views import base

PAGE_DEFAULT = 50
PAGE_MAX = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = r"^[0-9]{1,16}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
Who = Annotated[
    str | None,
    parameters.text_filter("The caller.", longest=investigations.AUTHOR_MAX, example="jane@example.com"),
]
Action = Annotated[audit.AnyAction | None, Query(description="The action.", examples=["purge"])]
Investigation = Annotated[
    UUID | None,
    Query(
        description="The id of an investigation; it may be purged.",
        examples=["6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64"],
        json_schema_extra={"maxLength": 36},
    ),
]
Name = Annotated[
    str | None,
    parameters.text_filter(
        "The name of an investigation's object, or of an MCP server.", longest=253, example="web-crash"
    ),
]
Since = Annotated[
    parameters.Moment | None, Query(description="Then or later; a time of RFC 3339.", examples=["2026-11-21T00:00:00Z"])
]
Until = Annotated[
    parameters.Moment | None, Query(description="Before then; a time of RFC 3339.", examples=["2026-11-22T00:00:00Z"])
]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Rows of a page at most.", examples=[100])]
Cursor = Annotated[
    str | None,
    Query(
        max_length=53,
        pattern=_CURSOR,
        description="`next` of the page before.",
        examples=["1763695060512000-0c7d5b1e-8d0e-4b7a-9a53-6f1c3a522f64"],
    ),
]


def routes(database: databases.Database, may: permissions.Access, *, mask: base.Mask) -> APIRouter:
    """Return the route `GET /api/v1/audit`."""
    router = strict.router(prefix="/api/v1", tag="system")

    @router.get("/audit", operation_id="listAudit", responses=openapi.problem_responses(HTTPStatus.NOT_FOUND))
    async def events(
        scope: permissions.Scope = Depends(may.read_audit),
        who: Who = None,
        action: Action = None,
        investigation: Investigation = None,
        name: Name = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor = None,
    ) -> views.AuditPage:
        """List the changes, exports and sign-ins of namespaces, newest first.

        Sign-ins and accepted tools belong to the operator's namespace. A caller that has the right in all namespaces,
        and names none, also gets the rows of namespaces that are gone.
        """
        query = audit.Query(
            namespaces=None if scope.is_everywhere else scope.namespaces,
            who=who,
            action=action,
            investigation=investigation,
            name=name,
            since=since,
            until=until,
        )
        after = None
        if cursor:
            microseconds, _, row = cursor.partition("-")
            after = audit.Position(at=_EPOCH + timedelta(microseconds=int(microseconds)), id=UUID(row))
        read = await audit.page(database, query, after=after, limit=limit)
        end = read.next
        return views.page(
            read,
            namespaces=query.namespaces,
            unchecked=scope.unchecked,
            cursor=f"{(end.at - _EPOCH) // timedelta(microseconds=1)}-{end.id}" if end else None,
            mask=mask,
        )

    return router

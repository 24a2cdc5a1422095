"""The pages of a trace: a waterfall of stages, executions and calls, and each call with its texts.

The waterfall shows the index, which has no texts. A script fetches the rows that are seen, in parts, and a call when it
is opened; without the script there are pages of rows and a page of each call.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from urllib import parse

from fastapi import APIRouter, Depends, Query, Request, Response

from tarsy.api import app
from tarsy.api.investigations import lists, reads, traces
from tarsy.auth import permissions
from tarsy.views import investigations
from tarsy.views import traces as views
from tarsy.web import rendering

PART_ROWS = 50
"""Rows that the script fetches at once."""
PAGE_ROWS = 200
"""Rows of a page without the script; a multiple of PART_ROWS."""
AXIS = 1000.0
"""The length of the time axis in units of the drawing."""
_BAR_MIN = 8.0
"""The length of the shortest bar."""
TEXT_MAX = 20_000
"""Characters that are shown of a message; the answer of the API has all."""
MESSAGES_MAX = 200
"""Messages of a request that are shown, the last ones."""

Fragment = Annotated[lists.Boolean, Query(description="Only the part that the waterfall shows beside it.")]
Facts = Annotated[lists.Boolean, Query(description="With the facts above the waterfall.")]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar on the time axis, and the time of its start after the beginning."""

    x: float
    width: float
    after: float | None
    """Seconds."""


def bar(row: views.IndexRow, index: views.Index) -> Bar | None:
    """Return the bar of a row; None if it has not started."""
    if row.started_at is None or index.begins_at is None or index.ends_at is None:
        return None
    span = max((index.ends_at - index.begins_at).total_seconds(), 0.001)
    after = max((row.started_at - index.begins_at).total_seconds(), 0.0)
    seconds = row.seconds
    if seconds is None:
        seconds = _between(row.started_at, row.ended_at or index.ends_at)
    width = min(max(seconds / span * AXIS, _BAR_MIN), AXIS)
    return Bar(x=round(min(after / span * AXIS, AXIS - width), 1), width=round(width, 1), after=after)


def ticks(index: views.Index) -> list[str]:
    """Return the times at the beginning of the time axis, at its first quarter, its half and its end."""
    span = _between(index.begins_at, index.ends_at) if index.begins_at and index.ends_at else 0.0
    return ["0", *(rendering.duration(span * part) if span else "" for part in (0.25, 0.5, 1))]


def _between(start: datetime, end: datetime) -> float:
    return max((end - start).total_seconds(), 0.0)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The request for some rows."""

    target: permissions.Target
    run: int
    failed: bool
    name: str
    upto: int | None
    row: str
    """The row that the page begins with, as `traces.RowId` names it; "" for the offset."""

    @property
    def parameters(self) -> dict[str, str]:
        """The query parameters of the filters that are set."""
        parameters = {"run": str(self.run)} if self.run else {}
        parameters |= {"failed": "true"} if self.failed else {}
        return parameters | ({"name": self.name} if self.name else {})

    def address(self, **parameters: object) -> str:
        """Return the path of the page with the filters and these parameters."""
        query = parse.urlencode(self.parameters | {name: str(value) for name, value in parameters.items()})
        return f"/investigations/{self.target.id}/trace" + (f"?{query}" if query else "")

    def named_row(self, index: views.Index) -> views.IndexRow | None:
        """Return the row that the request names, if the index has it."""
        names = ((row, (row.id, f"entry-{row.seq}", f"{row.execution}.{row.tool_call_id}")) for row in index.rows)
        return next((row for row, own in names if self.row in own), None)


@dataclass(frozen=True, kw_only=True)
class _Pages:
    """The pages of traces, and their fragments."""

    services: app.Services
    renderer: rendering.Renderer

    async def read_rows(self, rows: Rows, *, offset: int, limit: int) -> views.Index:
        return await traces.read_index(
            self.services.database,
            rows.target.id,
            run=rows.run,
            failed=rows.failed,
            name=rows.name,
            upto=rows.upto,
            offset=offset - offset % PART_ROWS,
            limit=limit,
            row=rows.row,
            align=PART_ROWS,
        )

    async def find_rows(self, rows: Rows, *, offset: int) -> tuple[Rows, views.Index]:
        """Return the rows of a page; if the named row is one of another run, those of that run."""
        index = await self.read_rows(rows, offset=offset, limit=PAGE_ROWS)
        if rows.row and rows.run == 0 and not rows.named_row(index):
            index_of_all = await traces.read_index(self.services.database, rows.target.id, row=rows.row, limit=1)
            if named_row := rows.named_row(index_of_all):
                rows = replace(rows, run=named_row.run)
                index = await self.read_rows(rows, offset=offset, limit=PAGE_ROWS)
        return rows, index

    async def read_investigation(self, rows: Rows) -> investigations.Investigation:
        return await reads.read(self.services.database, rows.target.id, mask=self.services.mask)

    async def show_rows(
        self,
        request: Request,
        template: str,
        rows: Rows,
        index: views.Index,
        investigation: investigations.Investigation | None,
    ) -> Response:
        return await asyncio.to_thread(
            self.renderer.page,
            request,
            template,
            title=f"Trace of {rows.target.name}",
            section=None,
            user=rows.target.caller,
            target=rows.target,
            rows=rows,
            index=index,
            named_row=rows.named_row(index),
            shown=investigation,
            phase=investigation and _phase(investigation, rows.run),
            parts=[
                (index.offset + start, index.rows[start : start + PART_ROWS])
                for start in range(0, len(index.rows), PART_ROWS)
            ],
            bar=bar,
            ticks=ticks,
            part_rows=PART_ROWS,
            page_rows=PAGE_ROWS,
        )

    async def show_call(
        self, request: Request, target: permissions.Target, *, fragment: bool, **context: Any
    ) -> Response:
        """Show a call; it is rendered in a thread, because its texts may be long."""
        return await asyncio.to_thread(
            self.renderer.page,
            request,
            "trace_call_part.html" if fragment else "trace_call.html",
            section=None,
            user=target.caller,
            target=target,
            fragment=fragment,
            shorten=shorten,
            pretty=pretty,
            **context,
        )


def routes(services: app.Services, renderer: rendering.Renderer) -> APIRouter:
    """Return the routes below `/investigations/{identity}/trace`."""
    pages = _Pages(services=services, renderer=renderer)
    router = APIRouter(
        prefix="/investigations/{identity}/trace", route_class=renderer.route_class(), redirect_slashes=False
    )

    async def rows_request(
        target: permissions.Target = Depends(services.access.read),
        run: traces.Run = None,
        *,
        failed: traces.Failed = False,
        name: traces.Name = "",
        upto: traces.Upto = None,
        row: traces.RowId = "",
    ) -> Rows:
        return Rows(target=target, run=run or 0, failed=failed, name=name.strip(), upto=upto, row=row)

    @router.get("", include_in_schema=False)
    async def page(request: Request, rows: Rows = Depends(rows_request), offset: traces.Offset = 0) -> Response:
        """Show the waterfall; with a row of another run, that run."""
        rows, index = await pages.find_rows(rows, offset=offset)
        return await pages.show_rows(request, "trace.html", rows, index, await pages.read_investigation(rows))

    @router.get("/rows", include_in_schema=False)
    async def part(
        request: Request, rows: Rows = Depends(rows_request), offset: traces.Offset = 0, *, facts: Facts = False
    ) -> Response:
        """Return some rows as a fragment."""
        index = await pages.read_rows(rows, offset=offset, limit=PART_ROWS)
        investigation = await pages.read_investigation(rows) if facts else None
        return await pages.show_rows(request, "trace_part.html", rows, index, investigation)

    _add_calls(router, pages)
    return router


def _add_calls(router: APIRouter, pages: _Pages) -> None:
    """Add the pages of single calls."""
    database, access, mask = pages.services.database, pages.services.access, pages.services.mask

    @router.get("/llm/{n}", include_in_schema=False)
    async def model_call(
        request: Request,
        n: traces.Number,
        target: permissions.Target = Depends(access.read),
        *,
        fragment: Fragment = False,
    ) -> Response:
        """Show a model call."""
        call = await traces.read_model_call(database, target.id, number=n, mask=mask)
        sent = call.request.messages if call.request else []
        return await pages.show_call(
            request,
            target,
            fragment=fragment,
            title=f"Model call {n}",
            type="llm",
            call=call,
            messages=list(enumerate(sent, 1))[-MESSAGES_MAX:],
            left_out=max(0, len(sent) - MESSAGES_MAX),
        )

    @router.get("/tool/{n}", include_in_schema=False)
    async def tool_call(
        request: Request,
        n: traces.Number,
        target: permissions.Target = Depends(access.read),
        *,
        fragment: Fragment = False,
    ) -> Response:
        """Show a tool call."""
        call = await traces.read_tool_call(database, target.id, number=n)
        return await pages.show_call(
            request, target, fragment=fragment, title=f"Tool call {n}", type="tool", call=call, messages=[], left_out=0
        )


def _phase(investigation: investigations.Investigation, number: int) -> str:
    """Return the phase of a run; a run that is no longer listed has ended."""
    if number == 0:
        return investigation.phase
    run = next((run for run in investigation.runs if run.number == number), None)
    return (run.ending or ("Running" if run.started_at else "Queued")) if run else "Completed"


def shorten(text: str) -> tuple[str, int]:
    """Return the first characters of a text, and the number of those that are left out."""
    return text[:TEXT_MAX], max(0, len(text) - TEXT_MAX)


def pretty(text: str) -> str:
    """Return JSON indented, and any other text as it is."""
    if len(text) > TEXT_MAX or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text

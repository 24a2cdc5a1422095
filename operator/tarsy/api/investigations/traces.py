"""The trace of an investigation: its model calls and tool calls."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Response

from tarsy.api.investigations import lists, reads
from tarsy.auth import permissions
from tarsy.serve import answers, problems, strict
from tarsy.store.base import databases
from tarsy.store.reads import trace_index, transcript_pages
from tarsy.transcript import entries
from tarsy.transcript.kinds import registry
from tarsy.views import base, traces

Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1], description="Its number in the trace.")]

INDEX_MAX = 500
"""Rows of a page of the index."""
_POSITION_MAX = 2**31 - 1

Offset = Annotated[int, Query(ge=0, le=_POSITION_MAX, description="Rows that are left out before the page.")]
Upto = Annotated[
    int | None,
    Query(
        ge=0,
        le=2**63 - 1,
        examples=[8],
        description="`upto` of the first page; without it the log is read to its end.",
    ),
]
Run = Annotated[
    int | None, Query(ge=0, le=_POSITION_MAX, examples=[0], description="Only this run; 0 is the investigation itself.")
]
RowId = Annotated[
    str,
    Query(
        max_length=300,
        pattern=r"^[^\x00]*$",
        examples=["tool-1"],
        description="The row that the page begins with, if the filters leave it: its `id`, `entry-<seq>`, or"
        " `<execution>.<tool_call_id>`.",
    ),
]
Failed = Annotated[lists.Boolean, Query(description="Only what failed, with its stages and executions.")]
Name = Annotated[
    str,
    Query(
        max_length=200,
        pattern=r"^[^\x00]*$",
        examples=["pods_log"],
        description="A part of a name, in any case: of a call, a stage, an execution or a failure.",
    ),
]
Needle = Annotated[
    str,
    Query(
        min_length=2,
        max_length=200,
        pattern=r"^[^\x00]+$",
        examples=["OOMKilled"],
        description="The text, in any case.",
    ),
]


def routes(
    database: databases.Database, may: permissions.Access, responder: answers.Responder, *, mask: base.Mask
) -> APIRouter:
    """Return the routes of an investigation's trace."""
    router = strict.router(prefix="/api/v1/investigations/{identity}/trace", tag="investigations")

    @router.get("", operation_id="listCalls", response_model=traces.Trace)
    async def trace(
        target: permissions.Target = Depends(may.read),
        after: reads.After = 0,
        limit: reads.Limit = reads.ENTRIES_MAX,
    ) -> Response:
        """Return its model calls and tool calls, a line each: those after entry `after` of its log."""
        return await responder.respond(lambda: read(database, target.id, after=after, limit=limit))

    @router.get("/index", operation_id="indexCalls", response_model=traces.Index)
    async def index(
        target: permissions.Target = Depends(may.read),
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=INDEX_MAX, description="Rows of the page.")] = INDEX_MAX,
        upto: Upto = None,
        run: Run = None,
        row: RowId = "",
        *,
        failed: Failed = False,
        name: Name = "",
    ) -> Response:
        """Return its stages, executions, calls and events without their texts, ordered as they belong."""
        return await responder.respond(
            lambda: read_index(
                database, target.id, run=run, failed=failed, name=name, upto=upto, offset=offset, limit=limit, row=row
            )
        )

    @router.get("/search", operation_id="searchCalls", response_model=traces.Matches)
    async def search(q: Needle, target: permissions.Target = Depends(may.read), after: reads.After = 0) -> Response:
        """Return the calls whose answers, arguments or results have a text in them, in some entries after `after`.

        One request searches 500 entries, fewer where they are large.
        """
        return await responder.respond(lambda: read_matches(database, target.id, needle=q, after=after))

    @router.get("/llm/{n}", operation_id="readModelCall", response_model=traces.Asked)
    async def llm(n: Number, target: permissions.Target = Depends(may.read)) -> Response:
        """Return one model call: the request as it was, the answer, and every attempt."""
        return await responder.respond(lambda: read_model_call(database, target.id, number=n, mask=mask))

    @router.get("/tool/{n}", operation_id="readToolCall", response_model=traces.Called)
    async def tool(n: Number, target: permissions.Target = Depends(may.read)) -> Response:
        """Return one tool call: its arguments and its result."""
        return await responder.respond(lambda: read_tool_call(database, target.id, number=n))

    return router


async def read(database: databases.Database, identity: UUID, *, after: int, limit: int) -> traces.Trace:
    """Read the calls that up to `limit` entries after number `after` record. The page is empty only if none follow."""
    end = await reads.log_end(database, identity)
    kinds = {*registry.WITH_MODEL_CALLS, *registry.WITH_TOOL_CALLS}
    while True:
        page = await transcript_pages.page(database, identity, kinds=kinds, after=after, upto=end, limit=limit)
        names = await transcript_pages.execution_names(
            database, identity, (numbered.logged.execution for numbered in page.entries)
        )
        lines = await asyncio.to_thread(traces.lines, page.entries, names)
        if lines or not page.more:
            return traces.Trace(calls=lines, last=page.last, more=page.more)
        after = page.last


async def read_index(
    database: databases.Database,
    identity: UUID,
    *,
    run: int | None = None,
    failed: bool = False,
    name: str = "",
    upto: int | None = None,
    offset: int = 0,
    limit: int = INDEX_MAX,
    row: str = "",
    align: int = 1,
) -> traces.Index:
    """Read a page of the index (`trace_index.page`); raises a Problem if there is no such investigation."""
    end = await reads.log_end(database, identity)
    upto = end if upto is None else min(upto, end)
    row_filter = trace_index.Filter(run=run, failed=failed, name=name)
    page = await trace_index.page(
        database, identity, row_filter, upto=upto, offset=offset, limit=limit, row=row, align=align
    )
    return await asyncio.to_thread(traces.Index.model_validate, page)


async def read_matches(database: databases.Database, identity: UUID, *, needle: str, after: int) -> traces.Matches:
    """Search some entries; raises a Problem if there is no such investigation."""
    await reads.log_end(database, identity)
    return traces.Matches.model_validate(await trace_index.search(database, identity, needle=needle, after=after))


async def read_model_call(
    database: databases.Database, identity: UUID, *, number: int, mask: base.Mask = base.MASK
) -> traces.Asked:
    """Read a model call. Raises a Problem if there is none with this number."""
    call = await _find(database, identity, kind="llm", number=number)
    entry, name, full_result = call.entry.logged.entry, "", None
    if isinstance(entry, entries.ToolSummarised):
        name = await transcript_pages.investigation_name(database, identity)
        full_result = await transcript_pages.full_result(database, identity, entry.execution, entry.call_id)
    return await asyncio.to_thread(traces.model_call, call, investigation=name, full_result=full_result, mask=mask)


async def read_tool_call(database: databases.Database, identity: UUID, *, number: int) -> traces.Called:
    """Read a tool call. Raises a Problem if there is none with this number."""
    call = await _find(database, identity, kind="tool", number=number)
    logged, run = call.entry.logged, traces.tool_run(call, number=number)
    full_result = await transcript_pages.full_result(
        database, identity, logged.execution, run.call.id, shown=run.result.text, excerpt=run.excerpt
    )
    summary = await transcript_pages.result_summary(database, identity, logged, run.call.id)
    return await asyncio.to_thread(traces.tool_call, call, number=number, full_result=full_result, summary=summary)


async def _find(
    database: databases.Database, identity: UUID, *, kind: transcript_pages.CallType, number: int
) -> transcript_pages.Call:
    call = await transcript_pages.call(database, identity, kind=kind, number=number)
    if call is None:
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"the trace has no {kind} call {number} yet")
    if isinstance(call.entry.logged.entry, entries.Unreadable):
        unreadable = f"{kind} call {number} cannot be read by this version of TARSy"
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"{unreadable}: {call.entry.logged.entry.problem}")
    return call

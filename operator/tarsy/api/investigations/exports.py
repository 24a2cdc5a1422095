"""The export of an investigation, complete in one file: JSON for programs, Markdown for people.

The file is sent while the log is read, page by page, so the memory for it does not grow with the log. All pages show
the log as it was at the beginning, without an open transaction, even if the client reads slowly. The log is read once
for each section. A row of the audit is written before.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Literal

import pydantic_core
from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from tarsy.api.investigations import actions, reads
from tarsy.auth import permissions
from tarsy.serve import answers, strict
from tarsy.store.base import audit, databases
from tarsy.store.reads import group_alerts, log_entries, summaries, transcript_pages
from tarsy.transcript import entries
from tarsy.transcript.kinds import registry
from tarsy.views import base, executions, investigations, markdown, timelines, transcripts

EXECUTIONS_MAX = 10_000
"""Executions in a Markdown export; a note says if there are more."""
HELD_BYTES = 4 * 1024 * 1024
"""The bytes that are counted for an export while it is sent: a page of the log, and the text made of it."""

Format = Literal["json", "markdown"]
_TYPES: dict[Format, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
}
"""Media type and file suffix."""


class GoneError(Exception):
    """The transcript was deleted during the export, which is incomplete."""


def routes(
    database: databases.Database, may: permissions.Access, responder: answers.Responder, *, mask: base.Mask
) -> APIRouter:
    """Return the route of the export."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.get(
        "/export",
        operation_id="exportInvestigation",
        response_model=investigations.Export,
        responses={200: {"description": "The file.", "content": {"text/markdown": {"schema": {"type": "string"}}}}},
    )
    async def export(
        target: permissions.Target = Depends(may.read),
        format: Annotated[Format, Query(description="For programs, or for people.")] = "json",  # noqa: A002 - its name
    ) -> StreamingResponse:
        """Return all of an investigation in one file: its facts, conversations, calls and timeline."""
        responder.hold(HELD_BYTES)
        details = await summaries.details(database, target.id)
        if details is None:
            raise reads.unknown_investigation(target.id)
        async with database.begin() as connection:
            await audit.write(connection, target.id, "export", by=actions.audited(target), detail={"format": format})
        media_type, suffix = _TYPES[format]
        name = f"{target.name}-{target.id}.{suffix}"
        return StreamingResponse(
            (as_json if format == "json" else as_markdown)(database, details, mask=mask),
            media_type=media_type,
            headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
        )

    return router


async def as_json(
    database: databases.Database, details: summaries.Details, *, mask: base.Mask = base.MASK
) -> AsyncIterator[bytes]:
    """Yield the document in pieces. Raises GoneError if it cannot be completed."""
    opening = json.dumps({"version": investigations.EXPORT_VERSION, "log_seq": details.log_seq}).encode()
    facts = await asyncio.to_thread(lambda: pydantic_core.to_json(investigations.facts(details, mask=mask)))
    yield opening[:-1] + b"," + facts[1:-1]
    changes, unreadable = executions.Changes(), list[transcripts.Unreadable]()
    async for page in transcript_pages.walk(
        database, details.summary.id, kinds=transcript_pages.EXECUTION_BOUNDS, upto=details.log_seq
    ):
        changes.add(page)
    sections = {
        "alerts": (
            pydantic_core.to_json([investigations.ListedAlert.model_validate(vars(alert)) for alert in alerts])
            async for alerts in group_alerts.walk(database, details.summary.id)
        ),
        "executions": _section(
            database,
            details,
            ("ExecutionStarted",),
            lambda numbered: _optional(executions.execution(numbered, changes, mask=mask)),
        ),
        "messages": _section(
            database, details, registry.WITH_MESSAGES, functools.partial(transcripts.messages_of, mask=mask)
        ),
        "llm_interactions": _section(
            database, details, registry.WITH_MODEL_CALLS, lambda numbered: _optional(transcripts.model_call(numbered))
        ),
        "mcp_interactions": _section(database, details, registry.WITH_TOOL_CALLS, transcripts.tool_calls),
        "timeline": _timeline(database, details, unreadable),
    }
    for name, lists in sections.items():
        yield f',"{name}":['.encode()
        separator = b""
        async for part in lists:
            if part != b"[]":
                yield separator + part[1:-1]
                separator = b","
        yield b"]"
    await _ensure_there(database, details)
    yield b',"unreadable":' + pydantic_core.to_json(unreadable) + b"}"


def _optional(view: base.View | None) -> Sequence[base.View]:
    return [view] if view else []


async def _section(
    database: databases.Database,
    details: summaries.Details,
    kinds: Sequence[str],
    views: Callable[[transcript_pages.NumberedEntry], Sequence[base.View]],
) -> AsyncIterator[bytes]:
    """Yield JSON lists of the views of all entries of these kinds."""
    async for page in transcript_pages.walk(database, details.summary.id, kinds=kinds, upto=details.log_seq):
        yield await asyncio.to_thread(_page_json, page, views)


def _page_json(
    page: Sequence[transcript_pages.NumberedEntry],
    views: Callable[[transcript_pages.NumberedEntry], Sequence[base.View]],
) -> bytes:
    return pydantic_core.to_json([view for numbered in page for view in views(numbered)])


async def _timeline(
    database: databases.Database, details: summaries.Details, unreadable: list[transcripts.Unreadable]
) -> AsyncIterator[bytes]:
    """Yield the timeline as JSON lists; entries that cannot be read are appended to `unreadable`."""
    after, more = 0, True
    while more:
        page = await log_entries.log_page(
            database,
            details.summary.id,
            after=after,
            limit=transcript_pages.BATCH_ENTRIES,
            upto=details.log_seq,
            size=transcript_pages.BATCH_BYTES,
        )
        if page is None or page.last == after:  # no entry follows, even if the log's last number is higher
            return
        unreadable += [
            transcripts.unreadable(logged.seq, logged.entry)
            for logged in page.log
            if isinstance(logged.entry, entries.Unreadable) and after < logged.seq <= page.last
        ]
        timeline = await asyncio.to_thread(timelines.timeline_page, page, after=after)
        yield await asyncio.to_thread(pydantic_core.to_json, timeline.events)
        after, more = page.last, page.more


async def as_markdown(
    database: databases.Database, details: summaries.Details, *, mask: base.Mask = base.MASK
) -> AsyncIterator[bytes]:
    """Yield the document in pieces. Raises GoneError if it cannot be completed."""
    identity, document = details.summary.id, markdown.Document(details, mask=mask)
    yield (await asyncio.to_thread(document.head)).encode()
    if details.summary.alerts:
        yield document.alerts_heading().encode()
        async for alerts in group_alerts.walk(database, identity):
            yield document.alerts(alerts).encode()
        yield b"\n"
    outlines = await transcript_pages.outlines(database, identity, upto=details.log_seq, limit=EXECUTIONS_MAX + 1)
    scopes = itertools.groupby(outlines[:EXECUTIONS_MAX], key=lambda outline: (outline.run, outline.stage))
    for scope in [list(group) for _, group in scopes]:
        yield document.scope(scope).encode()
        for outline in scope:
            yield document.execution(outline).encode()
            async for page in transcript_pages.walk(
                database, identity, after=outline.seq - 1, upto=details.log_seq, execution=outline.id
            ):
                yield (await asyncio.to_thread(document.page, page)).encode()
    if len(outlines) > EXECUTIONS_MAX:
        yield document.left_out(EXECUTIONS_MAX).encode()
    yield markdown.END.encode()
    await _ensure_there(database, details)


async def _ensure_there(database: databases.Database, details: summaries.Details) -> None:
    """Raise GoneError if the transcript was deleted meanwhile, so that the file does not look complete."""
    if await summaries.location(database, details.summary.id) is None:
        raise GoneError(f"the transcript of {details.summary.id} was deleted while it was exported")

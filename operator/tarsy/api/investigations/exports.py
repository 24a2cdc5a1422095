"""The export of an investigation, complete in one file: JSON for programs, Markdown for people.

It is written while it is read, page by page, so its memory does not grow with the log. All pages belong to the log as
it stood at the beginning; no transaction is held meanwhile, however slowly the client reads. Sections come one after
the other, so the log is read once for each.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal

import pydantic_core
from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from tarsy.api.investigations import details, reads
from tarsy.auth import permissions
from tarsy.serve import answers, strict
from tarsy.store.base import databases
from tarsy.store.reads import conversations, history
from tarsy.transcript import entries, timeline
from tarsy.views import markdown, shapes, timelines, transcripts

VERSION = 2
"""The version of the JSON document; rises if programs that read it have to change."""
EXECUTIONS_MAX = 10_000
"""Executions that are told in Markdown; it says where there are more."""
HELD = 4 * 1024 * 1024
"""Bytes that an export counts as while it is read: what it has of the log at a time, and what is made of that."""

Format = Literal["json", "markdown"]
_TYPES: dict[Format, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
}
"""The media type, and how the file's name ends."""


class GoneError(Exception):
    """The transcript was deleted during the export, which is incomplete."""


class Export(details.Facts):
    """The JSON document: everything that is known of one investigation, each list in the order of its commits."""

    version: Literal[2]
    """1 had most of the facts in an object `summary`, costs as numbers, `native` and `attempts` of other names."""
    log_seq: int
    """The last entry of the log that it tells of."""
    executions: list[shapes.WholeExecution]
    messages: list[shapes.Message]
    llm_interactions: list[shapes.ModelCall]
    mcp_interactions: list[shapes.ToolCall]
    timeline: list[timelines.Event]
    """Each event in its newest form."""
    unreadable: list[shapes.Unreadable]


def routes(database: databases.Database, may: permissions.Access, room: answers.Room) -> APIRouter:
    """An investigation as a file."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.get(
        "/export",
        operation_id="exportInvestigation",
        response_model=Export,
        responses={200: {"description": "The file.", "content": {"text/markdown": {"schema": {"type": "string"}}}}},
    )
    async def export(
        target: permissions.Known = Depends(may.reads),
        format: Annotated[Format, Query(description="For programs, or for people.")] = "json",  # noqa: A002 - its name
    ) -> StreamingResponse:
        """All of an investigation in one file: what it is, its conversations, calls and timeline."""
        room.hold(HELD)
        with reads.store_is_up():
            head = await history.head(database, target.id)
        if head is None:
            raise reads.none_such(target.id)
        media_type, ending = _TYPES[format]
        name = f"{target.name}-{target.id}.{ending}"
        return StreamingResponse(
            as_json(database, head) if format == "json" else as_markdown(database, head),
            media_type=media_type,
            headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
        )

    return router


async def as_json(database: databases.Database, head: history.Head) -> AsyncIterator[bytes]:
    """The document in pieces; a GoneError where it cannot be had whole."""
    opening = json.dumps({"version": VERSION, "log_seq": head.log_seq}).encode()
    yield opening[:-1] + b"," + (await asyncio.to_thread(lambda: _written(details.facts(head))))[1:-1]
    unreadable: list[shapes.Unreadable] = []
    sections = {
        "executions": _executions(database, head),
        "messages": _section(database, head, conversations.SAYING, transcripts.messages_of),
        "llm_interactions": _section(database, head, conversations.ASKING, _model_calls),
        "mcp_interactions": _section(database, head, conversations.CALLING, transcripts.tool_calls),
        "timeline": _events(database, head, unreadable),
    }
    for name, section in sections.items():
        yield f',"{name}":['.encode()
        is_first = True
        async for written in section:
            yield written[1:-1] if is_first else b"," + written[1:-1]
            is_first = False
        yield b"]"
    await _still_there(database, head)
    yield b',"unreadable":' + _written(unreadable) + b"}"


async def _section(
    database: databases.Database,
    head: history.Head,
    kinds: Sequence[str],
    tell: Callable[[conversations.Placed], Sequence[shapes.Part]],
) -> AsyncIterator[bytes]:
    """Yield the JSON lists of entries of these kinds, without empty ones."""
    async for page in conversations.walk(database, head.summary.id, kinds=kinds, upto=head.log_seq):
        if (written := await asyncio.to_thread(_lines, page, tell)) != _NOTHING:
            yield written


def _lines(
    page: Sequence[conversations.Placed], tell: Callable[[conversations.Placed], Sequence[shapes.Part]]
) -> bytes:
    return _written([line for placed in page for line in tell(placed)])


def _model_calls(placed: conversations.Placed) -> list[shapes.ModelCall]:
    model_call = transcripts.model_call(placed)
    return [model_call] if model_call else []


async def _executions(database: databases.Database, head: history.Head) -> AsyncIterator[bytes]:
    ends = transcripts.Ends()
    async for page in conversations.walk(database, head.summary.id, kinds=conversations.FRAMING, upto=head.log_seq):
        ends.add(page)

    def tell(placed: conversations.Placed) -> list[shapes.WholeExecution]:
        execution = transcripts.execution(placed, ends)
        return [execution] if execution else []

    async for written in _section(database, head, ("ExecutionStarted",), tell):
        yield written


async def _events(
    database: databases.Database, head: history.Head, unreadable: list[shapes.Unreadable]
) -> AsyncIterator[bytes]:
    """The timeline, as JSON lists; what cannot be read is added to `unreadable`."""
    after, more = 0, True
    while more:
        page = await history.log_page(
            database,
            head.summary.id,
            after=after,
            limit=conversations.WALKED,
            upto=head.log_seq,
            size=conversations.WALKED_BYTES,
        )
        if page is None or page.last == after:  # there is no more, whatever the number of its last entry says
            return
        unreadable += [
            transcripts.unreadable(logged.seq, logged.entry)
            for logged in page.log
            if isinstance(logged.entry, entries.Unreadable) and after < logged.seq <= page.last
        ]
        if (written := await asyncio.to_thread(_events_of, page, after)) != _NOTHING:
            yield written
        after, more = page.last, page.more


def _events_of(page: history.LogPage, after: int) -> bytes:
    events = timeline.fold(page.log, claims=page.claims, executions=page.executions)
    page_events = (event for event in events if after < event.seq <= page.last)
    return _written([timelines.Event.model_validate(event) for event in page_events])


_NOTHING = b"[]"


def _written(value: Any) -> bytes:
    return pydantic_core.to_json(value)


async def as_markdown(database: databases.Database, head: history.Head) -> AsyncIterator[bytes]:
    """The document in pieces; a GoneError where it cannot be had whole."""
    identity, document = head.summary.id, markdown.Document(head)
    yield (await asyncio.to_thread(document.head)).encode()
    outlines = await conversations.outlines(database, identity, upto=head.log_seq, limit=EXECUTIONS_MAX + 1)
    scopes = itertools.groupby(outlines[:EXECUTIONS_MAX], key=lambda listed: (listed.run, listed.stage))
    for scope in [list(group) for _, group in scopes]:
        yield document.scope(scope).encode()
        for outline in scope:
            yield document.execution(outline).encode()
            after = outline.seq - 1
            async for page in conversations.walk(
                database, identity, after=after, upto=head.log_seq, execution=outline.id
            ):
                yield (await asyncio.to_thread(_in_markdown, document, page)).encode()
    if len(outlines) > EXECUTIONS_MAX:
        yield document.left_out(EXECUTIONS_MAX).encode()
    yield markdown.END.encode()
    await _still_there(database, head)


def _in_markdown(document: markdown.Document, page: Sequence[conversations.Placed]) -> str:
    return "".join(part for placed in page for part in document.entry(placed))


async def _still_there(database: databases.Database, head: history.Head) -> None:
    """Raise a GoneError if the transcript was deleted meanwhile: an end would say that this is all of it."""
    if await history.whereabouts(database, head.summary.id) is None:
        raise GoneError(f"the transcript of {head.summary.id} was deleted while it was exported")

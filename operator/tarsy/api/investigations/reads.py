"""Reads of one investigation: its state, its timeline, its messages."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from tarsy.auth import permissions
from tarsy.serve import answers, problems, strict
from tarsy.store.base import databases
from tarsy.store.reads import group_alerts, log_entries, summaries, transcript_pages
from tarsy.transcript import entries
from tarsy.transcript.kinds import registry
from tarsy.views import base, investigations, timelines, transcripts

ENTRIES_MAX = 500
"""The maximal number of entries whose messages or calls are on one page."""
EVENTS_MAX = 500
"""Events of one page of a timeline."""
ALERTS_MAX = 200
"""Alerts of one page."""
RUNS_MAX = 100
"""The maximal number of runs in an answer: run 0, and the newest questions."""
EXECUTIONS_MAX = 1000
"""The maximal number of executions of these runs in an answer, the first ones."""
UNREADABLE_MAX = 100
"""The maximal number of unreadable entries in an answer."""
_EXECUTION = r"^[\w./-]+$"
"""The form of an execution's id: text that Postgres accepts."""
_NAMED_MAX = 20
"""The maximal number of executions that a problem names if an unknown one is requested."""

_CALL = re.compile(r"(.+)\.(\d+\.\d+)\.call")
"""The id of a tool call's event: the execution, and the call."""
_CALL_ENTRIES = 20
"""Entries of an execution that are read at once to find one of its calls."""

After = Annotated[int, Query(ge=0, le=2**63 - 1, description="`last` of the page before; 0 begins.")]
Limit = Annotated[
    int, Query(ge=1, le=ENTRIES_MAX, description="Entries of the log; a page has fewer where they are large.")
]


def routes(
    database: databases.Database, may: permissions.Access, responder: answers.Responder, *, mask: base.Mask
) -> APIRouter:
    """Return the routes of an investigation, its timeline and its messages."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.get("", operation_id="readInvestigation", response_model=investigations.Investigation)
    async def investigation(target: permissions.Target = Depends(may.read)) -> Response:
        """Return an investigation and its state, with its newest 100 runs."""
        return await responder.respond(lambda: read(database, target.id, mask=mask))

    @router.get("/timeline", operation_id="readTimeline", response_model=timelines.Timeline)
    async def timeline(
        target: permissions.Target = Depends(may.read),
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX, description="Of events, or a few more.")] = EVENTS_MAX,
    ) -> Response:
        """Return the events of the timeline that changed after entry `after`, in their newest form."""
        return await responder.respond(lambda: read_timeline(database, target.id, after=after, limit=limit))

    @router.get("/alerts", operation_id="listInvestigationAlerts", response_model=investigations.AlertPage)
    async def alerts(
        target: permissions.Target = Depends(may.read),
        after: Annotated[int, Query(ge=-1, le=2**63 - 1, description="`last` of the page before; -1 begins.")] = -1,
        limit: Annotated[int, Query(ge=1, le=ALERTS_MAX, description="Of alerts.")] = ALERTS_MAX,
    ) -> Response:
        """Return the alerts of an investigation, that which it was made for and those that joined it, as they came."""
        return await responder.respond(lambda: read_alerts(database, target.id, after=after, limit=limit))

    @router.get("/messages", operation_id="listMessages", response_model=transcripts.Messages)
    async def messages(
        target: permissions.Target = Depends(may.read),
        after: After = 0,
        limit: Limit = ENTRIES_MAX,
        execution: Annotated[
            str | None,
            Query(
                pattern=_EXECUTION,
                max_length=100,
                examples=["60ead127526dc20c"],
                description="Only the messages of this execution.",
            ),
        ] = None,
    ) -> Response:
        """Return the messages of its conversations after entry `after` of its log."""
        return await responder.respond(
            lambda: read_messages(database, target.id, after=after, limit=limit, execution=execution, mask=mask)
        )

    return router


def unknown_investigation(identity: UUID) -> problems.Problem:
    """Return the problem of an investigation that does not exist."""
    return problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")


async def log_end(database: databases.Database, identity: UUID) -> int:
    """Return the number of the log's last entry. Raises a Problem if there is no such investigation."""
    end = await transcript_pages.last_entry(database, identity)
    if end is None:
        raise unknown_investigation(identity)
    return end


async def read(
    database: databases.Database, identity: UUID, *, mask: base.Mask = base.MASK
) -> investigations.Investigation:
    """Read an investigation; the id is its object's uid."""
    details = await summaries.details(database, identity, runs=RUNS_MAX)
    if details is None:
        raise unknown_investigation(identity)
    runs = [run.number for run in details.runs]
    outlines = await transcript_pages.outlines(
        database, identity, upto=details.log_seq, limit=EXECUTIONS_MAX, runs=runs
    )
    unreadable = await transcript_pages.unknown_entries(database, identity, upto=details.log_seq, limit=UNREADABLE_MAX)
    return await asyncio.to_thread(investigations.investigation, details, outlines, unreadable, mask=mask)


async def read_alerts(
    database: databases.Database, identity: UUID, *, after: int, limit: int
) -> investigations.AlertPage:
    """Read a page of the alerts of an investigation."""
    alerts, more = await group_alerts.page(database, identity, after=after, limit=limit)
    return investigations.alert_page(alerts, after=after, more=more)


async def read_timeline(database: databases.Database, identity: UUID, *, after: int, limit: int) -> timelines.Timeline:
    """Read the events that changed after entry `after`, `limit` of them or a few more.

    A page ends with an entry, never inside one, so a client that continues after its `last` misses no event. It is
    empty only if no event follows.
    """
    entries_max = limit
    while True:
        log_page = await log_entries.log_page(database, identity, after=after, limit=entries_max)
        if log_page is None:
            raise unknown_investigation(identity)
        page = await asyncio.to_thread(timelines.timeline_page, log_page, after=after, limit=limit)
        if log_page.last == after:  # no entry follows, even if the log's last number is higher
            return page.model_copy(update={"more": False})
        if page.events or not page.more:
            return page
        after, entries_max = page.last, EVENTS_MAX


async def read_messages(
    database: databases.Database,
    identity: UUID,
    *,
    after: int,
    limit: int,
    execution: str | None = None,
    mask: base.Mask = base.MASK,
) -> transcripts.Messages:
    """Read the messages that up to `limit` entries after number `after` added, of all executions or of one.

    The page is empty only if no message follows. Raises a Problem if there is no such investigation or execution.
    """
    end = await log_end(database, identity)
    if execution is not None and execution not in await transcript_pages.execution_names(
        database, identity, [execution]
    ):
        outlines = await transcript_pages.outlines(database, identity, upto=end, limit=_NAMED_MAX)
        names = ", ".join(f"{outline.id} ({outline.name})" for outline in outlines) or "none yet"
        message = f"this investigation has no execution {execution!r}; executions: {names}"
        raise problems.invalid([problems.Fault(place="query.execution", message=message)])
    while True:
        page = await transcript_pages.page(
            database, identity, kinds=registry.WITH_MESSAGES, after=after, upto=end, limit=limit, execution=execution
        )
        messages = await asyncio.to_thread(
            lambda placed: [message for entry in placed for message in transcripts.messages_of(entry, mask=mask)],
            page.entries,
        )
        if messages or not page.more:
            return transcripts.Messages(messages=messages, last=page.last, more=page.more)
        after = page.last


async def read_event(
    database: databases.Database, identity: UUID, event: str, *, after: int | None
) -> list[timelines.Event]:
    """Read an event, and the result if it is a tool call; `after` is the number of an entry right before it.

    Raises a Problem if there is no such event.
    """
    if after is None:
        after = await _entry_before(database, identity, event)
    if after is not None:
        page = await read_timeline(database, identity, after=after, limit=1)
        ids = [event, f"{event.removesuffix('.call')}.result"] if event.endswith(".call") else [event]
        matching = (timeline_event for timeline_event in page.events if timeline_event.id in ids)
        if events := sorted(matching, key=lambda timeline_event: ids.index(timeline_event.id)):
            return events
    message = "the investigation has no such event, or the event has changed since: load the investigation again"
    raise problems.Problem(HTTPStatus.NOT_FOUND, message)


async def _entry_before(database: databases.Database, identity: UUID, event: str) -> int | None:
    """Return the number of the entry before the one with a call's result; None if there is no result."""
    call = _CALL.fullmatch(event)
    if call is None:
        return None
    end, after, more = await log_end(database, identity), 0, True
    while more:
        page = await transcript_pages.page(
            database,
            identity,
            kinds=("ToolsAnswered",),
            after=after,
            upto=end,
            limit=_CALL_ENTRIES,
            execution=call[1],
        )
        for numbered in page.entries:
            entry = numbered.logged.entry
            if isinstance(entry, entries.ToolsAnswered) and any(run.call.id == call[2] for run in entry.runs):
                return numbered.logged.seq - 1
        after, more = page.last, page.more
    return None

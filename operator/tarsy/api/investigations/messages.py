"""The conversations of an investigation, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from tarsy.api.investigations import reads
from tarsy.auth import permissions
from tarsy.serve import answers, problems, strict
from tarsy.store.base import databases
from tarsy.store.reads import conversations
from tarsy.views import shapes, transcripts

_ID = r"^[\w./-]+$"
"""The form of an execution's id: nothing that Postgres would refuse."""
_NAMED = 20
"""Executions that are named where another one was asked for."""


def routes(database: databases.Database, may: permissions.Access, room: answers.Room) -> APIRouter:
    """An investigation's messages."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.get("/messages", operation_id="listMessages", response_model=shapes.Messages)
    async def messages(
        target: permissions.Known = Depends(may.reads),
        after: reads.After = 0,
        limit: reads.Limit = reads.ENTRIES_MAX,
        execution: Annotated[
            str | None,
            Query(
                pattern=_ID,
                max_length=100,
                examples=["60ead127526dc20c"],
                description="Those of this execution alone.",
            ),
        ] = None,
    ) -> Response:
        """Return the messages of its conversations behind entry `after` of its log."""
        return await room.answer(lambda: read(database, target.id, after=after, limit=limit, execution=execution))

    return router


async def read(
    database: databases.Database, identity: UUID, *, after: int, limit: int, execution: str | None = None
) -> shapes.Messages:
    """The messages that entries behind number `after` brought, `limit` entries of them at most.

    `execution`: its own alone. It is empty only where nothing follows. A Problem where there is no such investigation
    or execution.
    """
    with reads.store_is_up():
        end = await conversations.end(database, identity)
        if end is None:
            raise reads.none_such(identity)
        if execution is not None and execution not in await conversations.names(database, identity, [execution]):
            raise _unknown(execution, await conversations.outlines(database, identity, upto=end, limit=_NAMED))
    while True:
        with reads.store_is_up():
            page = await conversations.page(
                database, identity, kinds=conversations.SAYING, after=after, upto=end, limit=limit, execution=execution
            )
        page_messages = await asyncio.to_thread(_messages, page.placed)
        if page_messages or not page.more:
            return shapes.Messages(messages=page_messages, last=page.last, more=page.more)
        after = page.last


def _messages(placed: Sequence[conversations.Placed]) -> list[shapes.Message]:
    return [message for placed_entry in placed for message in transcripts.messages_of(placed_entry)]


def _unknown(execution: str, executions: Sequence[conversations.Outline]) -> problems.Problem:
    there = ", ".join(f"{listed.id} ({listed.name})" for listed in executions) or "none yet"
    what = f"this investigation has no execution {execution!r}; executions: {there}"
    return problems.invalid([problems.Fault(place="query.execution", message=what)])

"""The timeline: events in their newest form, a page at a time."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, JsonValue

from tarsy.store.reads import log_entries
from tarsy.transcript import timeline, timeline_events
from tarsy.views import base

_TEXT: dict[str, JsonValue] = {"type": "string"}
_METADATA: dict[str, JsonValue] = {
    **dict.fromkeys(("provider", "model", "server_name", "tool_name", "arguments", "source"), _TEXT),
    "full_result_deleted": _TEXT,
    "in_doubt": {"type": "boolean"},
}
"""The metadata that several types of events have."""


class Event(base.View):
    """One event of the timeline, in its newest form. An event with a known id has changed."""

    id: str
    seq: int
    """The number of the log's entry that changed it last."""
    type: timeline_events.Type
    status: timeline_events.Status
    stage: str
    execution: str
    content: str
    metadata: Annotated[dict[str, Any], Field(json_schema_extra={"properties": _METADATA})]
    """Depends on the type; the fields not listed here belong to one type alone."""
    created_at: datetime
    updated_at: datetime


class Timeline(base.View):
    """The events that changed after an entry of the log."""

    events: list[Event]
    """By `seq`."""
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""


def timeline_page(page: log_entries.LogPage, *, after: int, limit: int = sys.maxsize) -> Timeline:
    """Return the events that a page of the log changed after entry `after`, `limit` of them or a few more."""
    events, last = timeline.page(
        timeline.fold(page.log, claims=page.claims, executions=page.executions),
        after=after,
        last=page.last,
        limit=limit,
    )
    return Timeline(
        events=[Event.model_validate(event) for event in events], last=last, more=page.more or last < page.last
    )

"""The timeline as it is shown: events in their newest form, a page at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, JsonValue

from tarsy.transcript import timeline_events
from tarsy.views import shapes

_TEXT: dict[str, JsonValue] = {"type": "string"}
_METADATA: dict[str, JsonValue] = {
    **dict.fromkeys(("provider", "model", "server_name", "tool_name", "arguments", "source"), _TEXT),
    "in_doubt": {"type": "boolean"},
}
"""The metadata that several types of events have."""


class Event(shapes.Part):
    """One event of the timeline, in its newest form. One that was there under its id before has changed."""

    id: str
    seq: int
    """The entry of the log that brought its last change."""
    type: timeline_events.Type
    status: timeline_events.Status
    stage: str
    execution: str
    content: str
    metadata: Annotated[dict[str, Any], Field(json_schema_extra={"properties": _METADATA})]
    """By its type; what else there is, is of one type alone."""
    created_at: datetime
    updated_at: datetime


class Timeline(shapes.Part):
    """The events that changed behind an entry of the log."""

    events: list[Event]
    """By `seq`."""
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""

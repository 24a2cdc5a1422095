"""Live events, the channels that carry them, and their encodings.

A live event is encoded once for each channel and each transport, for all subscribers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from tarsy.store.reads import stage_rows, summaries
from tarsy.transcript import entries

Transport = Literal["websocket", "event stream"]
_PREFIX = "investigation"
Body: TypeAlias = tuple[str, dict[str, Any]]
"""The type of a live event, and its fields."""


class FutureError(Exception):
    """A cursor that is ahead of the database; the message says how far the database is."""


class Translation(Protocol):
    """Channels under other names, for earlier clients, and the updates that only these channels carry."""

    @property
    def prefix(self) -> str:
        """The beginning of the channels' names."""

    def translate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a live event under the names that these clients know."""

    def entry_updates(
        self,
        entry: entries.Entry | entries.Unreadable,
        summary: summaries.Summary,
        course: stage_rows.StageProgress | None,
    ) -> Iterator[Body]:
        """Yield the updates of an entry of the log; `summary` is read at the entry or later."""

    def updates_since(
        self, since: int, summary: summaries.Summary, course: stage_rows.StageProgress | None
    ) -> tuple[Sequence[Body], int]:
        """Return the updates of an investigation after the first `since` ones, and the number of all so far.

        With `since` -1 only the latest update is returned.
        """


@dataclass(frozen=True)
class Channel:
    """A channel, under one of its names."""

    investigation: str | None
    """The id as the client wrote it; None is the list."""
    translation: Translation | None = None

    @property
    def name(self) -> str:
        """The name as the client wrote it."""
        prefix = self.translation.prefix if self.translation else _PREFIX
        return f"{prefix}s" if self.investigation is None else f"{prefix}:{self.investigation}"


def parse_channel(name: str, translation: Translation | None) -> Channel | None:
    """Return the channel of that name, or None."""
    for candidate in (None, translation):
        if name == (list_channel := Channel(None, candidate)).name:
            return list_channel
        if name.startswith(prefix := Channel("", candidate).name):
            return Channel(name.removeprefix(prefix), candidate)
    return None


def channel_names(translation: Translation | None) -> str:
    """Return the names of all channels, for the answer to an unknown name."""
    translations = [None, translation] if translation else [None]
    *names, last = (Channel(identity, candidate).name for candidate in translations for identity in (None, "<id>"))
    return f"{', '.join(names)} and {last}"


class LiveEvent:
    """A live event about an investigation, or about a list."""

    def __init__(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        investigation: UUID | None,
        id: int | None = None,  # noqa: A002 - its name on the wire
        only: Translation | None = None,
    ) -> None:
        """`kind` is the type; `investigation` is None for an event about a list; a client resumes after `id`.

        With `only`, the event is sent only on the channels of this translation.
        """
        self.kind = kind
        self.body = body
        self.id = id
        self.only = only
        self._investigation = investigation
        self._encoded: dict[tuple[Channel, Transport], bytes] = {}

    def with_id(self, id: int) -> LiveEvent:  # noqa: A002 - its name on the wire
        """Return this event with an id."""
        return LiveEvent(self.kind, self.body, investigation=self._investigation, id=id, only=self.only)

    def encode(self, channel: Channel, transport: Transport) -> bytes:
        """Return the event as it is sent on a channel."""
        encoded = self._encoded.get((channel, transport))
        if encoded is None:
            fields = self._fields(channel)
            if transport == "websocket":
                encoded = text_frame(fields)
            else:
                encoded = server_sent_event(fields["type"], fields, id=self.id)
            self._encoded[channel, transport] = encoded
        return encoded

    def _fields(self, channel: Channel) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": self.kind, "channel": channel.name}
        if self.id is not None:
            fields["id"] = self.id
        if self._investigation is not None:
            fields["investigation"] = str(self._investigation)
        fields |= self.body
        return channel.translation.translate(fields) if channel.translation else fields


class TextFrame(bytes):
    """A complete text frame, the same for all clients."""

    __slots__ = ()


def text_frame(fields: Mapping[str, Any]) -> TextFrame:
    """Return a WebSocket's text frame with these fields. Source: RFC 6455, section 5.2, "Base Framing Protocol"."""
    payload = _to_json(fields).encode()
    match len(payload):
        case length if length < 126:
            head = struct.pack("!BB", 0x81, length)
        case length if length < 1 << 16:
            head = struct.pack("!BBH", 0x81, 126, length)
        case length:
            head = struct.pack("!BBQ", 0x81, 127, length)
    return TextFrame(head + payload)


def server_sent_event(name: str, fields: Mapping[str, Any], *, id: int | None = None) -> bytes:  # noqa: A002
    """Return a Server-Sent Event; JSON has no line ends. Source: HTML standard, "Server-sent events"."""
    id_line = "" if id is None else f"id: {id}\n"
    return f"event: {name}\n{id_line}data: {_to_json(fields)}\n\n".encode()


def _to_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def timestamp(at: datetime) -> str:
    """Return a time in the format of the REST answers: RFC 3339, in UTC with a Z."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")

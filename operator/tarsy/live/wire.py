"""The messages for subscribers: channels, messages, and the translation of messages for clients with other names.

A message is encoded once for each channel and each way to send it, for all subscribers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from tarsy.store.reads import history, stage_rows
from tarsy.transcript import entries

Form = Literal["frame", "event"]
"""A WebSocket's text frame, or a Server-Sent Event."""

_PREFIX = "investigation"
Body: TypeAlias = tuple[str, dict[str, Any]]
"""A message's type, and its fields."""


class Translation(Protocol):
    """The messages for clients that know them by other names, and the updates that only these clients are sent."""

    @property
    def prefix(self) -> str:
        """The beginning of the names of their channels."""

    def translate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message with their names."""

    def entry_updates(
        self, entry: entries.Entry | entries.Unreadable, summary: history.Summary, course: stage_rows.Course | None
    ) -> Iterator[Body]:
        """Yield the updates of an entry of the log; `summary` is read at the entry or later."""

    def updates_since(
        self, since: int, summary: history.Summary, course: stage_rows.Course | None
    ) -> tuple[Sequence[Body], int]:
        """Return the updates of an investigation behind the first `since` ones, and the number of all so far.

        With `since` -1 only the latest is returned.
        """


@dataclass(frozen=True)
class Channel:
    """A channel, under one of its names."""

    investigation: str | None
    """The id as it was asked for; None is the list."""
    translation: Translation | None = None

    @property
    def name(self) -> str:
        """As it was asked for."""
        prefix = self.translation.prefix if self.translation else _PREFIX
        return f"{prefix}s" if self.investigation is None else f"{prefix}:{self.investigation}"


def channel(name: str, translation: Translation | None) -> Channel | None:
    """Return the channel of that name, or None."""
    for candidate in (None, translation):
        if name == (listed := Channel(None, candidate)).name:
            return listed
        if name.startswith(prefix := Channel("", candidate).name):
            return Channel(name.removeprefix(prefix), candidate)
    return None


def channel_names(translation: Translation | None) -> str:
    """Return the names of all channels, for a client that asks for another one."""
    translations = [None, translation] if translation else [None]
    *names, last = (Channel(identity, each).name for each in translations for identity in (None, "<id>"))
    return f"{', '.join(names)} and {last}"


class Frame(bytes):
    """All of a text frame, as it is sent, which is the same to everybody."""

    __slots__ = ()


def frame(text: str) -> Frame:
    """The text frame of `text`. Source: RFC 6455, section 5.2, "Base Framing Protocol"."""
    payload = text.encode()
    match len(payload):
        case length if length < 126:
            head = struct.pack("!BB", 0x81, length)
        case length if length < 1 << 16:
            head = struct.pack("!BBH", 0x81, 126, length)
        case length:
            head = struct.pack("!BBQ", 0x81, 127, length)
    return Frame(head + payload)


class Message:
    """A message about an investigation."""

    def __init__(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        of: UUID | None,
        id: int | None = None,  # noqa: A002 - its name on the wire
        only: Translation | None = None,
    ) -> None:
        """`kind` is its type; `of` is None of a list; `id` is where to go on behind it.

        With `only`, it is sent on the channels of this translation alone.
        """
        self.kind = kind
        self.body = body
        self.id = id
        self.only = only
        self._of = of
        self._encoded: dict[tuple[Channel, Form], bytes] = {}

    def frame(self, channel: Channel) -> bytes:
        """As a text frame for a channel."""
        encoded_frame = self._encoded.get((channel, "frame"))
        if encoded_frame is None:
            encoded_frame = self._encoded[channel, "frame"] = frame(encoded(self._fields(channel)))
        return encoded_frame

    def event(self, channel: Channel) -> bytes:
        """As a Server-Sent Event for a channel."""
        encoded_event = self._encoded.get((channel, "event"))
        if encoded_event is None:
            body = self._fields(channel)
            encoded_event = self._encoded[channel, "event"] = event(body["type"], body, id=self.id)
        return encoded_event

    def _fields(self, channel: Channel) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": self.kind, "channel": channel.name}
        if self.id is not None:
            fields["id"] = self.id
        if self._of is not None:
            fields["investigation"] = str(self._of)
        fields |= self.body
        return channel.translation.translate(fields) if channel.translation else fields


def moment(at: datetime) -> str:
    """A time as REST writes it: RFC 3339, in UTC with a Z."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def encoded(body: Mapping[str, Any]) -> str:
    """As JSON."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def event(name: str, body: Mapping[str, Any], *, id: int | None = None) -> bytes:  # noqa: A002 - its name on the wire
    """A Server-Sent Event; JSON has no line ends. Source: HTML standard, "Server-sent events"."""
    where = "" if id is None else f"id: {id}\n"
    return f"event: {name}\n{where}data: {encoded(body)}\n\n".encode()

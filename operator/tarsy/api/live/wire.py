"""The messages for subscribers: channels, and messages in our words and the founding documents'.

A message is encoded once for each name of its channel and each way to send it, for all subscribers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from tarsy.api.compat import words

Words = Literal["investigation", "session"]
"""Ours, or the founding documents'."""
Form = Literal["frame", "event"]
"""A WebSocket's text frame, or a Server-Sent Event."""

_LISTS: dict[str, Words] = {"investigations": "investigation", "sessions": "session"}
_ONES: dict[str, Words] = {"investigation": "investigation", "session": "session"}
CHANNELS = "investigations, investigation:<id>, sessions and session:<id>"
"""The channels, for a client that asks for another one."""


@dataclass(frozen=True)
class Channel:
    """A channel, under one of its names."""

    words: Words
    investigation: str | None
    """The id as it was asked for; None is the list."""

    @property
    def name(self) -> str:
        """As it was asked for."""
        if self.investigation is None:
            return f"{self.words}s"
        return f"{self.words}:{self.investigation}"


def channel(name: str) -> Channel | None:
    """The channel of that name; None where there is none."""
    if name in _LISTS:
        return Channel(_LISTS[name], None)
    room, colon, identity = name.partition(":")
    return Channel(_ONES[room], identity) if room in _ONES and colon else None


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
    """Something that is told of an investigation, in any words."""

    def __init__(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        of: UUID | None,
        id: int | None = None,  # noqa: A002 - its name on the wire
        only: Words | None = None,
    ) -> None:
        """`kind` is its type in our words; `of` is None of a list; `id` is where to go on behind it.

        `only` says that others do not get it.
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
            encoded_frame = self._encoded[channel, "frame"] = frame(encoded(self._in_words(channel)))
        return encoded_frame

    def event(self, channel: Channel) -> bytes:
        """As a Server-Sent Event for a channel."""
        encoded_event = self._encoded.get((channel, "event"))
        if encoded_event is None:
            body = self._in_words(channel)
            encoded_event = self._encoded[channel, "event"] = event(body["type"], body, id=self.id)
        return encoded_event

    def _in_words(self, channel: Channel) -> dict[str, Any]:
        head: dict[str, Any] = {"type": self.kind, "channel": channel.name}
        if self.id is not None:
            head["id"] = self.id
        if self._of is not None:
            head["investigation" if channel.words == "investigation" else "session_id"] = str(self._of)
        if channel.words == "investigation":
            return {**head, **self.body}
        return head | {"type": _renamed(self.kind)} | _in_old_words(self.body)


def _renamed(kind: str) -> str:
    room, dot, rest = kind.partition(".")
    return f"session{dot}{rest}" if room == "investigation" else kind


def _in_old_words(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the founding documents' status where there is a phase."""
    phase = body.get("phase")
    if phase is None:
        return dict(body)
    return {**body, "status": words.INVESTIGATIONS[phase].session, "has_errors": phase == "CompletedWithErrors"}


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

"""Spans: finished pieces of a trace, and ids that follow from what a span is about.

The process that commits the end of a piece of work sends its span, and a takeover may send it again. So no id is
random: each is a hash of the names of the piece of work, the same in all processes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

Kind = Literal["internal", "client"]


@dataclass(frozen=True)
class JSON:
    """An attribute whose value is JSON; it is serialized when the span is sent."""

    value: Any
    characters: int
    """About the length of its text."""


Value: TypeAlias = str | bool | int | float | Sequence[str] | JSON


@dataclass(frozen=True, kw_only=True)
class Link:
    """A span of another trace that this one refers to."""

    trace_id: bytes
    span_id: bytes
    sampled: bool = True
    reason: str
    """Why: the attribute `tarsy.link`."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A finished span."""

    trace_id: bytes
    """16 bytes."""
    span_id: bytes
    """8 bytes."""
    parent_id: bytes = b""
    """8 bytes; empty for the root of its trace."""
    name: str
    kind: Kind = "internal"
    start: datetime
    end: datetime
    attributes: Mapping[str, Value]
    links: Sequence[Link] = ()
    failed: bool = False
    """Whether its status is an error."""
    message: str = ""
    """The message of the error."""
    characters: int = field(init=False)
    """About the memory that it holds."""

    def __post_init__(self) -> None:
        texts = (len(value) for value in self.attributes.values() if isinstance(value, str))
        documents = (value.characters for value in self.attributes.values() if isinstance(value, JSON))
        object.__setattr__(self, "characters", 500 + len(self.message) + sum(texts) + sum(documents))


@dataclass(frozen=True, kw_only=True)
class Destination:
    """An OpenTelemetry collector, and how requests to it are made."""

    url: str
    """The whole address, such as http://collector:4318/v1/traces."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Seconds for one request."""
    compress: bool = False
    resource: Mapping[str, str] = field(default_factory=lambda: {"service.name": "tarsy"})
    """Attributes of the process that sends the spans; each request has them."""
    version: str = ""
    """The version of this program."""
    tls: Any = None
    """An `ssl.SSLContext`; None has the system's certificate authorities."""
    proxy: str | None = None


def trace_id(investigation: str, run: int) -> bytes:
    """Return the id of the trace of a run: 16 bytes, the same in all processes."""
    return _digest("trace", investigation, str(run))[:16]


def span_id(investigation: str, run: int, *names: str) -> bytes:
    """Return the id of a span within the trace of a run: 8 bytes, the same in all processes."""
    return _digest("span", investigation, str(run), *names)[:8]


def _digest(*names: str) -> bytes:
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogatepass")).digest()


_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def link_from_traceparent(traceparent: str, *, reason: str) -> Link | None:
    """Return a link to the span that a `traceparent` names; None if it is not valid.

    Source: W3C Trace Context, section 3.2, "Traceparent Header".
    """
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    sampled = bool(int(match[3], 16) & 1)
    return Link(trace_id=bytes.fromhex(match[1]), span_id=bytes.fromhex(match[2]), sampled=sampled, reason=reason)

"""OpenTelemetry collectors on loopback: one that takes spans by OTLP, and ways in which one does not."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2

Answer = Callable[[web.Request], web.Response]


@dataclass(frozen=True, kw_only=True)
class Received:
    """A span as a collector has it."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str, str], ...]
    """Trace, span, and the attribute `tarsy.link`."""
    failed: bool
    message: str


@dataclass(kw_only=True)
class Collector:
    """A collector and what it received; `answer` replaces its answer, `hangs` lets it give none."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answer: Answer | None = None
    hangs: bool = False
    sizes: list[int] = field(default_factory=list)
    """The number of spans of each request."""
    arrival: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        body = await request.read()
        takes = self.answer is None and not self.hangs
        async with self.arrival:
            if takes:
                self.take(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            self.arrival.notify_all()
        if self.hangs:
            await asyncio.sleep(3600)
        if self.answer is not None:
            return self.answer(request)
        empty = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=empty, content_type="application/x-protobuf")

    def take(self, body: bytes) -> None:
        sent = trace_service_pb2.ExportTraceServiceRequest()
        sent.ParseFromString(body)
        before = len(self.spans)
        for of_resource in sent.resource_spans:
            self.resources.append(_attributes(of_resource.resource.attributes))
            self.spans += [_received(span) for of_scope in of_resource.scope_spans for span in of_scope.spans]
        self.sizes.append(len(self.spans) - before)

    async def has(self, count: int) -> Sequence[Received]:
        """Wait until this many spans are there; a test's time limit ends the wait."""
        async with self.arrival:
            await self.arrival.wait_for(lambda: len(self.spans) >= count)
        return self.spans

    async def is_asked(self, count: int) -> None:
        """Wait until this many requests have come."""
        async with self.arrival:
            await self.arrival.wait_for(lambda: len(self.headers) >= count)


@asynccontextmanager
async def collector(**options: Any) -> AsyncIterator[Collector]:
    """A collector on a free port."""
    running = Collector(**options)
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", running.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    running.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield running
    finally:
        await runner.cleanup()


def orphans(spans: Sequence[Received]) -> list[str]:
    """The names of spans whose parent is missing."""
    span_ids = {(span.trace_id, span.span_id) for span in spans}
    return [span.name for span in spans if span.parent_id and (span.trace_id, span.parent_id) not in span_ids]


def _received(span: Any) -> Received:
    return Received(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        links=tuple(
            (link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)["tarsy.link"]) for link in span.links
        ),
        failed=span.status.code == 2,
        message=span.status.message,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(member) for member in value.array_value.values]
    return getattr(value, kind) if kind else None

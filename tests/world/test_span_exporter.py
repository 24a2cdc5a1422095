"""Spans on their way to a collector: batches, refusals, a collector that is away, and what a stop costs."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import abc, web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from support import collectors, time_limits, waiting
from tarsy.telemetry import span_exporter, spans
from tarsy_dev import patience

BEGAN = datetime(2026, 11, 25, 9, 0, tzinfo=UTC)


def span(number: int = 0, *, size: int = 0, name: str = "chat m") -> spans.Span:
    return spans.Span(
        trace_id=spans.trace_id("uid", 0),
        span_id=spans.span_id("uid", 0, str(number)),
        parent_id=spans.span_id("uid", 0),
        name=name,
        kind="client",
        start=BEGAN,
        end=BEGAN + timedelta(seconds=1.5),
        attributes={"text": "x" * size, "number": number, "big": 2**70, "whole": True, "part": 0.5, "list": ["a", "b"]},
        links=[spans.Link(trace_id=b"t" * 16, span_id=b"s" * 8, reason="alert")],
        failed=True,
        message="no",
    )


def destination(url: str, **fields: object) -> spans.Destination:
    return replace(spans.Destination(url=f"{url}/v1/traces", version="1.2"), **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def exporting(sent_to: spans.Destination, **options: object) -> AsyncIterator[span_exporter.SpanExporter]:
    """An exporter that runs; it is stopped without its last spans."""
    exporter = span_exporter.SpanExporter(sent_to, **options)  # type: ignore[arg-type]
    running = asyncio.create_task(exporter.run())
    try:
        yield exporter
    finally:
        running.cancel()
        await asyncio.wait([running])
        await exporter.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send each batch at once, and retry after a millisecond."""
    monkeypatch.setattr(span_exporter, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(span_exporter, "FIRST_BACKOFF", 0.001)


async def done(exporter: span_exporter.SpanExporter, count: int) -> None:
    """Wait until this many spans were taken or lost."""
    await waiting.until(lambda: exporter.sent + exporter.lost >= count)


def losses(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    records = [record for record in caplog.records if vars(record).get("action") == "traces_lost"]
    return [(vars(record)["spans"], vars(record)["reason"]) for record in records]


async def test_a_collector_gets_spans_as_otlp(soon: None) -> None:
    resource = {"service.name": "tarsy-eu"}
    headers = {"Authorization": "Basic abc", "x-langfuse-ingestion-version": "4"}
    async with collectors.collector() as collector:
        sent_to = destination(collector.url, headers=headers, resource=resource)
        async with exporting(sent_to) as exporter:
            exporter.emit([span(7, name="chat \ud800")])
            await done(exporter, 1)
            (received,) = collector.spans
        assert collector.paths == ["/v1/traces"]
        assert collector.resources == [resource]
        assert collector.headers[0].items() >= {**headers, "Content-Type": "application/x-protobuf"}.items()
        assert collector.headers[0]["User-Agent"] == "tarsy/1.2"
    assert received.trace_id == spans.trace_id("uid", 0).hex()
    assert received.span_id == spans.span_id("uid", 0, "7").hex()
    assert received.parent_id == spans.span_id("uid", 0).hex()
    assert (received.name, received.kind, received.failed, received.message) == ("chat \ufffd", 3, True, "no")
    assert (received.start, received.end - received.start) == (1_795_597_200 * 10**9, 1_500_000_000)
    assert received.attributes == {
        "text": "",
        "number": 7,
        "big": 2**63 - 1,
        "whole": True,
        "part": 0.5,
        "list": ["a", "b"],
    }
    assert received.links == (((b"t" * 16).hex(), (b"s" * 8).hex(), "alert"),)
    assert (exporter.sent, exporter.lost) == (1, 0)


async def test_batches_are_bounded_by_count_and_size_and_nothing_is_left(soon: None) -> None:
    async with collectors.collector() as collector:
        exporter = span_exporter.SpanExporter(destination(collector.url, compress=True))
        exporter.emit(span(number) for number in range(1200))
        exporter.emit(span(number, size=700 * 1024) for number in range(1200, 1203))
        await exporter.close()
        assert collector.headers[0]["Content-Encoding"] == "gzip"
        assert collector.sizes == [512, 512, 177, 1, 1]
        assert len({received.span_id for received in collector.spans}) == 1203
        assert exporter.sent == 1203


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_collector_is_asked_again(soon: None, status: int) -> None:
    def answer(_: web.Request) -> web.Response:
        if len(collector.headers) == 3:
            collector.answer = None
        return web.Response(status=status, headers={"Retry-After": "0"})

    async with collectors.collector() as collector, exporting(destination(collector.url)) as exporter:
        collector.answer = answer
        exporter.emit([span()])
        await done(exporter, 1)
        assert len(collector.headers) == 4
        assert exporter.lost == 0


@pytest.mark.parametrize("status", [302, 400, 401, 404, 413, 500])
async def test_a_refusal_costs_its_spans_and_is_not_repeated(
    soon: None, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with collectors.collector() as elsewhere, collectors.collector() as collector:
        collector.answer = lambda _: web.Response(status=status, headers={"Location": elsewhere.url})
        async with exporting(destination(collector.url)) as exporter:
            exporter.emit([span()])
            await collector.is_asked(1)
            collector.answer = None
            await done(exporter, 1)
            exporter.emit([span(1)])
            await done(exporter, 2)
        assert len(collector.headers) == 2
        assert elsewhere.headers == [], "a redirect gets no headers"
    assert losses(caplog) == [(1, f"the collector answers {status}")]


async def test_spans_that_a_collector_rejects_are_counted(soon: None, caplog: pytest.LogCaptureFixture) -> None:
    def answer(_: web.Request) -> web.Response:
        partial = trace_service_pb2.ExportTracePartialSuccess(rejected_spans=2, error_message="too old")
        body = trace_service_pb2.ExportTraceServiceResponse(partial_success=partial).SerializeToString()
        return web.Response(body=body)

    async with collectors.collector(answer=answer) as collector:
        exporter = span_exporter.SpanExporter(destination(collector.url))
        exporter.emit([span(0), span(1), span(2)])
        await exporter.close()
    assert (exporter.sent, exporter.lost) == (1, 2)
    assert losses(caplog) == [(2, "the collector rejected them")]


async def test_full_span_queue_drops_and_counts_spans_and_logs_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "STOP_SECONDS", 0.0)
    async with collectors.collector(hangs=True) as collector, exporting(destination(collector.url)) as exporter:
        exporter.emit(span(number) for number in range(span_exporter.QUEUE_SPANS + 10))
        exporter.emit([span(size=10)] * 5)
        assert exporter.lost == 15
        assert losses(caplog) == [(10, "the queue is full: the collector takes them too slowly")]


async def test_span_queue_is_bounded_by_bytes_as_well() -> None:
    exporter = span_exporter.SpanExporter(destination("http://127.0.0.1:1"))
    exporter.emit(span(number, size=1024 * 1024) for number in range(64))
    assert exporter.lost == 33


class HangingResolver(abc.AbstractResolver):
    """A name server that never answers."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[abc.ResolveResult]:
        del host, port, family
        await asyncio.sleep(3600)
        return []

    async def close(self) -> None:
        """Nothing is open."""


def refused_url() -> str:
    """Return an address at which no server listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{reserved.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["hangs", "refuses", "no name", "503"])
async def test_a_dead_collector_costs_a_stop_two_seconds_at_most(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test lets the two seconds pass, and waits less than a request's time limit."""
    assert span_exporter.STOP_SECONDS == 2.0
    limits = time_limits.TimeLimits(monkeypatch)
    answer = (lambda _: web.Response(status=503, headers={"Retry-After": "600"})) if kind == "503" else None
    async with collectors.collector(hangs=kind == "hangs", answer=answer) as collector:
        url = {"refuses": refused_url(), "no name": "http://collector.invalid:4318"}.get(kind, collector.url)
        resolver = HangingResolver() if kind == "no name" else None
        exporter = span_exporter.SpanExporter(destination(url, timeout=600.0), resolver=resolver)
        running = asyncio.create_task(exporter.run())
        exporter.emit(span(number) for number in range(600))
        if kind in ("hangs", "503"):
            await collector.is_asked(1)
        running.cancel()
        await asyncio.wait([running])
        closing = asyncio.create_task(exporter.close())
        await waiting.until(lambda: limits.expire(2.0) > 0 or closing.done())
        async with patience.limit():
            await closing
    assert exporter.lost == 600
    ((count, reason),) = losses(caplog)
    assert count == 600
    assert reason.startswith("the process stops: ")


async def test_spans_that_waited_are_sent_after_an_outage(soon: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with collectors.collector(answer=lambda _: web.Response(status=503)) as collector:
        async with exporting(destination(collector.url)) as exporter:
            exporter.emit([span(0)])
            await collector.is_asked(2)
            exporter.emit([span(1)])
            collector.answer = None
            await done(exporter, 2)
        assert exporter.lost == 0
    assert "the collector takes spans again" in caplog.messages


async def test_netrc_is_not_read_and_the_environments_proxy_is_not_asked_by_itself(
    soon: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret-of-netrc\n", encoding="utf-8")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", refused_url())
    async with collectors.collector() as collector, exporting(destination(collector.url)) as exporter:
        exporter.emit([span()])
        await collector.has(1)
        assert "Authorization" not in collector.headers[0]


async def test_a_lookup_that_hangs_is_waited_for_by_no_stop() -> None:
    """The lookup runs in a thread of its own, which ends with the process."""
    resolver = span_exporter.DaemonResolver()
    (address,) = await resolver.resolve("127.0.0.1", 4318)
    assert (address["host"], address["port"]) == ("127.0.0.1", 4318)
    for name in ("a" * 70 + ".invalid", "127.0.0.256"):
        with pytest.raises(OSError, match=r"[Nn]ame|label"):
            await resolver.resolve(name, 4318)

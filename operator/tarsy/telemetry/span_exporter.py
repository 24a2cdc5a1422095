"""Sends spans to an OpenTelemetry collector, by OTLP over HTTP, in batches and beside all other work.

A collector that is slow, away or wrong costs its spans: they wait in a bounded queue, and what has no room is dropped
and counted. It never delays what emits them, and it costs a stop at most `STOP_SECONDS`.

Spans come from committed entries and have ids of their own (`telemetry.spans`), so no tracer of OpenTelemetry's SDK is
used. Spans that libraries hand to the SDK's global tracer provider, which may hold unmasked contents, do not come here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import aiohttp
from aiohttp import abc

from tarsy.telemetry import spans

QUEUE_SPANS = 20_000
QUEUE_CHARACTERS = 32 * 1024 * 1024
"""The limits of the queue: about 40 MB."""
BATCH_SPANS = 512
BATCH_CHARACTERS = 1024 * 1024
"""The limits of a request, whose first span may be longer."""
DELAY_SECONDS = 1.0
"""The longest wait of a span for others of its batch."""
RETRY_SECONDS = 60.0
"""The time for which a batch is sent again; then it is dropped."""
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 15.0
STOP_SECONDS = 2.0
"""The time that a stop gives to the spans that are left."""
REPORT_SECONDS = 60.0
"""The shortest time between two log lines about lost spans."""
ANSWER_MAX = 64 * 1024
"""Bytes of an answer that are read."""
_RETRIABLE = frozenset({429, 502, 503, 504})
"""Source: OTLP specification, "OTLP/HTTP Response", "Retryable Response Codes"."""

log = logging.getLogger(__name__)


class _RefusedError(Exception):
    """The collector does not take a batch; `after` is its `Retry-After` in seconds, None if a repeat is of no use."""

    def __init__(self, reason: str, *, after: float | None) -> None:
        super().__init__(reason)
        self.after = after


class SpanExporter:
    """The queue of a process's spans, and its connection to the collector. All calls are made on one loop."""

    def __init__(self, destination: spans.Destination, *, resolver: abc.AbstractResolver | None = None) -> None:
        """`resolver` looks up names of hosts; None is the system's."""
        self.sent = 0
        """The spans that the collector took."""
        self.lost = 0
        """The spans that were dropped, or that the collector rejected."""
        self._destination = destination
        self._headers = {
            **destination.headers,
            "Content-Type": "application/x-protobuf",
            "User-Agent": f"tarsy/{destination.version}",
            **({"Content-Encoding": "gzip"} if destination.compress else {}),
        }
        self._resolver = resolver
        self._queue: deque[spans.Span] = deque()
        self._characters = 0
        self._batch: list[spans.Span] = []
        """The batch that is being sent."""
        self._waiting = asyncio.Event()
        self._full = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._encode: Callable[[Sequence[spans.Span]], bytes] | None = None
        self._unreported = 0
        self._reported = float("-inf")
        self._failing = False

    def emit(self, ended: Iterable[spans.Span]) -> None:
        """Queue spans; those that have no room are dropped."""
        dropped = 0
        for span in ended:
            if len(self._queue) >= QUEUE_SPANS or self._characters + span.characters > QUEUE_CHARACTERS:
                dropped += 1
                continue
            self._queue.append(span)
            self._characters += span.characters
        if self._queue:
            self._waiting.set()
        if len(self._queue) >= BATCH_SPANS or self._characters >= BATCH_CHARACTERS:
            self._full.set()
        if dropped:
            self._lose(dropped, "the queue is full: the collector takes them too slowly")

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        while True:
            await self._waiting.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(DELAY_SECONDS):
                    await self._full.wait()
            self._take()
            await self._deliver()

    async def close(self) -> None:
        """Send what is left, within `STOP_SECONDS`, and close the connection. Afterwards nothing may be emitted."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self._batch or self._queue:
                    self._take()
                    await self._send()
        except (TimeoutError, _RefusedError) as error:
            left = len(self._batch) + len(self._queue)
            self._reported = float("-inf")
            self._lose(left, f"the process stops: {error or 'the collector did not take them in time'}")
        finally:
            if self._session is not None:
                await self._session.close()

    def _take(self) -> None:
        """Move the next batch out of the queue, unless the last one is still there."""
        size = 0
        batch: list[spans.Span] = []
        while not self._batch and self._queue and len(batch) < BATCH_SPANS:
            size += self._queue[0].characters
            if batch and size > BATCH_CHARACTERS:
                break
            batch.append(self._queue.popleft())
            self._characters -= batch[-1].characters
        self._batch = self._batch or batch
        if not self._queue:
            self._waiting.clear()
        if len(self._queue) < BATCH_SPANS and self._characters < BATCH_CHARACTERS:
            self._full.clear()

    async def _deliver(self) -> None:
        """Send the batch, again and again for `RETRY_SECONDS`; then drop it."""
        until = time.monotonic() + RETRY_SECONDS
        backoff = FIRST_BACKOFF
        while self._batch:
            try:
                await self._send()
            except _RefusedError as error:
                self._failing = True
                wait = max(error.after or 0.0, backoff * (0.5 + random.random() / 2))  # noqa: S311 - spreads load only
                backoff = min(2 * backoff, LONGEST_BACKOFF)
                if error.after is None or time.monotonic() + wait > until:
                    batch, self._batch = self._batch, []
                    self._lose(len(batch), str(error))
                    return
                await asyncio.sleep(wait)

    async def _send(self) -> None:
        """Send the batch once. Raises _RefusedError; the batch stays then."""
        session, encode = await self._opened()
        body = await asyncio.to_thread(encode, self._batch)
        try:
            async with session.post(
                self._destination.url,
                data=body,
                headers=self._headers,
                allow_redirects=False,  # its headers are for this address
                proxy=self._destination.proxy,
            ) as response:
                answer = await response.content.read(ANSWER_MAX)
                status, retry_after = response.status, response.headers.get("Retry-After", "")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _RefusedError(f"the collector cannot be reached: {_reason(error)}", after=0.0) from error
        if not 200 <= status < 300:
            after = None if status not in _RETRIABLE else float(retry_after) if retry_after.isdecimal() else 0.0
            raise _RefusedError(f"the collector answers {status}", after=after)
        self._accepted(answer)

    def _accepted(self, answer: bytes) -> None:
        from tarsy.telemetry import otlp

        count, self._batch = len(self._batch), []
        rejected = max(0, min(otlp.rejected(answer), count))
        self.sent += count - rejected
        if rejected:
            self._lose(rejected, "the collector rejected them")
        elif self._failing:
            self._failing = False
            log.info("the collector takes spans again", extra={"action": "traces_sent"})

    async def _opened(self) -> tuple[aiohttp.ClientSession, Callable[[Sequence[spans.Span]], bytes]]:
        """Return the session and the encoder; the first call imports protobuf, in a thread."""
        if self._session is None or self._encode is None:
            self._encode = await asyncio.to_thread(_encoder, self._destination)
            connector = aiohttp.TCPConnector(
                limit=1, ssl=self._destination.tls or True, resolver=self._resolver or DaemonResolver()
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._destination.timeout),
            )
        return self._session, self._encode

    def _lose(self, count: int, reason: str) -> None:
        """Count lost spans, and log them at most once in `REPORT_SECONDS`."""
        self.lost += count
        self._unreported += count
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            log_fields = {"action": "traces_lost", "spans": self._unreported, "reason": reason}
            log.warning("spans were not sent: %s", reason, extra=log_fields)
            self._reported, self._unreported = time.monotonic(), 0


def _encoder(destination: spans.Destination) -> Callable[[Sequence[spans.Span]], bytes]:
    from tarsy.telemetry import otlp

    def encode(batch: Sequence[spans.Span]) -> bytes:
        return otlp.encode(
            batch, resource=destination.resource, version=destination.version, compress=destination.compress
        )

    return encode


def _reason(error: Exception) -> str:
    """Return the reason of a failed request in the operating system's words; others may quote headers."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return (inner.strerror if isinstance(inner, OSError) else None) or type(error).__name__


class DaemonResolver(abc.AbstractResolver):
    """Looks up names of hosts in threads that no stop waits for.

    The loop's own threads are awaited when it ends, and a lookup with a dead name server takes half a minute.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[abc.ResolveResult]:
        """Return the addresses of a host; raises OSError."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[abc.ResolveResult]] = loop.create_future()

        def settle(result: list[abc.ResolveResult] | None, error: OSError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result or [])

        def look_up() -> None:
            result: list[abc.ResolveResult] | None = None
            failure: OSError | None = None
            try:
                result = _look_up(host, port, family)
            except OSError as error:
                failure = error
            except UnicodeError as error:  # a label of the name is too long or empty
                failure = OSError(str(error))
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result, failure)

        threading.Thread(target=look_up, name="traces-resolver", daemon=True).start()
        return await future

    async def close(self) -> None:
        """Close nothing."""


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[abc.ResolveResult]:
    addresses = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    return [
        abc.ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=int(address[1]),
            family=known_family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for known_family, _, protocol, _, address in addresses
    ]

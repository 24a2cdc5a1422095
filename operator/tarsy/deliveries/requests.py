"""Requests to receivers: each receiver has connections and name lookups of its own, so a bad one costs itself alone.

Redirects are not followed, answers are read up to a limit and are not unpacked. An error quotes neither the address,
which may have a secret in it, nor the answer.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import yarl
from aiohttp import abc

from tarsy import proxies
from tarsy.config.model import fields
from tarsy.telemetry import logs, span_exporter

SECONDS = 15.0
"""The limit of a request, from the lookup of the name to the last byte of the answer."""
ANSWER_MAX = 64 * 1024
"""Bytes of an answer that are read."""
RETRY_AFTER_MAX = 3600.0
_OF_MESSAGE = frozenset({400, 406, 409, 411, 413, 414, 415, 417, 422, 431})
"""The statuses that refuse this message, while others may be taken. Source: RFC 9110, "Client Error 4xx"."""

_REASONS = {
    aiohttp.ClientConnectorDNSError: "its name is not found",
    aiohttp.ClientSSLError: "its TLS certificate is not accepted, or it speaks no TLS",
    aiohttp.ServerDisconnectedError: "it closed the connection",
    aiohttp.ClientPayloadError: "its answer breaks off",
    aiohttp.ClientResponseError: "its answer is not HTTP",
    TimeoutError: "no answer in time",
}
"""The reasons of errors that are not the operating system's."""


class UndeliveredError(Exception):
    """A receiver did not take a message; the text quotes no address, no secret and no answer."""

    def __init__(self, reason: str, *, after: float = 0.0, of_message: bool = False, status: int | None = None) -> None:
        """`after` are the seconds that the receiver asks to wait; `of_message`: it may take other messages.

        `status` is that of its answer; None without one.
        """
        super().__init__(reason)
        self.status = status
        self.after = after
        self.of_message = of_message


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer with a status of success."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    """Its beginning."""


class Client:
    """The connections to one receiver."""

    def __init__(self, *, resolver: abc.AbstractResolver | None = None, seconds: float = SECONDS) -> None:
        """`resolver` looks up names; None is the system's, in threads that no stop waits for."""
        self._resolver = resolver
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        """Open the pool, without a connection."""
        connector = aiohttp.TCPConnector(limit=1, resolver=self._resolver or span_exporter.DaemonResolver())
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._session.close()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        answer_max: int = ANSWER_MAX,
    ) -> Answer:
        """Send a request, and return the answer, at most `answer_max` bytes of it. Raises UndeliveredError.

        The status decides: with `answer_max` 0, a body that hangs or breaks off undoes no success.
        """
        if not fields.is_url(url):
            raise UndeliveredError("its address is not an http or https URL")
        sent_headers = {"User-Agent": "TARSy", "Accept-Encoding": "identity", **headers}
        try:
            with logs.no_fields():
                async with self._session.request(
                    method,
                    yarl.URL(url),
                    data=body,
                    headers=sent_headers,
                    allow_redirects=False,
                    proxy=proxies.proxy_for(url),
                ) as response:
                    if not 200 <= response.status < 300:
                        raise refusal(response.status, response.headers)
                    content = bytearray()
                    while len(content) < answer_max and (chunk := await response.content.read(ANSWER_MAX)):
                        content += chunk
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise UndeliveredError(_reason(error)) from error
        return Answer(status=response.status, headers=response.headers, body=bytes(content[:answer_max]))


class Paces:
    """The times at which messages may be sent to places that several receivers share."""

    def __init__(self) -> None:
        self._free_at: dict[Hashable, float] = {}
        self._locks: dict[Hashable, asyncio.Lock] = {}

    @asynccontextmanager
    async def one_at_a_time(self, destination: Hashable, *, seconds: float) -> AsyncIterator[None]:
        """Hold a destination for a request, `seconds` after the answer to the former one.

        Counted from the answer, requests are `seconds` apart at a slow destination, too. Raises UndeliveredError while
        the destination limits the rate.
        """
        async with self._locks.setdefault(destination, asyncio.Lock()):
            wait = self._free_at.get(destination, 0.0) - time.monotonic()
            if wait > seconds:
                raise UndeliveredError("it limits the rate", after=wait)
            await asyncio.sleep(max(0.0, wait))
            pause = seconds
            try:
                yield
            except UndeliveredError as error:
                pause = max(pause, error.after)
                raise
            finally:
                self._free_at[destination] = time.monotonic() + pause


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The surroundings of an attempt to send a message."""

    client: Client
    paces: Paces
    environment: Mapping[str, str]
    sent_as: Mapping[str, Any]
    """The notes of the former message about the same, or of the part that was sent; {} if there are none."""
    group_digests: Sequence[str] = ()
    """The digests of the group keys of the alerts, for a receiver that names their incidents by them."""
    may_be_sent: bool
    """Whether an earlier attempt may have reached the receiver."""
    keep: Callable[[Mapping[str, Any]], Awaitable[None]]
    """Stores notes of a part that was sent, for the next attempt."""


def refusal(status: int, headers: Mapping[str, str]) -> UndeliveredError:
    """Return the error of an answer that is no success."""
    after = retry_after(headers.get("Retry-After") or headers.get("RateLimit-Reset", ""))
    redirects = ", a redirect, which is not followed" if 300 <= status < 400 else ""
    return UndeliveredError(
        f"it answers {status}{redirects}", after=after, of_message=status in _OF_MESSAGE, status=status
    )


def retry_after(value: str) -> float:
    """Return the seconds of a header `Retry-After`, a number or a date, RETRY_AFTER_MAX at most; 0 without one.

    Source: RFC 9110, 10.2.3.
    """
    if value.isascii() and value.isdecimal():
        return min(float(value[:9]), RETRY_AFTER_MAX)
    try:
        seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_MAX)


def _reason(error: Exception) -> str:
    """Return the reason of a failed request in the operating system's words; others may quote the answer."""
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return reason
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    number = inner.errno if isinstance(inner, OSError) else None  # a message of asyncio names the address
    words = os.strerror(number) if number and number > 0 else type(inner).__name__
    return f"it cannot be reached: {words}"

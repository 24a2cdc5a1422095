"""The scripted model's socket: which protocol, which reply, and the record of it all.

A loopback server rather than a mocked client, because the SDKs that tarsy uses speak through four different HTTP
libraries, and what has to be proven (timeouts, cancellation, what a cut stream looks like) happens in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import inspect
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from aiohttp import web

from tarsy_dev import keys, loopback, oracle, patience
from tarsy_dev.model import anthropic, gemini, investigator, openai_chat, openai_responses, script, tokens, wire

T = TypeVar("T")

WIRES: tuple[wire.Wire, ...] = (gemini, openai_chat, openai_responses, anthropic)
"""The protocols that are spoken."""

_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-api-key", "x-goog-api-key"})
_MAX_REQUEST = 256 * 1024 * 1024
_SHUTDOWN = 1.0  # seconds for a script that holds its answer back when the server ends


@dataclass(kw_only=True)
class Request(oracle.Entry):
    """One request, and what became of it."""

    late: ClassVar[tuple[str, ...]] = (*oracle.Entry.late, "answered", "status", "pieces")

    protocol: str
    path: str
    model: str
    key: keys.Key
    kind: keys.Kind
    iteration: int
    repeats: int
    streaming: bool
    api_key: str
    """A digest: `sha256:` and eight digits, as `digest` makes it."""

    headers: dict[str, str]
    body: Any
    """The JSON that was sent, None if it was none."""

    answered: str = ""
    """The kind of reply: a class of `script`, or `refused: ` and the reason."""

    status: int | None = None
    """The HTTP status, once headers were sent."""

    pieces: int = 0
    """How many pieces of the body were sent."""


class _ClosingError(Exception):
    """The server ends while it still owes something."""


def digest(secret: str) -> str:
    """How the log shows a secret."""
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:8]}" if secret else ""


class Server:
    """A running scripted model; `serve` starts one."""

    def __init__(self, *, script: script.Script, url: str, log: oracle.Log[Request]) -> None:
        self.script = script
        """The script that answers; may be replaced while it runs."""

        self.url = url
        """The base URL for an SDK."""

        self.failures: list[Exception] = []
        """The exceptions that scripts raised; `serve` raises the first of them at its end."""

        self._log = log
        self._closing = asyncio.Event()

        self.tokens = tokens.Endpoint(closing=self._closing)
        """Where it gives tokens."""

        self._earlier: Counter[keys.Key] = Counter()
        self._repeats: Counter[tuple[keys.Key, int]] = Counter()

    @property
    def requests(self) -> list[Request]:
        """All requests, in order of arrival."""
        return self._log.entries

    def requests_of(
        self,
        *,
        investigation: str | None = None,
        stage: str | None = None,
        agent: str | None = None,
        iteration: int | None = None,
        kind: keys.Kind | None = None,
    ) -> list[Request]:
        """The requests of an investigation (namespace/name), stage, agent, iteration, kind, or of any combination."""
        wanted = (investigation, stage, agent, iteration, kind)
        return [
            request
            for request in self.requests
            if all(
                want in (None, have)
                for want, have in zip(wanted, (*request.key, request.iteration, request.kind), strict=True)
            )
        ]

    async def wait_for(
        self, condition: Callable[[Sequence[Request]], T | None], *, timeout: float = patience.PATIENCE
    ) -> T:
        """Wait until a condition on the requests is true; return what it returned, or raise TooLong."""
        return await self._log.wait_for(condition, timeout=timeout)

    def application(self) -> web.Application:
        """The server as an aiohttp application."""
        app = web.Application(client_max_size=_MAX_REQUEST)
        app.router.add_get("/log", self._show_log)
        app.router.add_routes(self.tokens.routes())
        for spoken in WIRES:
            for route in spoken.routes:
                app.router.add_post(route, self._handler(spoken))
        return app

    def close(self) -> None:
        """Let everything that still waits or streams come to its end."""
        self._closing.set()

    async def _show_log(self, _: web.Request) -> web.Response:
        return web.json_response([dataclasses.asdict(request) for request in self.requests])

    def _handler(self, spoken: wire.Wire) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(spoken, request)

        return handle

    async def _handle(self, spoken: wire.Wire, http: web.Request) -> web.StreamResponse:
        arrived = time.time()
        body = _json(await http.read())
        model_call, refused = spoken.parse(path=http.match_info, headers=http.headers, body=body)
        model_call = dataclasses.replace(
            model_call,
            earlier=self._earlier[model_call.key],
            repeats=self._repeats[model_call.key, model_call.iteration],
        )
        self._earlier[model_call.key] += 1
        self._repeats[model_call.key, model_call.iteration] += 1
        record = self._log.add(
            Request(
                arrived=arrived,
                protocol=spoken.name,
                path=http.path,
                model=model_call.model,
                key=model_call.key,
                kind=model_call.kind,
                iteration=model_call.iteration,
                repeats=model_call.repeats,
                streaming=model_call.streaming,
                api_key=digest(model_call.api_key),
                headers=_redacted(http.headers),
                body=body,
            )
        )
        exchange = _Exchange(
            http=http, wire=spoken, model_call=model_call, record=record, log=self._log, closing=self._closing
        )
        end: oracle.End = "failed"
        try:
            reply = refused or await self._reply(model_call)
            record.answered = f"refused: {refused.message}" if refused else type(reply).__name__
            self._log.update(record)
            end = await exchange.play(reply)
        except asyncio.CancelledError:
            end = self._gone()
            raise
        except ConnectionResetError:  # noticed while writing; its cancellation is on the way
            end = self._gone()
        except _ClosingError:
            end = exchange.cut()
        except Exception as error:
            self.failures.append(error)
            raise
        finally:
            self._log.finish(record, end)
        return exchange.response

    def _gone(self) -> oracle.End:
        return "cut by us" if self._closing.is_set() else "client closed"

    async def _reply(self, model_call: script.Turn) -> script.Reply:
        reply = self.script(model_call)
        return await reply if inspect.isawaitable(reply) else reply


@dataclass(kw_only=True)
class _Exchange:
    """One request being answered."""

    http: web.Request
    wire: wire.Wire
    model_call: script.Turn
    record: Request
    log: oracle.Log[Request]
    closing: asyncio.Event
    response: web.StreamResponse = dataclasses.field(default_factory=web.StreamResponse)

    async def play(self, reply: script.Reply) -> oracle.End:
        """Answer as the script says, and tell how it ended."""
        match reply:
            case script.HttpError():
                await self._refuse(reply)
            case script.Answer():
                await self._stream(reply)
                await self.response.write_eof()
            case script.Hang(after=after, answer=answer):
                await self._stream(answer, count=after)
                await self._wait(None)
            case script.Cut(after=after, answer=answer):
                await self._stream(answer, count=after)
                return self.cut()
            case script.StreamError(error=error, after=after, answer=answer):
                await self._break(error, answer, after)
            case script.Flood(megabytes=megabytes):
                await self._send(self.wire.flood(model_call=self.model_call, megabytes=megabytes))
                await self.response.write_eof()
            case script.Garbage(text=text):
                await self._send(iter([self.wire.garbage(model_call=self.model_call, text=text)]))
                await self.response.write_eof()
        return "completed"

    async def _refuse(self, error: script.HttpError) -> None:
        headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:g}"}
        self.response.headers.update(headers)
        await self._open(status=error.status, content_type=self.wire.content_type(streaming=False))
        await self._send(iter([self.wire.error(error, within_stream=False)]))
        await self.response.write_eof()

    async def _stream(self, answer: script.Answer, *, count: int | None = -1) -> None:
        """Send the first pieces of an answer: all of them (-1), or not even the headers (None)."""
        await self._wait(answer.delay)
        if count is None:
            return
        pieces = self.wire.pieces(model_call=self.model_call, answer=answer)
        await self._send(pieces if count < 0 else _first(pieces, count), pause=answer.pause)

    async def _break(self, error: script.HttpError, answer: script.Answer, after: int) -> None:
        if not self.model_call.streaming:
            return await self._refuse(error)
        await self._stream(answer, count=after)
        await self._send(iter([self.wire.error(error, within_stream=True)]))
        return await self.response.write_eof()

    async def _open(self, *, status: int, content_type: str) -> None:
        if not self.response.prepared:
            self.response.set_status(status)
            self.response.headers["Content-Type"] = content_type
            await self.response.prepare(self.http)
            self.record.status = status

    async def _send(self, pieces: Iterator[bytes], *, pause: float = 0.0) -> None:
        await self._open(status=200, content_type=self.wire.content_type(streaming=self.model_call.streaming))
        for piece in pieces:
            if self.record.pieces:
                await self._wait(pause)
            await self.response.write(piece)
            self.record.pieces += 1
            self.log.changed()

    async def _wait(self, seconds: float | None) -> None:
        """Wait, for ever if None; the server's end is no answer, and raises."""
        with contextlib.suppress(TimeoutError):
            if seconds != 0.0 or self.closing.is_set():
                await asyncio.wait_for(self.closing.wait(), seconds)
                raise _ClosingError

    def cut(self) -> oracle.End:
        """Close the connection, after what was sent."""
        if self.http.transport is not None:
            self.http.transport.close()
        return "cut by us"


def _first(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    for _, piece in zip(range(count), pieces, strict=False):
        yield piece


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _redacted(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: digest(value) if name.lower() in _SECRET_HEADERS else value for name, value in headers.items()}


@contextlib.asynccontextmanager
async def serve(
    script: script.Script = investigator.investigate,
    *,
    host: str = loopback.HOST,
    port: int = 0,
    log: Path | None = None,
    keep: int | None = None,
) -> AsyncIterator[Server]:
    """Serve a script on a port of this machine (0: a free one); `host` is another address than 127.0.0.1.

    `log` is a file that every request is appended to (`oracle.read`); `keep` limits how many stay in memory (None: all
    of them). At the end, what a script raised is raised.
    """
    requests: oracle.Log[Request] = oracle.Log(path=log, keep=keep)
    listening = loopback.listen(port, host=host)
    host, bound = listening.getsockname()
    server = Server(script=script, url=f"http://{host}:{bound}", log=requests)
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield server
    finally:
        server.close()
        await runner.cleanup()
        requests.close()
    if server.failures:
        raise server.failures[0]

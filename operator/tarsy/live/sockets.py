"""WebSockets: the requests of clients, and their answers.

A client gets the reason of a refusal, and goes on; one with too many refusals is closed. One that does not read is
dropped, and delays no other.

Source: RFC 6455, and its registry of close codes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, NoReturn
from uuid import UUID

import pydantic
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.websockets import WebSocket, WebSocketDisconnect

from tarsy.auth import permissions
from tarsy.ingest import payload
from tarsy.live import attending, outbox, wire
from tarsy.serve import problems, strict

PATHS = ("/api/v1/ws", "/ws")
SUBSCRIPTIONS_MAX = 100
ERRORS_MAX = 20
"""Messages of one connection that were none."""
UNUSED_SECONDS = 600.0
"""For so long a connection may watch nothing."""
FAREWELL_SECONDS = 1.0
_REASON_MAX = 123
"""Bytes. Source: RFC 6455, section 5.5: a control frame has 125, and the code takes two."""
GOING_AWAY, POLICY, RESTART, LATER = 1001, 1008, 1012, 1013
"""Close codes."""


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_Channel = Annotated[str, Field(max_length=100)]
_After = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Subscribe(_Action):
    """Watch a channel."""

    action: Literal["subscribe"]
    channel: _Channel
    last_event_id: _After | None = None
    namespace: Annotated[str, Field(max_length=63)] | None = None


class CatchUp(_Action):
    """Have a subscription go on behind an event."""

    action: Literal["catchup"]
    channel: _Channel
    last_event_id: _After


class Unsubscribe(_Action):
    """Watch a channel no longer."""

    action: Literal["unsubscribe"]
    channel: _Channel


class Ping(_Action):
    """Ask for a pong."""

    action: Literal["ping"]


_Said = Subscribe | CatchUp | Unsubscribe | Ping
_ACTIONS: Mapping[str, type[_Said]] = {
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "catchup": CatchUp,
    "ping": Ping,
}


class NotUnderstoodError(Exception):
    """The request is no action; the message has the reason, and the known actions."""


class _EndError(Exception):
    """The connection is to be closed, with this code; None: it is closed."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def routes(attend: attending.Attending, may: permissions.Access) -> APIRouter:
    """`/api/v1/ws` and `/ws`."""
    router = strict.router(tag="investigations")

    async def socket(websocket: WebSocket) -> None:
        try:
            _ensure_no_query(websocket)
            await may.connects(websocket)
            attend.places.take()
        except problems.Problem as problem:
            await websocket.send_denial_response(problems.response(problem))
            return
        await websocket.accept()
        await _Connection(websocket, attend).run()

    async def no_socket() -> Response:
        """Tell what it is, to who asks as for a page."""
        message = "this is a WebSocket: ask for an upgrade, or read /api/v1/events"
        raise problems.Problem(HTTPStatus.UPGRADE_REQUIRED, message, headers={"Upgrade": "websocket"})

    for path in PATHS:
        router.add_websocket_route(path, socket)
        router.get(path, include_in_schema=False)(no_socket)
    return router


def _ensure_no_query(websocket: WebSocket) -> None:
    """Refuse tokens in the URL: proxies log URLs."""
    if websocket.query_params:
        faults = [
            problems.Fault(place=f"query.{name}", message="no such parameter: there is none here")
            for name in dict.fromkeys(websocket.query_params)
        ]
        raise problems.invalid(faults)


def understood(text: str | None) -> _Said:
    """The action that a client asks for; None is a binary frame."""
    if text is None:
        raise NotUnderstoodError("binary frames are not read here: send text")
    try:
        request = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise NotUnderstoodError(f"this is no JSON: {error}"[: problems.ECHOED_MAX]) from error
    name = request.get("action") if isinstance(request, dict) else None
    shape = _ACTIONS.get(name) if isinstance(name, str) else None
    if shape is None:
        raise NotUnderstoodError(f"send an object with action, one of {', '.join(_ACTIONS)}")
    try:
        return TypeAdapter[_Said](shape).validate_python(request)
    except pydantic.ValidationError as error:
        raise NotUnderstoodError(f"{name}: {payload.places(error)}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@dataclass(kw_only=True)
class _Subscription:
    channel: wire.Channel
    namespace: str | None
    task: asyncio.Task[None]


class _Connection:
    """One client."""

    def __init__(self, websocket: WebSocket, attend: attending.Attending) -> None:
        self._socket = websocket
        self._attend = attend
        self._outbox = outbox.Outbox(lambda message, channel: message.frame(channel), attend.hub.held)
        self._subscriptions: dict[str, _Subscription] = {}
        self._errors = 0
        self._watched = 0
        self._left = time.monotonic()
        """Since when nothing is watched, if nothing is."""

    async def run(self) -> None:
        """Serve it until it goes, or has to."""
        code: int | None = GOING_AWAY
        reason = ""
        try:
            async with asyncio.TaskGroup() as group:
                self._say("connection.established")
                minds = (self._mind_the_queue(), self._mind_the_use(), self._mind_the_end())
                for part in (self._read(group), self._write(), *minds):
                    group.create_task(part)
        except* _EndError as ended:
            first = ended.exceptions[0]
            assert isinstance(first, _EndError)  # noqa: S101 - none is raised in a group of its own
            code, reason = first.code, first.reason
        except* WebSocketDisconnect:
            code = None
        finally:
            self._outbox.close()
        if code is not None:
            with suppress(TimeoutError, WebSocketDisconnect):  # one that does not read is not waited for
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._socket.close(code, reason.encode()[:_REASON_MAX].decode(errors="ignore"))

    async def _read(self, group: asyncio.TaskGroup) -> NoReturn:
        while True:
            came = await self._socket.receive()
            if came["type"] == "websocket.disconnect":
                raise _EndError(None)
            try:
                await self._do(understood(came.get("text")), group)
            except NotUnderstoodError as error:
                self._errors += 1
                if self._errors > ERRORS_MAX:
                    raise _EndError(POLICY, "too many errors") from error
                self._say("error", reason=str(error))

    async def _write(self) -> NoReturn:
        while True:
            await self._socket.send({"type": "websocket.send", "bytes": await self._outbox.next()})

    async def _mind_the_queue(self) -> NoReturn:
        await self._outbox.overflown.wait()
        raise _EndError(LATER, "too much waits to be read")

    async def _mind_the_use(self) -> NoReturn:
        left = UNUSED_SECONDS
        while left > 0:
            await asyncio.sleep(left)
            left = UNUSED_SECONDS - (0 if self._watched else time.monotonic() - self._left)
        raise _EndError(POLICY, f"nothing was subscribed for {UNUSED_SECONDS:g} s")

    async def _mind_the_end(self) -> NoReturn:
        await self._attend.hub.closing.wait()
        raise _EndError(RESTART, "the operator stops")

    def _say(self, kind: str, **told: Any) -> None:
        self._outbox.put(wire.frame(wire.encoded({"type": kind, **told})))

    async def _do(self, request: _Said, group: asyncio.TaskGroup) -> None:
        match request:
            case Ping():
                self._say("pong")
            case Subscribe():
                await self._subscribe(request, group)
            case CatchUp():
                await self._catch_up(request, group)
            case Unsubscribe():
                await self._unsubscribe(request)

    async def _subscribe(self, request: Subscribe, group: asyncio.TaskGroup) -> None:
        channel = self._channel(request.channel)
        if channel.name in self._subscriptions:
            raise NotUnderstoodError(f"{channel.name} is subscribed already: catchup goes on behind an event")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise NotUnderstoodError(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions: unsubscribe others")
        if request.namespace is not None and channel.investigation is not None:
            raise NotUnderstoodError("namespace: only a list has one")
        self._begin(channel, request.namespace, request.last_event_id, group)

    async def _catch_up(self, request: CatchUp, group: asyncio.TaskGroup) -> None:
        subscription = self._subscriptions.get(self._channel(request.channel).name)
        if subscription is None:
            raise NotUnderstoodError(f"{request.channel} is not subscribed: subscribe takes last_event_id as well")
        await _cancelled(subscription.task)
        self._begin(subscription.channel, subscription.namespace, request.last_event_id, group)

    async def _unsubscribe(self, request: Unsubscribe) -> None:
        subscription = self._subscriptions.get(self._channel(request.channel).name)
        if subscription is None:
            raise NotUnderstoodError(f"{request.channel} is not subscribed")
        await _cancelled(subscription.task)
        self._say("unsubscription.confirmed", channel=subscription.channel.name)

    def _channel(self, name: str) -> wire.Channel:
        translation = self._attend.hub.translation
        channel = wire.channel(name, translation)
        if channel is None:
            raise NotUnderstoodError(f"there is no channel {name}: there is {wire.channel_names(translation)}")
        if channel.investigation is not None:
            with suppress(ValueError):  # what is no id at all is answered as one that is not there
                _ensure_spelling(channel.investigation, str(UUID(channel.investigation)))
        return channel

    def _begin(self, channel: wire.Channel, namespace: str | None, after: int | None, group: asyncio.TaskGroup) -> None:
        wanted = attending.Wanted(channel=channel, namespace=namespace, after=after)
        task = group.create_task(self._follow(wanted))
        self._subscriptions[channel.name] = _Subscription(channel=channel, namespace=namespace, task=task)

        def forget(_: asyncio.Task[None]) -> None:
            current = self._subscriptions.get(channel.name)
            if current is not None and current.task is task:
                del self._subscriptions[channel.name]

        task.add_done_callback(forget)

    async def _follow(self, wanted: attending.Wanted) -> None:
        """Serve one subscription, to its end; its errors are its own, but an unknown token ends the connection."""
        name = wanted.channel.name
        try:
            attended = await self._attend.ask(self._socket, wanted)
            self._say("subscription.confirmed", channel=name)
            self._watched += 1
            try:
                await self._attend.attend(attended, outbox.Listener(self._outbox, wanted.channel))
            finally:
                self._watched -= 1
                self._left = time.monotonic()
        except problems.Problem as problem:
            if problem.status is HTTPStatus.UNAUTHORIZED:
                raise _EndError(POLICY, problem.detail) from problem
            self._say("subscription.error", channel=name, status=problem.status, reason=problem.detail)
        except attending.NobodyError as ended:
            raise _EndError(POLICY, str(ended)) from ended
        except attending.EndedError as ended:
            self._say("subscription.ended", channel=name, reason=str(ended))


def _ensure_spelling(spelling: str, right: str) -> None:
    """One id has one name, or many names of it would each be told on their own."""
    if spelling != right:
        raise NotUnderstoodError(f"{spelling} is written {right} here")


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel it, and wait until it has ended."""
    task.cancel()
    await asyncio.wait([task])

"""WebSockets: the requests of clients, and the answers.

A client whose request is refused receives the reason, and goes on; one with too many refusals is closed. A client that
does not read is dropped, and delays no other.

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

from tarsy import rawjson
from tarsy.auth import parameters, permissions, request_log
from tarsy.ingest import payload
from tarsy.live import backlogs, live_events, subscriptions
from tarsy.serve import problems, strict

PATHS = ("/api/v1/ws", "/ws")
SUBSCRIPTIONS_MAX = 100
ERRORS_MAX = 20
"""Refused requests of one connection."""
UNUSED_SECONDS = 600.0
"""Seconds that a connection may have no subscription."""
CLOSE_SECONDS = 1.0
"""Seconds that a client has to receive the reason of a close."""
_REASON_MAX = 123
"""Bytes. Source: RFC 6455, section 5.5: a control frame has 125, and the code takes two."""
GOING_AWAY, POLICY, RESTART, LATER = 1001, 1008, 1012, 1013
"""Close codes."""


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_Channel = Annotated[str, Field(max_length=100)]
_Cursor = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Namespace = Annotated[str, Field(max_length=63)]


class Subscribe(_Action):
    """Subscribe to a channel."""

    action: Literal["subscribe"]
    channel: _Channel
    last_event_id: _Cursor | None = None
    namespace: _Namespace | Annotated[list[_Namespace], Field(max_length=parameters.NAMESPACES_MAX)] | None = None
    """The namespace of a list, or several; None for all that are served and that the caller may list."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that it names."""
        return (self.namespace,) if isinstance(self.namespace, str) else tuple(self.namespace or ())


class CatchUp(_Action):
    """Resume a subscription after an event."""

    action: Literal["catchup"]
    channel: _Channel
    last_event_id: _Cursor


class Unsubscribe(_Action):
    """End a subscription."""

    action: Literal["unsubscribe"]
    channel: _Channel


class Ping(_Action):
    """Request a pong."""

    action: Literal["ping"]


_Request = Subscribe | CatchUp | Unsubscribe | Ping
_ACTIONS: Mapping[str, type[_Request]] = {
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "catchup": CatchUp,
    "ping": Ping,
}


class RefusedError(Exception):
    """A request that is refused; the message is for the client."""


class _CloseError(Exception):
    """The connection is to be closed with this code; None means that the client has closed it."""

    def __init__(self, code: int | None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def routes(subscribing: subscriptions.Subscriptions, may: permissions.Access) -> APIRouter:
    """Return the routes `/api/v1/ws` and `/ws`."""
    router = strict.router(tag="investigations")

    async def socket(websocket: WebSocket) -> None:
        try:
            _ensure_no_query(websocket)
            await may.open_websocket(websocket)
            subscribing.count_connection()
        except problems.Problem as problem:
            request_log.write(websocket, status=problem.status)
            await websocket.send_denial_response(problems.response(problem))
            return
        await websocket.accept()
        await _Connection(websocket, subscribing).run()

    async def no_socket() -> Response:
        """Refuse a request without an upgrade."""
        message = "this path is a WebSocket: send an upgrade, or read /api/v1/events"
        raise problems.Problem(HTTPStatus.UPGRADE_REQUIRED, message, headers={"Upgrade": "websocket"})

    for path in PATHS:
        router.add_websocket_route(path, socket)
        router.get(path, include_in_schema=False)(no_socket)
    return router


def _ensure_no_query(websocket: WebSocket) -> None:
    """Refuse parameters: a token in a URL would be in the logs of proxies."""
    if websocket.query_params:
        faults = [
            problems.Fault(place=f"query.{name}", message="unknown parameter; this path has none")
            for name in dict.fromkeys(websocket.query_params)
        ]
        raise problems.invalid(faults)


def parse_request(text: str | None) -> _Request:
    """Return the request in a text frame; None is a binary frame. Raises RefusedError."""
    if text is None:
        raise RefusedError("binary frames are not accepted: send text")
    try:
        request = json.loads(text, object_pairs_hook=_unique_members, parse_constant=rawjson.refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the text is not JSON: {error}"[: problems.ECHOED_MAX]) from error
    name = request.get("action") if isinstance(request, dict) else None
    action = _ACTIONS.get(name) if isinstance(name, str) else None
    if action is None:
        raise RefusedError(f"send an object with an action: one of {', '.join(_ACTIONS)}")
    try:
        return TypeAdapter[_Request](action).validate_python(request)
    except pydantic.ValidationError as error:
        raise RefusedError(f"{name}: {payload.places(error)}") from error


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member appears twice")
    return members


@dataclass(kw_only=True)
class _Subscription:
    channel: live_events.Channel
    namespaces: tuple[str, ...]
    task: asyncio.Task[None]


class _Connection:
    """The connection of one client."""

    def __init__(self, websocket: WebSocket, subscribing: subscriptions.Subscriptions) -> None:
        self._socket = websocket
        self._subscribing = subscribing
        self._backlog = backlogs.Backlog("websocket", subscribing.hub.memory)
        self._subscriptions: dict[str, _Subscription] = {}
        self._errors = 0
        self._following = 0
        """The number of confirmed subscriptions."""
        self._unused_since = time.monotonic()

    async def run(self) -> None:
        """Serve the connection until the client or the process closes it."""
        code: int | None = GOING_AWAY
        reason = ""
        try:
            async with asyncio.TaskGroup() as group:
                self._put("connection.established")
                closers = (
                    self._close_when_set(self._backlog.dropped, LATER, backlogs.TOO_SLOW),
                    self._close_when_unused(),
                    self._close_when_set(self._subscribing.hub.closing, RESTART, "the operator stops"),
                )
                for part in (self._read(group), self._write(), *closers):
                    group.create_task(part)
        except* _CloseError as closing:
            first = closing.exceptions[0]
            assert isinstance(first, _CloseError)  # noqa: S101 - none is raised in a group of its own
            code, reason = first.code, first.reason
        except* WebSocketDisconnect:
            code = None
        finally:
            self._backlog.close()
        if code is not None:
            with suppress(TimeoutError, WebSocketDisconnect):  # a client that does not read
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.close(code, reason.encode()[:_REASON_MAX].decode(errors="ignore"))

    async def _read(self, group: asyncio.TaskGroup) -> NoReturn:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise _CloseError(None)
            try:
                await self._handle(parse_request(message.get("text")), group)
            except RefusedError as error:
                self._errors += 1
                if self._errors > ERRORS_MAX:
                    raise _CloseError(POLICY, "too many errors") from error
                self._put("error", reason=str(error))

    async def _write(self) -> None:
        while event := await self._backlog.next():
            await self._socket.send({"type": "websocket.send", "bytes": event})

    async def _close_when_set(self, event: asyncio.Event, code: int, reason: str) -> NoReturn:
        await event.wait()
        raise _CloseError(code, reason)

    async def _close_when_unused(self) -> NoReturn:
        left = UNUSED_SECONDS
        while left > 0:
            await asyncio.sleep(left)
            left = UNUSED_SECONDS - (0 if self._following else time.monotonic() - self._unused_since)
        raise _CloseError(POLICY, f"nothing was subscribed for {UNUSED_SECONDS:g} s")

    def _put(self, kind: str, **fields: Any) -> None:
        self._backlog.put(live_events.text_frame({"type": kind, **fields}))

    async def _handle(self, request: _Request, group: asyncio.TaskGroup) -> None:
        if isinstance(request, Ping):
            self._put("pong")
            return
        channel = self._channel(request.channel)
        subscription = self._subscriptions.get(channel.name)
        match request:
            case Subscribe():
                self._subscribe(request, channel, group)
            case CatchUp():
                if subscription is None:
                    message = f"{request.channel} is not subscribed: subscribe has last_event_id as well"
                    raise RefusedError(message)
                await _cancel(subscription.task)
                self._begin(channel, subscription.namespaces, request.last_event_id, group)
            case Unsubscribe():
                if subscription is None:
                    raise RefusedError(f"{request.channel} is not subscribed")
                await _cancel(subscription.task)
                self._put("unsubscription.confirmed", channel=channel.name)

    def _subscribe(self, request: Subscribe, channel: live_events.Channel, group: asyncio.TaskGroup) -> None:
        if channel.name in self._subscriptions:
            raise RefusedError(f"{channel.name} is subscribed already: send catchup to resume after an event")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise RefusedError(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions: unsubscribe others")
        if request.namespace is not None and channel.investigation is not None:
            raise RefusedError("namespace: only the list channel has one")
        self._begin(channel, request.namespaces, request.last_event_id, group)

    def _channel(self, name: str) -> live_events.Channel:
        translation = self._subscribing.hub.translation
        channel = live_events.parse_channel(name, translation)
        if channel is None:
            raise RefusedError(f"unknown channel {name}: the channels are {live_events.channel_names(translation)}")
        identity = channel.investigation
        if identity is not None:
            with suppress(ValueError):  # text that is no id is refused later, like an unknown id
                if identity != (canonical := str(UUID(identity))):  # with two channels, events would be sent twice
                    raise RefusedError(f"write the id {identity} as {canonical}")
        return channel

    def _begin(
        self, channel: live_events.Channel, namespaces: tuple[str, ...], after: int | None, group: asyncio.TaskGroup
    ) -> None:
        request = subscriptions.Request(channel=channel, namespaces=namespaces, after=after)
        task = group.create_task(self._follow(request))
        self._subscriptions[channel.name] = _Subscription(channel=channel, namespaces=namespaces, task=task)

        def forget(_: asyncio.Task[None]) -> None:
            current = self._subscriptions.get(channel.name)
            if current is not None and current.task is task:
                del self._subscriptions[channel.name]

        task.add_done_callback(forget)

    async def _follow(self, request: subscriptions.Request) -> None:
        """Serve one subscription to its end. Errors are sent to the client; an unknown token closes the connection."""
        name, identity = request.channel.name, request.channel.investigation
        log_fields = {"uid": identity} if identity else {"namespace": ",".join(request.namespaces)}
        try:
            subscription = await self._subscribing.authorize(self._socket, request)
            request_log.write(self._socket, status=HTTPStatus.OK, **log_fields)
            self._put("subscription.confirmed", channel=name)
            self._following += 1
            try:
                await subscriptions.follow(subscription, backlogs.Subscriber(self._backlog, request.channel))
            finally:
                self._following -= 1
                self._unused_since = time.monotonic()
        except problems.Problem as problem:
            request_log.write(self._socket, status=problem.status, **log_fields)
            if problem.status is HTTPStatus.UNAUTHORIZED:
                raise _CloseError(POLICY, problem.detail) from problem
            self._put("subscription.error", channel=name, status=problem.status, reason=problem.detail)
        except subscriptions.UnauthenticatedError as ended:
            raise _CloseError(POLICY, str(ended)) from ended
        except subscriptions.EndedError as ended:
            self._put("subscription.ended", channel=name, reason=str(ended))


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait until it has ended."""
    task.cancel()
    await asyncio.wait([task])

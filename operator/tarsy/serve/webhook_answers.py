"""Counts the answers to webhooks by code, also those of a process that is starting."""

from __future__ import annotations

from starlette import types

from tarsy.ingest import formats
from tarsy.telemetry import metrics

PREFIX = "/api/v1/webhooks/"


def counted(app: types.ASGIApp) -> types.ASGIApp:
    """Return `app` with its answers to webhooks counted."""

    async def serve(scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await app(scope, receive, send)
            return
        sender = scope["path"].removeprefix(PREFIX).partition("/")[0]
        label = sender if sender in formats.PARSERS else metrics.UNKNOWN

        async def count(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                metrics.WEBHOOK_ANSWERS.add(label, str(message["status"]))
            await send(message)

        await app(scope, receive, count)

    return serve

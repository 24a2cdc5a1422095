"""A Slack on loopback: the methods that the product calls, as their documentation describes them.

Source: https://api.slack.com/methods - chat.postMessage, chat.update, conversations.history, conversations.replies.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support import receivers

TOKEN = "xoxb-4711-a-token-of-a-bot"
CHANNEL = "C024BE91L"


@dataclass(kw_only=True)
class Slack:
    """A channel, and its messages by `ts`."""

    posted: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    limits: int = 0
    """The number of next calls that are answered 429."""
    sent_at: list[float] = field(default_factory=list)
    """The times of requests to write or change a message, in seconds of the monotonic clock."""
    history: bool = True
    """Whether the bot may read the channel's history."""

    def answer(self, request: receivers.Request) -> web.StreamResponse:
        method = request.path.rpartition("/")[2]
        self.calls.append(method)
        if method.startswith("chat."):
            self.sent_at.append(time.monotonic())
        if self.limits:
            self.limits -= 1
            return web.Response(status=429, headers={"Retry-After": "1"})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response({"ok": False, "error": "invalid_auth"})
        values = json.loads(request.body) if request.method == "POST" else request.query
        if values["channel"] != CHANNEL:
            return web.json_response({"ok": False, "error": "channel_not_found"})
        return web.json_response(self._call(method, values))

    def _call(self, method: str, values: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "chat.postMessage" | "chat.update":
                if error := problem(values):
                    return {"ok": False, "error": error}
                ts = values.get("ts") or f"1700000000.{len(self.posted):06}"
                if method == "chat.update" and ts not in self.posted:
                    return {"ok": False, "error": "message_not_found"}
                self.posted[ts] = {**values, "ts": ts}
                return {"ok": True, "channel": CHANNEL, "ts": ts}
            case "conversations.history" | "conversations.replies" if not self.history:
                return {"ok": False, "error": "missing_scope", "needed": "channels:history"}
            case "conversations.history":
                return {"ok": True, "messages": [post for post in self.posted.values() if "thread_ts" not in post]}
            case "conversations.replies":
                ts = values["ts"]
                return {
                    "ok": True,
                    "messages": [post for post in self.posted.values() if ts in (post["ts"], post.get("thread_ts"))],
                }
        return {"ok": False, "error": "unknown_method"}

    @property
    def firsts(self) -> list[dict[str, Any]]:
        return [post for post in self.posted.values() if "thread_ts" not in post]

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [post for post in self.posted.values() if "thread_ts" in post]


def problem(values: dict[str, Any]) -> str:
    """The error of a message that Slack would not take, or that shows text from outside as more than text."""
    blocks = values["blocks"]
    if not values["text"] or not 0 < len(blocks) <= 50:
        return "invalid_blocks"
    if len(json.dumps(blocks, ensure_ascii=False)) > 13_000:
        return "msg_blocks_too_long"
    for block in blocks:
        texts = [block["text"]] if block["type"] == "section" else block["elements"]
        if any(not 0 < len(text["text"]) <= 3000 for text in texts):
            return "invalid_blocks"
        for text in texts:
            bare = re.sub(r"<https?://[^<>|\s]*\|[A-Z][a-z]+>", "", text["text"])
            if text["type"] == "mrkdwn" and re.search("[<>]", bare):
                return "invalid_blocks"
    return "invalid_blocks" if re.search("[<>]", values["text"]) else ""

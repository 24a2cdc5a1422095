"""Answers of a process, and how it waits, before its dependencies are there."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from tarsy.api import app
from tarsy.probes import checks, front, health
from tarsy.serve import problems


class Need:
    """Something that is missing until it is given, or has been asked for so often."""

    def __init__(self, *, after: float = math.inf) -> None:
        self.given = False
        self.asked = 0
        self._after = after

    async def __call__(self) -> Sequence[checks.Missing]:
        self.asked += 1
        return (
            []
            if self.given or self.asked > self._after
            else [checks.Missing(name="a need", needed_by=("worker",), reason="because")]
        )


async def answer(asked: front.Front, path: str, kind: str = "http") -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of an answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": f"{kind}.request" if kind == "http" else "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": path, "query_string": b"", "headers": [], "extensions": {}}
    await asked(scope, receive, send)
    head, *rest = sent
    headers = {name.decode(): value.decode() for name, value in head["headers"]}
    return head["status"], headers, json.loads(b"".join(message["body"] for message in rest))


async def test_paths_of_an_api_that_is_not_there_yet_are_to_be_asked_again_and_the_probes_answer() -> None:
    readiness = health.Readiness(["api"])
    asked = front.Front(app.probes(readiness), is_starting=True)
    for path, kind in (("/api/v1/alerts", "http"), ("/health", "http"), ("/api/v1/ws", "websocket")):
        status, headers, body = await answer(asked, path, kind)
        assert (status, headers["retry-after"], body["detail"]) == (503, "5", front.STARTING)
    assert (await answer(asked, "/healthz"))[0] == 200
    assert (await answer(asked, "/readyz"))[2]["detail"] == "not ready: the process is starting"
    asked.hand_over(app.probes(readiness))
    assert (await answer(asked, "/api/v1/alerts"))[0] == 404


async def test_a_process_without_an_api_serves_only_probes() -> None:
    asked = front.Front(app.probes(health.Readiness(["worker"])), is_starting=False)
    assert (await answer(asked, "/healthz"))[0] == 200
    status, headers, body = await answer(asked, "/health")
    assert (status, headers["content-type"], body["title"]) == (404, problems.MEDIA_TYPE, "Not Found")


async def test_a_request_for_readiness_ends_the_wait_once_the_part_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "RETRY_SECONDS", 1000.0)
    monkeypatch.setattr(health, "MISSING_FRESH_SECONDS", 0.0)
    need, other = Need(), Need()
    readiness = health.Readiness(["worker"], need, other)
    waiting = asyncio.create_task(readiness.wait_for(need))
    with pytest.raises(problems.Problem, match=r"^not ready: a need \(worker\); a need \(worker\)$"):
        await readiness.ensure()
    assert not waiting.done()
    need.given = True
    with pytest.raises(problems.Problem, match=r"^not ready: a need \(worker\)$"):
        await readiness.ensure()
    async with asyncio.timeout(60):
        await waiting


async def test_a_waiting_process_checks_again_and_logs_once_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "RETRY_SECONDS", 0.0)
    need = Need(after=10)
    async with asyncio.timeout(60):
        await health.Readiness(["worker"], need).wait_for(need)
    assert caplog.messages == ["not ready: because"]

"""People confirm tools that have changed, by the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from support import accounts, apis, queue
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.fleet import pins
from tarsy.telemetry import component_states

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
WEBHOOK = "the token"
JSON = {"Content-Type": "application/json"}
ACCEPT = "/api/v1/system/mcp-servers/kube/accept"


async def report_stopped(database: databases.Database, host: str, **stopped: str) -> None:
    """A worker says that these tools of `kube`, pinned at A, are something else now, and that `fine` is what it was."""
    places = tuple(
        component_states.StoppedTool(tool=tool, pinned=A, offered=offered) for tool, offered in stopped.items()
    )
    detail = component_states.Server(missing="has tools", tools=1, stopped=places)
    tools = component_states.Tools(tools=(component_states.OfferedTool(name="fine", read_only=True, hash=C),))
    facts = [
        component_states.ComponentState(kind="server", name="kube", state="connected", since=NOON, detail=detail),
        component_states.ComponentState(kind="tools", name="kube", state="listed", since=NOON, detail=tools),
    ]
    process_reporter = apis.keeping(database, host=host, slots=1, mask=platforms.AlertMasking().masker(NO_SECRETS).text)
    process_reporter.add_source(lambda: facts)
    await process_reporter.report()


@pytest.fixture
async def session(
    cluster: client.Cluster, database: databases.Database, editor: str
) -> AsyncIterator[aiohttp.ClientSession]:
    await pins.Pins(database).pinned("kube", seen={"get": A, "list": A, "fine": C}, confirmed={})
    headers = JSON | apis.bearer(editor)
    async with apis.served(apis.parts(cluster=cluster, database=database, token=WEBHOOK), headers=headers) as opened:
        yield opened


async def accept(session: aiohttp.ClientSession, body: Any = None, *, path: str = ACCEPT) -> tuple[int, Any]:
    async with session.post(path, json=body) if body is not None else session.post(path) as response:
        answer = await response.json(content_type=None)
        return response.status, answer.get("detail", answer)


async def pinned(database: databases.Database) -> dict[str, str]:
    rows = await queue.rows(database, "SELECT tool, hash FROM tool_pins WHERE server = 'kube'")
    return dict(rows)


async def warned(session: aiohttp.ClientSession) -> list[tuple[str, str]]:
    async with session.get("/api/v1/system/warnings") as response:
        listing = await response.json()
    return [(warning["name"], warning["message"]) for warning in listing["items"] if warning["kind"] == "tool"]


async def test_caller_that_reads_of_a_change_may_confirm_it(
    session: aiohttp.ClientSession, database: databases.Database
) -> None:
    await report_stopped(database, "a", get=B, list=C)
    await report_stopped(database, "b", get=B)
    until = "stopped until that is confirmed (tarsy tools accept kube, or tool_hashes in the platform file)"
    assert await warned(session) == [
        ("kube.get", f"a, b: it was pinned at {A} and is {B} now: {until}"),
        ("kube.list", f"a: it was pinned at {A} and is {C} now: {until}"),
    ]
    assert await accept(session, {"tools": {"get": C}}) == (409, f"get is not {C}: it is {B} now")
    assert await accept(session, {"tools": {"fine": B}}) == (409, f"fine is not {B}: it is not stopped")
    assert await pinned(database) == {"get": A, "list": A, "fine": C}

    made = {"server": "kube", "tools": [{"tool": "get", "before": A, "hash": B}]}
    assert await accept(session, {"tools": {"get": B, "fine": C}}) == (200, made)
    assert await accept(session, {"tools": {"get": B}}) == (200, {"server": "kube", "tools": []}), "again is no harm"
    assert await accept(session) == (200, {"server": "kube", "tools": [{"tool": "list", "before": A, "hash": C}]})
    assert await pinned(database) == {"get": B, "list": C, "fine": C}
    rows = await queue.rows(database, "SELECT who, action, name, detail FROM audit ORDER BY at")
    assert rows == [
        (accounts.EDITORS_NAME, "accept", "kube", {"get": {"from": A, "to": B}}),
        (accounts.EDITORS_NAME, "accept", "kube", {"list": {"from": A, "to": C}}),
    ]

"""Agents with tokens that end, credentials of browsers and hostile messages, at TARSy's MCP endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib import parse

import aiohttp
import pytest
from support import accounts, agents, apis, loglines, manifests, queue
from support.agents import ALERT, HOST, call
from support.clocks import Clock
from tarsy.api import app
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.mcp_endpoint import endpoint
from tarsy.store.base import databases
from tarsy.web import site
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
VERSION = "2026-07-28"
"""The version of the protocol without handshakes."""
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "1"},
}
UNKNOWN = str(uuid.uuid4())
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


class Served:
    """An API with the endpoint, asked by bare requests."""

    def __init__(self, url: str, session: aiohttp.ClientSession, application: app.Application) -> None:
        self.url = url
        self.application = application
        self._session = session

    async def ask(self, body: Any, *, method: str = "POST", **headers: str) -> tuple[int, str]:
        """The status and the text of an answer; a body of bytes is sent as it is."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.request(method, self.url, data=sent, headers={**JSON, **headers}) as response:
            return response.status, await response.text()

    async def call(self, token: str, tool: str, **arguments: Any) -> str:
        """Return the answer of a tool by the protocol without handshakes."""
        params = {"name": tool, "arguments": arguments, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        newer = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        status, text = await self.ask(message, **newer, **apis.bearer(token))
        assert status == 200, text
        content: str = json.loads(text)["result"]["content"][0]["text"]
        return content


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
def clock() -> Clock:
    return Clock(time.monotonic())


@pytest.fixture
async def serve(cluster: client.Cluster, database: databases.Database, clock: Clock) -> AsyncIterator[Serve]:
    """Serves an API with pages and the endpoint."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(settings: platforms.API | None = None, *, webhook: str | None = "a webhook's") -> Served:
            parts = apis.parts(cluster=cluster, database=database, token=webhook, settings=settings, clock=clock)
            application = app.build(parts)
            endpoint.add(application)
            site.add(application)
            address = await stack.enter_async_context(apis.listening(parts, application=application))
            session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
            return Served(f"{address}/mcp", session, application)

        yield start


async def account(admin: client.Cluster, **may: list[str]) -> str:
    """The token of an account with these rights."""
    return await accounts.create(admin, f"agent-{uuid.uuid4().hex[:8]}", may=may)


async def created(database: databases.Database) -> int:
    ((count,),) = await queue.rows(database, "SELECT count(*) FROM investigations")
    return int(count)


async def test_token_that_ends_while_an_agent_waits_reads_nothing_more(
    serve: Serve,
    admin: client.Cluster,
    cluster: client.Cluster,
    database: databases.Database,
    plane: Administrator,
    clock: Clock,
) -> None:
    served = await serve()
    identity = str(await agents.queued(database, cluster))
    may = {"alertinvestigations": ["get", "list"]}
    deleted, revoked = [await accounts.create(admin, name, may=may) for name in ("deleted", "revoked")]
    expired = accounts.signed(plane, deleted, exp=int(time.time()) - 60, iat=int(time.time()) - 3600)
    status, text = await served.ask(LIST, **apis.bearer(expired))
    assert (status, "unknown or has expired" in text) == (401, True)

    waits = [asyncio.create_task(served.call(token, "wait", id=identity)) for token in (deleted, revoked)]
    async with patience.limit():
        while served.application.services.subscribing._connections != len(waits):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await accounts.delete(admin, "deleted")
    await accounts.revoke(admin, "revoked")
    async with patience.limit():
        while (await served.ask(LIST, **apis.bearer(deleted)))[0] != 401:
            clock.now += 61
        while "may not list" not in await served.call(revoked, "investigations_list"):
            clock.now += 61
    await agents.finish(database, "root cause: a secret of others")
    texts = [await wait for wait in waits]
    assert "the token is unknown or has expired" in texts[0]
    assert "may not get alertinvestigations" in texts[1]
    assert "a secret of others" not in str(texts)


async def test_pages_of_our_own_alone_use_the_credentials_of_a_browser_or_a_proxy(
    serve: Serve, admin: client.Cluster, cluster: client.Cluster, database: databases.Database, plane: Administrator
) -> None:
    plane.create(manifests.chain(), namespace=cluster.served.own)
    await accounts.grant(admin, "jane", may={"alertinvestigations": ["create", "get", "list"]})
    token = await account(admin, alertinvestigations=["get", "list"])
    trusting = await serve(platforms.API(trusted_proxies=["127.0.0.1"], public_url=f"https://{HOST}"))
    wary = await serve(platforms.API(public_url=f"https://{HOST}"))
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as browser:
        site_url = wary.url.removesuffix("/mcp")
        async with browser.post(f"{site_url}/api/v1/session-codes", headers=apis.bearer(token)) as response:
            address = parse.urlsplit((await response.json())["url"])
        sign_in = f"{site_url}{address.path}?{address.query}"
        async with browser.get(sign_in, allow_redirects=False) as response:
            cookie = {"Cookie": f"tarsy_session={response.cookies['tarsy_session'].value}"}
    jane = {"X-Forwarded-User": "jane"}
    ours, theirs = {"Origin": f"https://{HOST}"}, {"Origin": "https://evil.example"}
    rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
    by_proxy = {"X-Forwarded-Host": "other.example", "X-Forwarded-Proto": "https", "Origin": "https://other.example"}
    for served, headers, expected in (
        (wary, apis.bearer(token), 200),
        (wary, {**apis.bearer(token), "Host": HOST}, 200),
        (wary, {**apis.bearer(token), **theirs, "Host": "any.example:8080"}, 200),
        (wary, jane, 401),
        (wary, {**cookie, **ours}, 200),
        (wary, cookie, 403),
        (wary, {**cookie, **theirs}, 403),
        (wary, {**cookie, **ours, "Content-Type": "text/plain"}, 415),
        (trusting, {**jane, **ours}, 200),
        (trusting, {**jane, **by_proxy}, 200),
        (trusting, jane, 403),
        (trusting, {**jane, **theirs}, 403),
        (trusting, {**jane, **ours, "X-Forwarded-Groups": "system:masters"}, 403),
        (trusting, {**jane, **ours, **apis.bearer("made-up")}, 401),
        (trusting, {**apis.bearer(token), **rebound}, 200),
    ):
        status, text = await served.ask(LIST, **headers)
        assert status == expected, (headers, text)
    async with agents.connected(trusting.url, {**jane, **ours}) as agent:
        begun = await call(agent, "investigate", **ALERT, seconds=0)
    made = plane.kubectl("get", "inv", begun["name"], "-o", "jsonpath={.spec.author}", namespace=cluster.served.own)
    assert made == "jane"
    assert await queue.rows(database, "SELECT who FROM audit WHERE action = 'create'") == [("jane",)]


async def test_programs_of_this_machine_alone_are_served_without_tokens(serve: Serve) -> None:
    local = await serve(webhook=None)
    assert (await local.ask(LIST))[0] == 200
    assert (await local.ask(LIST, Host="evil.example"))[0] == 421
    assert (await local.ask(LIST, **{"Content-Type": "text/plain"}))[0] == 415


def modern(tool: str, arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    params = {"name": tool, "arguments": arguments, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return message, {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": tool}


def older(tool: Any, arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def reading(uri: str) -> dict[str, Any]:
    return {**LIST, "method": "resources/read", "params": {"uri": uri}}


DEEP = json.dumps(older("investigation_search", {"query": "X"}))
HALF = "half of a surrogate pair"
HOSTILE: dict[str, tuple[Any, dict[str, str], int, str]] = {
    "no body": (b"", {}, 400, "Parse error"),
    "nothing but depth": (b"[" * 200_000, {}, 400, "Parse error"),
    "deep arguments": (DEEP.replace('"X"', "[" * 5000 + "]" * 5000).encode(), {}, 400, "Parse error"),
    "too many bytes": (older("wait", {"id": "x" * 600_000}), {}, 413, ""),
    "a batch": ([LIST, LIST], {}, 400, "Validation error"),
    "a call without id": (
        {key: value for key, value in older("investigate", ALERT).items() if key != "id"},
        {},
        202,
        "",
    ),
    "an unknown tool": (older("delete_everything", {}), {}, 200, "unknown tool: delete_everything; there are "),
    "many namespaces": (older("chains_list", {"namespace": [1] * 50_000}), {}, 200, "at most 100 items"),
    "a namespace that is gone": (older("investigate", {**ALERT, "namespace": "gone"}), {}, 200, "not served"),
    "an entry beyond all": (older("investigation_get", {"id": UNKNOWN, "after": 10**40}), {}, 200, "no investigation"),
    "a cursor that is made up": (older("investigations_list", {"cursor": "'; DROP TABLE work"}), {}, 200, "cursor"),
    "a search for a zero byte": (older("investigation_search", {"query": "\0"}), {}, 200, ""),
    "half a character": (*modern("investigation_search", {"query": "\ud800"}), 200, HALF),
    "a key with line ends": (older("investigate", {**ALERT, "idempotency_key": "a\r\nTarsy-Depth: 0"}), {}, 200, ""),
    "a session that is made up": (LIST, {"Mcp-Session-Id": "made-up"}, 200, "investigations_list"),
    "a file": (reading("file:///etc/passwd"), {}, 200, "Unknown resource"),
    "a path up": (reading(f"tarsy://investigations/{UNKNOWN}%2f..%2fx/transcript"), {}, 200, "not the id"),
}


async def test_hostile_messages_are_refused_in_words_and_start_nothing(
    serve: Serve,
    editor: str,
    cluster: client.Cluster,
    plane: Administrator,
    database: databases.Database,
    log_lines: loglines.LogLines,
) -> None:
    served = await serve()
    responses = {}
    for name, (body, headers, _, _) in HOSTILE.items():
        responses[name] = await served.ask(body, **{**headers, **apis.bearer(editor)})
    wrong = {
        name: (status, text[:300])
        for name, (status, text) in responses.items()
        if status != HOSTILE[name][2] or HOSTILE[name][3] not in text or "defect" in text or len(text) > 30_000
    }
    assert not wrong
    for method in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"):
        assert (await served.ask(b"", method=method, **apis.bearer(editor)))[0] == 405
    assert await created(database) == 0
    assert plane.kubectl("get", "inv", "-o", "name", namespace=cluster.served.own) == ""
    assert [line for line in log_lines() if line["level"] in ("ERROR", "WARNING")] == []

"""TARSy as an MCP server, asked by the official client, over a real API server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import aiohttp
import mcp
import pytest
from mcp import types
from support import accounts, agents, apis, loglines, manifests, queue, stories
from support.agents import ALERT, HOST, call, finish, queued, refused
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.live import subscriptions
from tarsy.mcp_endpoint import answers, api_calls, tools
from tarsy.resources import investigations, links
from tarsy.store.base import databases
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

LONG = "A line of an analysis. " * 1000

Connect = Callable[..., AbstractAsyncContextManager[mcp.Client]]


@pytest.fixture
async def url(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[str]:
    settings = platforms.API(public_url=f"https://{HOST}")
    parts = apis.parts(cluster=cluster, database=database, token="a webhook's", settings=settings)
    async with agents.listening(parts) as address:
        yield address


@pytest.fixture
def connect(url: str) -> Connect:
    """Connects as who has a token."""

    def connected(token: str, *, mode: str = "auto", **headers: str) -> AbstractAsyncContextManager[mcp.Client]:
        return agents.connected(url, {**apis.bearer(token), **headers}, mode=mode)

    return connected


@pytest.fixture
async def ended(database: databases.Database, cluster: client.Cluster) -> UUID:
    """An ended investigation of the operator's namespace."""
    identity = await queued(database, cluster)
    began = (stories.stage_started(), stories.started(), stories.answers(LONG))
    await finish(database, "root cause: no memory", *began, stories.ended(), stories.stage_ended())
    return identity


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_agent_learns_what_this_is_and_reads(
    connect: Connect, editor: str, ended: UUID, cluster: client.Cluster, database: databases.Database, mode: str
) -> None:
    async with connect(editor, mode=mode) as agent:
        assert "never as instructions" in str(agent.instructions)
        listed = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert set(listed) == {
            *("investigations_list", "investigation_search", "investigation_get", "investigate", "wait", "ask"),
            "chains_list",
        }
        assert all(tool.description and tool.annotations and tool.output_schema for tool in listed.values())
        writing = {name for name, tool in listed.items() if not tool.annotations.read_only_hint}  # type: ignore[union-attr]
        assert writing == {"investigate", "ask"}

        (row,) = (await call(agent, "investigations_list", phase=["Completed"]))["items"]
        assert (row["id"], row["namespace"]) == (str(ended), cluster.served.own)
        assert (await call(agent, "investigations_list", phase=["Failed"]))["items"] == []
        page = await call(agent, "investigation_search", query="memory")
        assert [row["id"] for row in page["items"]] == [str(ended)]
        detailed = await call(agent, "investigation_get", id=str(ended))
        assert detailed["investigation"]["final_analysis"] == "root cause: no memory"
        assert detailed["investigation"]["url"] == f"https://{HOST}/investigations/{ended}"
        long = max(detailed["timeline"]["events"], key=lambda event: len(event["content"]))["content"]
        assert long == LONG[: answers.CONTENT_MAX] + answers.CUT
        assert (await call(agent, "wait", id=str(ended)))["phase"] == "Completed"

        template, *_ = (await agent.list_resource_templates()).resource_templates
        transcript = await agent.read_resource(template.uri_template.replace("{id}", str(ended)))
        assert isinstance(transcript.contents[0], types.TextResourceContents)
        assert "root cause: no memory" in transcript.contents[0].text
        assert LONG in transcript.contents[0].text
    audited = await queue.rows(database, "SELECT action, investigation, who FROM audit")
    assert audited == [("export", ended, accounts.EDITORS_NAME)]


async def test_an_agent_starts_an_investigation_waits_for_it_and_asks(
    connect: Connect, editor: str, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain(), namespace=cluster.served.own)
    async with connect(editor) as agent:
        (chain,) = (await call(agent, "chains_list"))["items"]
        assert chain["alert_types"] == [ALERT["alert_type"]]
        begun = await call(agent, "investigate", **ALERT, idempotency_key="one", seconds=0)
        assert (begun["phase"], begun["final_analysis"]) == ("Queued", "")
        made = json.loads(plane.kubectl("get", "inv", begun["name"], "-o", "json", namespace=cluster.served.own))
        page = f"https://{HOST}/inv/{cluster.served.own}/{begun['name']}"
        assert made["metadata"]["annotations"] == {links.PAGE: page, links.ARGO_CD: f"TARSy investigation|{page}"}
        again = asyncio.create_task(call(agent, "investigate", **ALERT, idempotency_key="one"))
        waiting = asyncio.create_task(call(agent, "wait", id=begun["id"]))
        await finish(database, "root cause: a bad image")
        for state in (await again, await waiting):
            assert (state["id"], state["final_analysis"]) == (begun["id"], "root cause: a bad image")

        asked = asyncio.create_task(call(agent, "ask", id=begun["id"], question="Which image?"))
        async with patience.limit():
            while not await queue.rows(database, "SELECT 1 FROM work WHERE state = 'queued'"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await finish(database, "shop/web:broken")
        answered = await asked
        assert (answered["run"], answered["ended"], answered["answer"]) == (1, True, "shop/web:broken")


async def test_an_agent_has_the_rights_of_its_token_and_no_others(
    connect: Connect,
    ended: UUID,
    admin: client.Cluster,
    log_lines: loglines.LogLines,
) -> None:
    token = await accounts.create(admin, f"agent-{uuid.uuid4().hex[:8]}")
    nobody = "may not"
    async with connect(token) as agent:
        assert nobody in await refused(agent, "investigations_list")
        assert nobody in await refused(agent, "investigate", **ALERT)
        assert nobody in await refused(agent, "chains_list")
        assert nobody in await refused(agent, "investigation_get", id=str(ended))
        assert nobody in await refused(agent, "wait", id=str(ended))
        assert nobody in await refused(agent, "ask", id=str(ended), question="Why?")
        with pytest.raises(mcp.MCPError, match=nobody):
            await agent.read_resource(f"tarsy://investigations/{ended}/transcript")
    audited = [(line["method"], line["path"], line["status"]) for line in log_lines() if line.get("action") == "audit"]
    assert ("GET", "/api/v1/investigations/{identity}", 403) in audited
    assert ("POST", "/api/v1/alerts", 403) in audited


async def test_wrong_arguments_are_refused_with_the_reason(connect: Connect, editor: str, ended: UUID) -> None:
    async with connect(editor) as agent:
        assert "no chain" in (await refused(agent, "investigate", alert_type="Nonsense", data="x")).lower()
        assert (await refused(agent, "wait", id="../../system/config")).startswith("id: Input should be a valid UUID")
        assert "`investigations_list` names" in await refused(agent, "wait", id=str(uuid.uuid4()))
        unknown = await refused(agent, "investigations_list", namespaces=["shop"], limit=1)
        assert unknown.startswith("unknown arguments: namespaces; investigations_list has namespace, phase, ")
        assert "namespace: List should have at least 1" in await refused(agent, "investigations_list", namespace=[])
        assert "less than or equal to 45" in await refused(agent, "wait", id=str(ended), seconds=3600)
        assert "query.cursor" in await refused(agent, "investigations_list", cursor="made up")
        assert "query.since" in await refused(agent, "investigations_list", since="yesterday")
        with pytest.raises(mcp.MCPError, match="is not the id of an investigation"):
            await agent.read_resource("tarsy://investigations/made-up/transcript")


async def test_unknown_caller_gets_nothing(url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=accept) as session:
        for headers in ({}, apis.bearer("made-up")):
            async with session.post(url, json=message, headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
        for method in ("GET", "DELETE"):
            async with session.request(method, url) as response:
                assert response.status == 405


async def test_investigations_that_start_each_other_stop_at_the_maximum_depth(
    connect: Connect, editor: str, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain(), namespace=cluster.served.own)

    async def begin(agent: mcp.Client, depth: int) -> types.CallToolResult:
        meta: Any = {investigations.DEPTH_META: depth}
        return await agent.call_tool("investigate", {**ALERT, "seconds": 0}, meta=meta)

    async with connect(editor) as agent:
        for depth in range(1, investigations.DEPTH_MAX + 1):
            result = await begin(agent, depth)
            assert result.structured_content
            journal = await queue.opened(database, await queue.claimed(database))
            assert journal.record.snapshot.depth == depth
        looping = await begin(agent, investigations.DEPTH_MAX + 1)
        assert looping.is_error
        assert "in a loop" in str(looping.content)
    async with connect(editor, **{api_calls.DEPTH: str(investigations.DEPTH_MAX + 1)}) as agent:
        assert "in a loop" in await refused(agent, "investigate", **ALERT)
        identity = result.structured_content["id"]
        assert "cannot ask" in await refused(agent, "ask", id=identity, question="Why?")


@pytest.mark.parametrize("depth", ["9" * 5000, 10**50])
async def test_impossible_depth_is_refused_as_a_loop(connect: Connect, editor: str, depth: int | str) -> None:
    meta: Any = {investigations.DEPTH_META: depth}
    async with connect(editor) as agent:
        assert "in a loop" in str((await agent.call_tool("investigate", dict(ALERT), meta=meta)).content)


async def test_wait_of_a_client_that_has_gone_holds_no_slot(
    url: str, connect: Connect, editor: str, database: databases.Database, cluster: client.Cluster, monkeypatch: Any
) -> None:
    monkeypatch.setattr(subscriptions, "CONNECTIONS_MAX", 1)
    identity = str(await queued(database, cluster))
    call = {"name": "wait", "arguments": {"id": identity}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    headers = {"Accept": "application/json, text/event-stream", **apis.bearer(editor)}

    async def is_full(agent: mcp.Client) -> bool:
        result = await agent.call_tool("wait", {"id": identity, "seconds": 0.01})
        assert not result.is_error or "connections are open already" in str(result.content)
        return result.is_error

    async with connect(editor) as agent, aiohttp.ClientSession(headers=headers) as session:
        waiting = asyncio.create_task(session.post(url, json=message))
        while not await is_full(agent):
            if waiting.done():  # it came while the agent waited, and was refused
                waiting = asyncio.create_task(session.post(url, json=message))
        async with asyncio.timeout(tools.WAIT_MAX / 2):
            waiting.cancel()
            await session.close()
            while await is_full(agent):
                pass


async def test_results_have_a_size_that_a_model_reads_and_pages_have_all_events(
    connect: Connect, editor: str, database: databases.Database, cluster: client.Cluster, monkeypatch: Any
) -> None:
    identity = str(await queued(database, cluster))
    monkeypatch.setattr(api_calls, "ANSWER_MAX", 40 * len(LONG))
    answered = [stories.answers(f"{number} {LONG}", call_number=number) for number in range(60)]
    began = (stories.stage_started(), stories.started())
    await finish(database, f"root cause {LONG}", *began, *answered, stories.ended(), stories.stage_ended())
    read: list[dict[str, Any]] = []
    async with connect(editor) as agent:
        more, after = True, 0
        while more:
            result = await call(agent, "investigation_get", id=identity, after=after, limit=100)
            assert len(json.dumps(result)) < 60_000
            assert result["investigation"]["final_analysis"].endswith(answers.CUT)
            read += result["timeline"]["events"]
            more, after = result["timeline"]["more"], result["timeline"]["last"]
        waited = await call(agent, "wait", id=identity)
        with pytest.raises(mcp.MCPError, match="in pages with investigation_get"):
            await agent.read_resource(f"tarsy://investigations/{identity}/transcript")
        (resource,) = (await agent.list_resource_templates()).resource_templates
        assert "in pages with investigation_get" in (resource.description or "")
    assert waited["final_analysis"] == f"root cause {LONG}"[: answers.ANALYSIS_MAX] + answers.CUT
    texts = [event["content"].split()[0] for event in read if event["content"].endswith(answers.CUT)]
    assert texts[:60] == [str(number) for number in range(60)]
    assert [event["seq"] for event in read] == sorted(event["seq"] for event in read)

"""Agents of others, which ask TARSy as an MCP server by the official client."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx2
import mcp
from mcp import types
from mcp.client import streamable_http
from support import apis, queue, stories
from tarsy.api import app
from tarsy.kube import client, discovery
from tarsy.mcp_endpoint import endpoint
from tarsy.store.base import databases
from tarsy.transcript import entries

HOST = "tarsy.example.com"
"""The name of an ingress."""
ALERT = {"alert_type": "kubernetes", "data": "pod web-0 of shop crashes"}


@contextlib.asynccontextmanager
async def listening(parts: app.Parts) -> AsyncIterator[str]:
    """Serve an API with the endpoint; its URL."""
    application = app.build(parts)
    endpoint.add(application)
    async with apis.listening(parts, application=application) as address:
        yield f"{address}/mcp"


@contextlib.asynccontextmanager
async def connected(url: str, headers: dict[str, str], *, mode: str = "auto") -> AsyncIterator[mcp.Client]:
    """Connect through an ingress, by the protocol of handshakes or by the newer one."""
    http = httpx2.AsyncClient(headers={"Host": HOST, **headers}, timeout=60)
    async with http, mcp.Client(streamable_http.streamable_http_client(url, http_client=http), mode=mode) as agent:
        yield agent


async def call(agent: mcp.Client, tool: str, **arguments: Any) -> Any:
    """Return the answer of a tool, which a model reads as a text."""
    result = await agent.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.content[0], types.TextContent)
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refused(agent: mcp.Client, tool: str, **arguments: Any) -> str:
    """Why a tool is refused."""
    result = await agent.call_tool(tool, arguments)
    assert result.is_error
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text.removeprefix(f"Error executing tool {tool}: ")


async def queued(database: databases.Database, cluster: client.Cluster) -> UUID:
    """A queued investigation of the operator's namespace."""
    subject = queue.subject()
    metadata = subject.metadata.model_copy(update={"namespace": cluster.served.own})
    identity = await queue.admit(database, subject.model_copy(update={"metadata": metadata}))
    uid = await discovery.namespace_uid(cluster, cluster.served.own)
    await queue.execute(database, "UPDATE investigations SET namespace_uid = :uid", uid=uid)
    return identity


async def finish(database: databases.Database, analysis: str, *before: entries.Entry) -> None:
    """Run the next queued run to its end."""
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    ended = dataclasses.replace(stories.run_ended(final_analysis=analysis), run=claim.run)
    for entry in (*before, ended):
        await writing.commit(entry)

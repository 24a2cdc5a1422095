"""The pages of a trace over a real API server: only for readers, and safe whatever a tool or a model says."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from uuid import UUID

import aiohttp
import pytest
from support import accounts, apis, queue, stories
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site, traces

HOSTILE = "</pre></details><script>alert(1)</script>\x1b[31m\u202e<img src=//evil.example/x>[x](javascript:alert(1))"
LARGE = HOSTILE * 20_000
PATHS = ("", "/rows", "/llm/1", "/tool/1", "/llm/1?fragment=true", "/tool/1?fragment=true")


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of an API with its pages, without a token."""
    parts = apis.parts(cluster=cluster, database=database, token="the webhook's")
    application = app.build(parts)
    site.add(application)
    async with apis.served(parts, application=application) as session:
        yield session


@pytest.fixture
async def identity(database: databases.Database, cluster: client.Cluster) -> UUID:
    """An investigation with a model call and a tool call of hostile texts."""
    identity = await queue.admit(database)
    await queue.execute(
        database, "UPDATE investigations SET namespace = :at WHERE id = :id", at=cluster.served.own, id=identity
    )
    journal = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks(f"k8s.{HOSTILE}", text=LARGE, thinking=HOSTILE)
    await journal.commit(stories.stage_started(), stories.started(), asked)
    await journal.commit(stories.ran(asked, text=LARGE, failed=True, full_text=LARGE * 2))
    return identity


async def test_reader_of_the_namespace_alone_sees_a_trace(
    api: aiohttp.ClientSession, identity: UUID, admin: client.Cluster
) -> None:
    reader = await accounts.create(admin, f"reader-{uuid.uuid4().hex[:8]}", may={"alertinvestigations": ["get"]})
    stranger = await accounts.create(admin, f"stranger-{uuid.uuid4().hex[:8]}", may={"pods": ["get"]})
    for path in PATHS:
        address = f"/investigations/{identity}/trace{path}"
        for headers, expected in ((apis.bearer(reader), {200}), (apis.bearer(stranger), {403, 404}), ({}, {401})):
            async with api.get(address, headers=headers) as response:
                assert response.status in expected, (path, expected)
                assert response.headers["Content-Type"] == "text/html; charset=utf-8"


async def test_hostile_texts_are_escaped_and_shortened(
    api: aiohttp.ClientSession, identity: UUID, admin: client.Cluster
) -> None:
    reader = await accounts.create(admin, f"reader-{uuid.uuid4().hex[:8]}", may={"alertinvestigations": ["get"]})
    for path in PATHS:
        async with api.get(f"/investigations/{identity}/trace{path}", headers=apis.bearer(reader)) as response:
            html = await response.text()
            assert "'self'" in response.headers["Content-Security-Policy"]
        assert len(html) < 20 * traces.TEXT_MAX, path
        for raw in ("<script>alert", "<img src=//evil", "\x1b", "\u202e", 'href="javascript:', " style="):
            assert raw not in html, (path, raw)


async def test_problems_of_a_trace_are_pages(api: aiohttp.ClientSession, identity: UUID, admin: client.Cluster) -> None:
    reader = await accounts.create(admin, f"reader-{uuid.uuid4().hex[:8]}", may={"alertinvestigations": ["get"]})
    for path, expected, word in (
        ("/llm/99", 404, "the trace has no llm call 99"),
        ("/tool/0", 422, "path.n"),
        ("?colour=red", 422, "query.colour"),
        ("?failed=yes", 422, "query.failed"),
        ("?name=%00", 422, "query.name"),
        ("?offset=-1", 422, "query.offset"),
    ):
        async with api.get(f"/investigations/{identity}/trace{path}", headers=apis.bearer(reader)) as response:
            assert response.status == expected, path
            assert word in await response.text()

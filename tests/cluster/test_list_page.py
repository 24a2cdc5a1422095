"""The page of the list over a real API server: hostile texts, forms with empty fields, and readers without rights."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator

import aiohttp
import pytest
from support import accounts, apis, queue
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'><img src=x onerror=alert(2)>"


@pytest.fixture
async def pages(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of pages that need a token, with two investigations of hostile texts and one of another namespace."""
    for name in ("one", "two", "elsewhere"):
        subject = queue.subject(
            name,
            severity=HOSTILE[:60],
            labels={"alertname": HOSTILE, "namespace": HOSTILE, "pod": HOSTILE},
            alertData=json.dumps({"annotations": {"summary": HOSTILE * 300}}),
        )
        await queue.admit(database, subject)
    moved = "UPDATE investigations SET namespace = :namespace, namespace_uid = NULL WHERE name <> 'elsewhere'"
    await queue.execute(database, moved, namespace=cluster.served.own)
    parts = apis.parts(cluster=cluster, database=database, token="the webhook's")
    application = app.build(parts)
    site.add(application)
    async with apis.served(parts, application=application) as session:
        yield session


@pytest.fixture
async def reader(admin: client.Cluster) -> dict[str, str]:
    """The headers of an account that may list investigations."""
    name = f"reader-{uuid.uuid4().hex[:8]}"
    return apis.bearer(await accounts.create(admin, name, may={"alertinvestigations": ["get", "list"]}))


@pytest.mark.parametrize("path", ["/", "/fragments/investigations"])
async def test_hostile_texts_are_escaped_on_the_page_and_in_its_fragment(
    pages: aiohttp.ClientSession, reader: dict[str, str], path: str
) -> None:
    async with pages.get(path, headers=reader) as response:
        assert response.status == 200
        assert "script-src 'self'" in response.headers["Content-Security-Policy"]
        text = await response.text()

    assert text.count('id="card-') == 2
    assert "elsewhere" not in text
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert len(text) < 50_000


async def test_empty_fields_of_a_form_leave_the_address(pages: aiohttp.ClientSession, reader: dict[str, str]) -> None:
    parameters = [("q", ""), ("chain", ""), ("severity", 'a&b="c'), ("sort", "")]
    async with pages.get("/", params=parameters, headers=reader, allow_redirects=False) as response:
        assert response.status == 303
        assert response.headers["Location"] == "/?severity=a%26b%3D%22c"
    async with pages.get("/?q=&chain=", headers=reader, allow_redirects=False) as response:
        assert response.headers["Location"] == "/"


async def test_a_reader_without_rights_learns_nothing(pages: aiohttp.ClientSession, admin: client.Cluster) -> None:
    stranger = apis.bearer(await accounts.create(admin, f"stranger-{uuid.uuid4().hex[:8]}", may={}))
    for path in ("/", "/?severity=x", "/fragments/investigations"):
        async with pages.get(path, headers=stranger) as response:
            assert response.status == 403
            assert "card-" not in await response.text()
        async with pages.get(path) as response:
            assert response.status == 401

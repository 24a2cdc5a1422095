"""The page of the list over a real API server: names of objects, deleted investigations."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import aiohttp
import pytest
import yarl
from support import accounts, apis, manifests, queue
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site
from tarsy_dev.controlplane import Administrator


@pytest.fixture
async def pages(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of pages that need a token, with two investigations and one of another namespace."""
    for name in ("one", "two", "elsewhere"):
        await queue.admit(database, queue.subject(name, alertData="the text of the alert"))
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


async def test_callers_with_read_permission_find_an_object_by_name(
    pages: aiohttp.ClientSession,
    reader: dict[str, str],
    admin: client.Cluster,
    cluster: client.Cluster,
    plane: Administrator,
) -> None:
    namespace = cluster.served.own
    uid = plane.create(manifests.investigation("web-crash"), namespace=namespace)["metadata"]["uid"]
    stranger = apis.bearer(await accounts.create(admin, f"stranger-{uuid.uuid4().hex[:8]}", may={}))

    async def led_to(path: str, headers: dict[str, str]) -> str | int:
        async with pages.get(yarl.URL(path, encoded=True), headers=headers, allow_redirects=False) as response:
            return response.headers["Location"] if response.status == 303 else response.status

    assert await led_to(f"/inv/{namespace}/web-crash", reader) == f"/investigations/{uid}"
    assert await led_to(f"/inv/{namespace}/gone", reader) == f"/?namespace={namespace}&name=gone"
    for name in ("..", "%2e%2e", "web%2Fcrash", "Web", "x" * 300, "%00"):
        assert await led_to(f"/inv/{namespace}/{name}", reader) == 404
    for name in ("web-crash", "gone"):
        assert await led_to(f"/inv/{namespace}/{name}", stranger) == 403
        assert await led_to(f"/inv/not-served/{name}", reader) == 403
        assert await led_to(f"/inv/{namespace}/{name}", {}) == 401


async def test_deleted_investigations_are_shown_to_callers_who_can_restore_them(
    pages: aiohttp.ClientSession, reader: dict[str, str], admin: client.Cluster, database: databases.Database
) -> None:
    may = {"alertinvestigations": ["get", "list", "delete"]}
    keeper = apis.bearer(await accounts.create(admin, f"keeper-{uuid.uuid4().hex[:8]}", may=may))
    rows = await queue.rows(database, "SELECT id, name FROM investigations ORDER BY name")
    ids = {name: identity for identity, name in rows}
    deleted = "ended_at = now(), ending = 'Completed', deleted_at = '2026-11-20T10:00:00Z'"
    await queue.execute(database, f"UPDATE investigations SET {deleted} WHERE name <> 'two'")  # noqa: S608
    async with pages.get("/?deleted=true", headers=keeper) as response:
        text = await response.text()
    assert (response.status, text.count('id="row-')) == (200, 1), "of its namespace alone"
    assert f'href="/investigations/{ids["one"]}"' in text
    async with pages.get("/", headers=keeper) as response:
        assert str(ids["one"]) not in await response.text()
    async with pages.get("/api/v1/investigations?deleted=true", headers=keeper) as response:
        (listed_row,) = (await response.json())["items"]
    assert listed_row["deletion"] == {"at": "2026-11-20T10:00:00Z", "purge_at": "2026-11-27T10:00:00Z", "hold": None}
    for path in ("/?deleted=true", "/api/v1/investigations?deleted=true"):
        async with pages.get(path, headers=reader) as response:
            assert response.status == 403
    async with pages.get(f"/investigations/{ids['one']}", headers=keeper) as response:
        text = await response.text()
    assert (response.status, 'data-deletion="restore"' in text) == (200, True)
    assert "the text of the alert" not in text
    for headers, identity in ((reader, ids["one"]), (keeper, ids["elsewhere"]), (keeper, uuid.uuid4())):
        async with pages.get(f"/investigations/{identity}", headers=headers) as response:
            assert response.status == 404

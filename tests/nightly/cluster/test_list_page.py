"""The page of the list over a real API server: names of objects, deleted investigations."""

from __future__ import annotations

import json
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
    """With badge, date of the purge and buttons; a reader learns nothing of them."""
    may = {"alertinvestigations": ["get", "list", "delete"]}
    keeper = apis.bearer(await accounts.create(admin, f"keeper-{uuid.uuid4().hex[:8]}", may=may))
    rows = await queue.rows(database, "SELECT id, name FROM investigations ORDER BY name")
    ids = {name: identity for identity, name in rows}
    await queue.execute(
        database,
        "UPDATE investigations SET ended_at = now(), ending = 'Completed', deleted_at = '2026-11-20T10:00:00Z' "
        "WHERE name <> 'two'",
    )
    async with pages.get("/?deleted=true", headers=keeper) as response:
        text = await response.text()
    assert (response.status, text.count('id="row-')) == (200, 1), "of its namespace alone"
    assert f'href="/investigations/{ids["one"]}"' in text
    assert "Deleted</span> Purged after:" in text
    assert "2026-11-27 10:00:00 UTC" in text
    async with pages.get("/", headers=keeper) as response:
        assert str(ids["one"]) not in await response.text()
    async with pages.get("/?deleted=true", headers=reader) as response:
        assert (response.status, "<code>delete</code>" in await response.text()) == (403, True)
    async with pages.get("/api/v1/investigations?deleted=true", headers=keeper) as response:
        (listed_row,) = (await response.json())["items"]
    assert listed_row["deletion"] == {"at": "2026-11-20T10:00:00Z", "purge_at": "2026-11-27T10:00:00Z", "hold": None}
    async with pages.get("/api/v1/investigations?deleted=true", headers=reader) as response:
        assert response.status == 403

    async with pages.get(f"/investigations/{ids['one']}", headers=keeper) as response:
        text = await response.text()
        assert response.status == 200
    assert [action for action in ("restore", "hold", "purge", "delete") if f'data-deletion="{action}"' in text] == [
        "restore",
        "hold",
        "purge",
    ]
    assert HOSTILE not in text, "nothing of its transcript"
    await queue.execute(database, "UPDATE investigations SET hold = 'incident <4711>' WHERE name = 'one'")
    async with pages.get(f"/investigations/{ids['one']}", headers=keeper) as response:
        text = await response.text()
    assert "incident &lt;4711&gt;" in text
    assert "not while it is held" in text
    assert 'data-deletion="purge"' not in text
    for headers, identity in ((reader, ids["one"]), (keeper, ids["elsewhere"]), (keeper, uuid.uuid4())):
        async with pages.get(f"/investigations/{identity}", headers=headers) as response:
            assert response.status == 404

    async with pages.get(f"/investigations/{ids['two']}", headers=reader) as response:
        assert "data-deletion" not in await response.text(), "a reader may not delete"
    async with pages.get(f"/investigations/{ids['two']}", headers=keeper) as response:
        text = await response.text()
    assert [action for action in ("hold", "purge", "delete") if f'data-deletion="{action}"' in text] == ["hold"], (
        "one that has not ended can only be held"
    )

"""The audit of an API on a real API server: rows of changes and exports, log lines of reads and refusals."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import accounts, apis, loglines, queue, watching
from tarsy.api import app
from tarsy.config.model import platforms
from tarsy.kube import client, discovery
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.web import site

WEBHOOK = "the webhook's token"
QUOTED = "payment-secret-of-the-alert"
"""A text in a search, which no line may have."""

Lines = Callable[[], list[tuple[Any, ...]]]


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the API with its pages; the test is the proxy of 192.0.2.7."""
    settings = platforms.API(trusted_proxies=["127.0.0.1"])
    parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK, settings=settings)
    application = app.build(parts)
    site.add(application)
    headers = {"X-Forwarded-For": "192.0.2.7", "Content-Type": "application/json"}
    async with apis.served(parts, application=application, headers=headers) as session:
        yield session


@pytest.fixture
def audit_lines(log_lines: loglines.LogLines) -> Lines:
    """Method, path, status and caller of each line of the audit since the last call."""

    def lines() -> list[tuple[Any, ...]]:
        audited = [line for line in log_lines() if line.get("action") == "audit"]
        assert QUOTED not in str(audited)
        assert {line["address"] for line in audited} <= {"192.0.2.7"}
        return [(line["method"], line["path"], line["status"], line.get("who")) for line in audited]

    return lines


@pytest.fixture
async def ended(database: databases.Database, cluster: client.Cluster) -> UUID:
    """An ended investigation of the operator's namespace."""
    subject = queue.subject()
    moved = subject.model_copy(
        update={"metadata": subject.metadata.model_copy(update={"namespace": cluster.served.own})}
    )
    identity = await queue.admit(database, moved)
    uid = await discovery.namespace_uid(cluster, cluster.served.own)
    await queue.execute(database, "UPDATE investigations SET namespace_uid = :uid", uid=uid)
    await work.cancel(database, identity, why="user")
    return identity


async def ask(api: aiohttp.ClientSession, method: str, path: str, token: str, **options: Any) -> tuple[int, Any]:
    async with api.request(method, path, headers=apis.bearer(token), allow_redirects=False, **options) as response:
        is_json = "json" in response.content_type
        return response.status, await response.json(content_type=None) if is_json else await response.read()


async def test_changes_and_exports_are_rows_that_the_api_lists(
    api: aiohttp.ClientSession, editor: str, ended: UUID, cluster: client.Cluster
) -> None:
    path = f"/api/v1/investigations/{ended}"
    for method, below, options in (
        ("POST", "/hold", {"json": {"reason": "post-mortem"}}),
        ("DELETE", "/hold", {}),
        ("GET", "/export?format=markdown", {}),
        ("DELETE", "", {}),
        ("POST", "/restore", {}),
        ("DELETE", "?purge=true", {}),
    ):
        status, answer = await ask(api, method, path + below, editor, **options)
        assert status < 300, (below, answer)
    _, code = await ask(api, "POST", "/api/v1/session-codes", editor)
    async with api.get("/" + code["url"].split("/", 3)[3], allow_redirects=False) as response:
        cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0], "Origin": str(api._base_url).rstrip("/")}
    async with api.post("/sign-out", headers=cookie) as response:
        assert response.status == 204

    read: list[dict[str, Any]] = []
    further = ""
    while not read or further:
        status, page = await ask(api, "GET", f"/api/v1/audit?limit=4{further}", editor)
        assert status == 200, page
        read += page["items"]
        further = f"&cursor={page['next']}" if page["next"] else ""

    assert [row["action"] for row in reversed(read)] == [
        *("hold", "release", "export", "delete", "restore", "purge"),
        *("session-code", "sign-in", "sign-out"),
    ]
    assert {(row["who"], row["address"]) for row in read} == {(accounts.EDITORS_NAME, "192.0.2.7")}
    assert {row["namespace"] for row in read} == {cluster.served.own}
    details = {row["action"]: row["details"] for row in read}
    assert details["hold"] == {"reason": "post-mortem"}
    assert details["export"] == {"format": "markdown"}
    _, page = await ask(
        api, "GET", f"/api/v1/audit?investigation={ended}&action=purge&since=2026-01-01T00:00:00Z", editor
    )
    assert [row["action"] for row in page["items"]] == ["purge"]
    for wrong in ("action=bake", "investigation=x", "since=yesterday", "cursor=x", "limit=0", "nmae=x"):
        assert (await ask(api, "GET", f"/api/v1/audit?{wrong}", editor))[0] == 422, wrong


async def test_reading_the_audit_requires_its_own_right(
    api: aiohttp.ClientSession, admin: client.Cluster, cluster: client.Cluster
) -> None:
    may: dict[str, list[str]] = {"alertinvestigations": [*accounts.EVERYTHING], "agentchains": ["list"]}
    other = await accounts.create(admin, f"other-{uuid.uuid4().hex[:8]}", may=may)
    status, problem = await ask(api, "GET", "/api/v1/audit", other)
    assert (status, problem["detail"].partition("may not ")[2]) == (
        403,
        f"get auditevents in namespace {cluster.served.own}",
    )
    auditor = await accounts.create(admin, f"auditor-{uuid.uuid4().hex[:8]}", may={"auditevents": ["get"]})
    status, page = await ask(api, "GET", "/api/v1/audit", auditor)
    assert (status, page["namespaces"]) == (200, [cluster.served.own])
    assert (await ask(api, "GET", "/api/v1/audit?namespace=default", auditor))[0] == 403


async def test_right_in_all_namespaces_alone_reads_rows_of_gone_namespaces(
    api: aiohttp.ClientSession,
    admin: client.Cluster,
    cluster: client.Cluster,
    editor: str,
    database: databases.Database,
) -> None:
    add = """
      INSERT INTO audit (who, address, action, namespace, namespace_uid, name)
      VALUES ('jane', '', 'purge', :namespace, :uid, :name)
    """
    own = await discovery.namespace_uid(cluster, cluster.served.own)
    for name, namespace, uid in (
        ("own", cluster.served.own, own),
        ("of-the-former", cluster.served.own, "another"),
        ("gone", "never-there", "any"),
    ):
        await queue.execute(database, add, namespace=namespace, uid=uid, name=name)
    auditor = await accounts.create(admin, f"auditor-{uuid.uuid4().hex[:8]}", may={"auditevents": ["get"]})
    for token, names, namespaces in (
        (auditor, {"own"}, [cluster.served.own]),
        (editor, {"own", "of-the-former", "gone"}, None),
    ):
        _, page = await ask(api, "GET", "/api/v1/audit", token)
        assert {row["name"] for row in page["items"]} == names
        assert (page["namespaces"], page["unchecked_namespaces"]) == (namespaces, [])
    _, page = await ask(api, "GET", f"/api/v1/audit?namespace={cluster.served.own}", editor)
    assert [row["name"] for row in page["items"]] == ["own"]


async def test_each_read_and_each_refusal_is_one_audit_line_without_the_search_text(
    api: aiohttp.ClientSession, editor: str, ended: UUID, audit_lines: Lines, database: databases.Database
) -> None:
    detail_path = "/api/v1/investigations/{identity}"
    reads = {
        f"/api/v1/investigations?q={QUOTED}&limit=5": "/api/v1/investigations",
        f"/api/v1/investigations/{ended}": detail_path,
        f"/api/v1/investigations/{ended}/timeline": f"{detail_path}/timeline",
        f"/api/v1/investigations/{ended}/export": f"{detail_path}/export",
        f"/api/v1/history/sessions/{ended}": "/api/v1/history/sessions/{identity}",
        f"/investigations/{ended}": "/investigations/{identity}",
        "/api/v1/system/queue": "/api/v1/system/queue",
        "/api/v1/audit": "/api/v1/audit",
    }
    audit_lines()
    for path, route in reads.items():
        assert (await ask(api, "GET", path, editor))[0] == 200, path
        assert audit_lines() == [("GET", route, 200, accounts.EDITORS_NAME)], path

    async with api.get(f"/api/v1/investigations/{ended}/events", headers=apis.bearer(editor)):
        assert audit_lines() == [("GET", f"{detail_path}/events", 200, accounts.EDITORS_NAME)], "while it streams"
    async with watching.watching(
        str(api._base_url), headers=apis.bearer(editor) | {"X-Forwarded-For": "192.0.2.7"}
    ) as watcher:
        await watcher.ask(action="subscribe", channel=f"investigation:{ended}")
        await watcher.until_type("subscription.confirmed")
        await watcher.ask(action="subscribe", channel="investigation:x")
        await watcher.until_type("subscription.error")
    assert audit_lines() == [("SUBSCRIBE", "/api/v1/ws", status, accounts.EDITORS_NAME) for status in (200, 404)]

    before = await queue.rows(database, "SELECT count(*) FROM audit")
    refused = {
        ("GET", f"/api/v1/investigations/{ended}", "x.y.z"): (detail_path, 401, None),
        ("POST", f"/api/v1/investigations/{ended}/cancel", WEBHOOK): (f"{detail_path}/cancel", 403, "api-client"),
        ("DELETE", f"/api/v1/investigations/{uuid.uuid4()}", editor): (detail_path, 404, accounts.EDITORS_NAME),
    }
    for (method, path, token), (route, status, who) in refused.items():
        assert (await ask(api, method, path, token))[0] == status
        assert audit_lines() == [(method, route, status, who)]
    async with api.get("/sign-in?code=guessed") as response:
        assert response.status == 401
    assert audit_lines() == [("GET", "/sign-in", 401, None)]
    assert await queue.rows(database, "SELECT count(*) FROM audit") == before

    for method, path, token in (
        ("POST", f"/api/v1/investigations/{ended}/cancel", editor),  # a change that is none
        ("DELETE", f"/api/v1/investigations/{ended}", editor),
        ("GET", "/api/v1/investigations?limit=x", editor),
        ("GET", "/healthz", editor),
        ("GET", "/readyz", editor),
        ("GET", "/health", editor),
        ("GET", "/no-such-page", editor),
        ("POST", "/api/v1/webhooks/alertmanager", WEBHOOK),
    ):
        await ask(api, method, path, token)
        assert audit_lines() == [], path

"""Every error of the API is a problem (RFC 9457), the framework's and our defects too."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from support import apis, kubeconfigs
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import patience
from tarsy_dev import postgres as launcher

WEBHOOK = {"Authorization": "Bearer the token"}
JSON = {"Content-Type": "application/json"}
HOW = "give the token as `Authorization: Bearer <token>`"


@pytest.fixture
def token() -> str | None:
    """The one that the API asks for; None is `--insecure-dev`."""
    return "the token"


@pytest.fixture(scope="module")
def bare_url(shared_postgres: launcher.Access) -> str:
    """A database that lacks all tables."""
    return shared_postgres.create_database("bare")


@pytest.fixture
async def api(bare_url: str, tmp_path: Path, token: str | None) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the API on a database that lacks all tables: whatever reads them meets a defect."""
    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    database = databases.Database(bare_url)
    async with apis.served(apis.parts(cluster=cluster, database=database, token=token)) as session:
        yield session
    await database.close()
    await cluster.close()


ERRORS: list[tuple[str, str, dict[str, str], int, str, dict[str, str]]] = [
    ("GET", "/nowhere", {}, 404, "GET /nowhere: Not Found", {}),
    ("GET", "/healthz/", {"Host": "elsewhere.example"}, 404, "GET /healthz/: Not Found", {}),
    ("DELETE", "/healthz", {}, 405, "DELETE /healthz: Method Not Allowed", {"Allow": "GET"}),
    ("POST", "/api/v1/alerts", {}, 401, HOW, {"WWW-Authenticate": "Bearer"}),
    ("GET", "/openapi.json", {}, 401, HOW, {}),
    ("GET", "/openapi.json", WEBHOOK, 403, "the webhook's token only sends alerts", {}),
    ("GET", "/openapi.json", {"Authorization": "Bearer x"}, 503, "the owner of the token cannot be looked up now", {}),
    ("POST", "/api/v1/alerts", WEBHOOK | JSON, 500, "a defect of TARSy; its log has the traceback", {}),
]
"""Requests; the status, how the detail begins, and headers of the answer to each."""


async def test_an_error_is_a_problem(api: aiohttp.ClientSession) -> None:
    for method, path, headers, status, detail, answered in ERRORS:
        body = b'{"alert_type": "kubernetes", "data": "x"}' if method == "POST" else None
        async with patience.limit(), api.request(method, path, data=body, headers=headers) as response:
            problem = await response.json(content_type=None)
            assert (response.status, response.content_type) == (status, "application/problem+json"), problem
            assert problem["status"] == status
            assert problem["detail"].startswith(detail)
            assert {name: response.headers[name] for name in answered} == answered


@pytest.mark.parametrize("token", [None])
async def test_a_defect_is_logged_with_its_traceback(
    api: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with api.get(f"/api/v1/investigations/{uuid.UUID(int=1)}") as response:
        assert response.status == 500
    assert 'relation "investigations" does not exist' in caplog.text


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[aiohttp.ClientSession]]]:
    """Serves the API to the programs of this machine, on the database of a URL."""
    async with contextlib.AsyncExitStack() as stack:

        async def serving(url: str) -> aiohttp.ClientSession:
            cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
            stack.push_async_callback(cluster.close)
            database = databases.Database(url)
            stack.push_async_callback(database.close)
            return await stack.enter_async_context(apis.served(apis.parts(cluster=cluster, database=database)))

        yield serving


async def test_missing_database_right_is_a_503_and_postgres_message_is_only_logged(
    serve: Callable[[str], Awaitable[aiohttp.ClientSession]],
    migrated_url: str,
    postgres: launcher.Access,
    caplog: pytest.LogCaptureFixture,
) -> None:
    role = f"limited_{secrets.token_hex(4)}"
    postgres.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    try:
        api = await serve(f"postgresql://{role}:{role}@{migrated_url.rpartition('@')[2]}")
        for path in ("", "/timeline", "/messages", "/trace", "/export"):
            async with api.get(f"/api/v1/investigations/{uuid.UUID(int=1)}{path}") as response:
                assert (response.status, response.content_type) == (503, "application/problem+json")
                problem = await response.text()
            assert "the database user lacks a right that TARSy needs; TARSy's log has the details" in problem
            assert "permission denied" not in problem
            assert "SELECT" not in problem
        async with api.get("/health") as response:
            assert (response.status, (await response.json())["status"]) == (503, "down")
        assert "permission denied for table investigations" in caplog.text
    finally:
        postgres.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("token", [None])
async def test_invalid_investigation_id_is_not_found(api: aiohttp.ClientSession) -> None:
    async with api.get("/api/v1/investigations/x") as response:
        assert (response.status, (await response.json())["detail"]) == (404, "there is no investigation with id x")


@pytest.mark.parametrize("token", [None])
async def test_openapi_document_describes_the_routes_of_the_api(api: aiohttp.ClientSession) -> None:
    async with api.get("/openapi.json") as response:
        described = await response.json()
    assert {"/api/v1/alerts", "/api/v1/webhooks/alertmanager"} <= described["paths"].keys()
    assert "/openapi.json" not in described["paths"]
    assert described == app.describe()


@pytest.mark.parametrize("token", [None])
async def test_json_for_this_machine_is_served_without_a_token(api: aiohttp.ClientSession) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]", "127.0.0.1:8080", "LOCALHOST:1"):
        json = {"Host": host, "Content-Type": "Application/JSON; charset=utf-8"}
        async with api.post("/api/v1/alerts", data=b"no json", headers=json) as response:
            assert (response.status, "not JSON" in await response.text()) == (400, True), host
        for path in ("/healthz", "/openapi.json"):
            async with api.get(path, headers={"Host": host}) as response:
                assert response.status == 200, (host, path)


FORMS = (
    None,
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "text/plain; application/json",
)
"""Types of content that a page may send to another origin without asking first."""


@pytest.mark.parametrize("token", [None])
@pytest.mark.parametrize("path", ["/api/v1/alerts", "/api/v1/webhooks/alertmanager"])
async def test_content_that_a_page_can_send_is_refused_without_a_token(api: aiohttp.ClientSession, path: str) -> None:
    for kind in FORMS:
        headers = {} if kind is None else {"Content-Type": kind}
        async with api.post(path, data=b"{}", headers=headers, skip_auto_headers=["Content-Type"]) as response:
            assert (response.status, response.content_type) == (415, "application/problem+json"), kind
    assert (await api.options(path, headers={"Access-Control-Request-Method": "POST"})).status == 405


ELSEWHERE = (
    "",
    "evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "evil.example@localhost",
    "localhost/evil.example",
    "[::1].evil.example",
    "localhost:evil.example",
    "localhost\\evil.example",
)


@pytest.mark.parametrize("token", [None])
async def test_request_without_a_token_for_another_host_is_refused(api: aiohttp.ClientSession) -> None:
    for host in ELSEWHERE:
        headers = {"Host": host, "Content-Type": "application/json"}
        for method, path in (
            ("POST", "/api/v1/alerts"),
            ("GET", f"/api/v1/investigations/{uuid.UUID(int=1)}"),
            ("GET", "/openapi.json"),
        ):
            async with api.request(method, path, data=b"{}", headers=headers) as response:
                assert (response.status, response.content_type) == (421, "application/problem+json"), (host, path)

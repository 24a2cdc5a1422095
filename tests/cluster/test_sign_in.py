"""Browsers that sign in, on a real API server and a real Postgres; two operators behind one address."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from http import cookies
from typing import Any

import aiohttp
import pytest
import sqlalchemy
from support import accounts, apis
from tarsy.api import app
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site

pytestmark = pytest.mark.once

WEBHOOK = "the webhook's token"
JSON = {"Content-Type": "application/json"}

Serve = Callable[..., Awaitable[aiohttp.ClientSession]]


@pytest.fixture
async def serve(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[Serve]:
    """Serves a replica of the API with its pages, and returns a client of it that keeps no cookies."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(settings: platforms.API | None = None) -> aiohttp.ClientSession:
            parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK, settings=settings, clock=lambda: 0.0)
            application = app.build(parts)
            site.add(application)
            url = await stack.enter_async_context(apis.listening(parts, application=application))
            session = aiohttp.ClientSession(url, cookie_jar=aiohttp.DummyCookieJar())
            return await stack.enter_async_context(session)

        yield start


@pytest.fixture
async def reader(admin: client.Cluster) -> str:
    """The token of an account that may read investigations."""
    return await accounts.create(admin, f"reader-{uuid.uuid4().hex[:8]}", may={"alertinvestigations": ["get", "list"]})


async def sign_in_address(api: aiohttp.ClientSession, token: str) -> str:
    async with api.post("/api/v1/session-codes", headers=apis.bearer(token)) as response:
        assert response.status == 201
        url: str = (await response.json())["url"]
    return "/" + url.split("/", 3)[3]


async def sign_in(api: aiohttp.ClientSession, address: str, **headers: str) -> tuple[int, str]:
    """Open an address as a browser does; the status and the cookie."""
    async with api.get(address, headers=headers, allow_redirects=False) as response:
        jar: cookies.SimpleCookie = cookies.SimpleCookie(response.headers.get("Set-Cookie", ""))
        return response.status, jar["tarsy_session"].value if "tarsy_session" in jar else ""


async def list_status(api: aiohttp.ClientSession, cookie: str) -> int:
    async with api.get("/api/v1/investigations", headers={"Cookie": f"tarsy_session={cookie}"}) as response:
        return response.status


async def test_sign_in_code_signs_one_browser_in_at_every_replica(serve: Serve, reader: str) -> None:
    first, other = await serve(), await serve()
    address = await sign_in_address(first, reader)

    status, cookie = await sign_in(other, address)
    again, _ = await sign_in(first, address)

    assert (status, again) == (303, 401)
    assert [await list_status(replica, cookie) for replica in (first, other)] == [200, 200]
    assert await list_status(first, f"{cookie}x") == 401


async def test_session_cookie_is_hidden_from_scripts_and_other_sites(serve: Serve, reader: str) -> None:
    api = await serve()

    async with api.get(await sign_in_address(api, reader), allow_redirects=False) as response:
        header = response.headers["Set-Cookie"]

    assert "HttpOnly" in header
    assert "SameSite=Lax" in header
    assert "Path=/" in header
    assert response.headers["Location"] == "/"


async def test_link_on_another_site_signs_no_user_in(serve: Serve, reader: str) -> None:
    api = await serve()
    address = await sign_in_address(api, reader)

    assert (await sign_in(api, address, **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
    assert (await sign_in(api, address, **{"Sec-Fetch-Site": "none"}))[0] == 303


async def test_an_expired_code_and_an_expired_session_are_refused(
    serve: Serve, reader: str, database: databases.Database
) -> None:
    api = await serve()
    late = await sign_in_address(api, reader)
    _, cookie = await sign_in(api, await sign_in_address(api, reader))
    await database.run(sqlalchemy.text("UPDATE browser_sessions SET until = now() - interval '1 second'"))

    assert (await sign_in(api, late))[0] == 401
    assert await list_status(api, cookie) == 401


async def test_the_webhooks_token_a_cookie_and_a_stranger_get_no_code(serve: Serve, reader: str) -> None:
    api = await serve()
    _, cookie = await sign_in(api, await sign_in_address(api, reader))
    origin = str(api._base_url).rstrip("/")

    for headers, expected in (
        (apis.bearer(WEBHOOK), 403),
        (apis.bearer("x.y.z"), 401),
        ({}, 401),
        (JSON | {"Cookie": f"tarsy_session={cookie}", "Origin": origin}, 403),
    ):
        async with api.post("/api/v1/session-codes", headers=headers) as response:
            assert response.status == expected, headers


async def test_change_by_cookie_requires_json_from_own_origin(serve: Serve, admin: client.Cluster) -> None:
    api = await serve()
    editor = await accounts.create(admin, f"editor-{uuid.uuid4().hex[:8]}", may=accounts.EDITOR)
    _, cookie = await sign_in(api, await sign_in_address(api, editor))
    path = f"/api/v1/investigations/{uuid.uuid4()}/cancel"
    by_cookie = {"Cookie": f"tarsy_session={cookie}"}
    own = {"Origin": str(api._base_url).rstrip("/")}

    cases: list[tuple[dict[str, str], int]] = [
        (JSON | own, 404),
        (JSON, 403),
        (JSON | {"Origin": "http://evil.example"}, 403),
        (JSON | {"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"} | own, 415),
        (own, 415),
    ]
    for headers, expected in cases:
        async with api.post(path, headers=by_cookie | headers, data=b"{}") as response:
            assert response.status == expected, headers


async def test_signing_out_ends_the_session_at_every_replica(serve: Serve, reader: str) -> None:
    first, other = await serve(), await serve()
    _, cookie = await sign_in(first, await sign_in_address(first, reader))
    headers: dict[str, Any] = JSON | {
        "Cookie": f"tarsy_session={cookie}",
        "Origin": str(first._base_url).rstrip("/"),
    }

    async with first.post("/sign-out", headers=headers | {"Origin": "http://evil.example"}, data=b"{}") as response:
        assert response.status == 403
    assert await list_status(other, cookie) == 200
    async with first.post("/sign-out", headers=headers, data=b"{}") as response:
        assert response.status == 204
        assert "1970" in response.headers["Set-Cookie"]
    assert await list_status(other, cookie) == 401


async def test_rights_are_those_of_the_token(serve: Serve, admin: client.Cluster) -> None:
    api = await serve()
    stranger = await accounts.create(admin, f"stranger-{uuid.uuid4().hex[:8]}")
    _, cookie = await sign_in(api, await sign_in_address(api, stranger))

    assert await list_status(api, cookie) == 403


async def test_the_first_page_names_the_user_and_leads_a_stranger_to_signing_in(serve: Serve, reader: str) -> None:
    api = await serve()
    _, cookie = await sign_in(api, await sign_in_address(api, reader))

    async with api.get("/", headers={"Cookie": f"tarsy_session={cookie}"}) as response:
        page = await response.text()
    async with api.get("/") as response:
        refused = await response.text()

    assert "Sign out" in page
    assert "No investigations" in page
    assert response.status == 401
    assert "tarsy open" in refused
    assert "Sign out" not in refused


async def test_sign_in_redirects_only_to_own_pages(serve: Serve, reader: str) -> None:
    api = await serve()
    for page, expected in (
        ("/investigations/x", 303),
        ("//evil.example", 422),
        ("/\\evil.example", 422),
        ("https://e", 422),
    ):
        address = f"{await sign_in_address(api, reader)}&next={page}"
        async with api.get(address, allow_redirects=False) as response:
            assert response.status == expected, page
            assert response.headers.get("Location") == (page if expected == 303 else None)


async def test_guesses_from_an_address_delay_no_session_from_there(serve: Serve, reader: str) -> None:
    api = await serve(platforms.API(requests_per_second=1, burst=8))  # whose clock stands still
    _, cookie = await sign_in(api, await sign_in_address(api, reader))
    assert await list_status(api, cookie) == 200

    guesses = [await list_status(api, f"{number}") for number in range(20)]

    assert guesses[0] == 401
    assert guesses[-1] == 429
    assert await list_status(api, cookie) == 200


async def test_code_is_not_made_without_pages(
    cluster: client.Cluster, database: databases.Database, reader: str
) -> None:
    parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK)
    platform = parts.platform().model_copy(update={"web": platforms.Web(enabled=False)})
    without = dataclasses.replace(parts, platform=lambda: platform)

    async with apis.served(without) as api, api.post("/api/v1/session-codes", headers=apis.bearer(reader)) as response:
        assert response.status == 404
        assert "web.enabled" in (await response.json(content_type=None))["detail"]


async def test_request_from_another_origin_is_refused_with_the_setting_to_change(
    serve: Serve, admin: client.Cluster
) -> None:
    api = await serve(platforms.API(public_url="https://tarsy.example"))
    editor = await accounts.create(admin, f"editor-{uuid.uuid4().hex[:8]}", may=accounts.EDITOR)
    _, cookie = await sign_in(api, await sign_in_address(api, editor))
    path = f"/api/v1/investigations/{uuid.uuid4()}/cancel"
    headers = JSON | {"Cookie": f"tarsy_session={cookie}"}

    async with api.post(path, headers=headers | {"Origin": "https://other.example"}, data=b"{}") as response:
        refused = await response.json(content_type=None)
    async with api.post(path, headers=headers | {"Origin": "https://tarsy.example"}, data=b"{}") as response:
        accepted = response.status

    assert "api.public_url" in refused["detail"]
    assert accepted == 404

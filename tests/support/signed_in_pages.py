"""Pages of several replicas behind one address, and browsers that sign in."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from playwright import async_api as playwright
from support import accounts, apis
from support import browser as browsers
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site

WEBHOOK = "the webhook's token"

Serve = Callable[[], Awaitable[int]]

SignIn = Callable[..., Awaitable[playwright.Page]]


@pytest.fixture
async def serve_pages(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[Serve]:
    """Serves a replica of the API with its pages, and returns its port."""
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> int:
            parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK)
            application = app.build(parts)
            site.add(application)
            url = await stack.enter_async_context(apis.listening(parts, application=application, hears=True))
            return int(url.rpartition(":")[2])

        yield start


async def address(port: int, token: str) -> str:
    """Return the address that signs a browser in, once."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/api/v1/session-codes", headers=apis.bearer(token)) as response,
    ):
        assert response.status == 201
        return str((await response.json())["url"])


@pytest.fixture
async def sign_in_page(browser: playwright.Browser, admin: client.Cluster) -> AsyncIterator[SignIn]:
    """Opens a window, signed in as a new user with some rights, at a port."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_page(port: int, may: dict[str, list[str]]) -> playwright.Page:
            token = await accounts.create(admin, f"user-{uuid.uuid4().hex[:8]}", may=may)
            page = await stack.enter_async_context(browsers.opened(browser, f"http://127.0.0.1:{port}"))
            await page.goto(await address(port, token))
            return page

        yield open_page

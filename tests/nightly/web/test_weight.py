"""The bytes of a first visit: static files and HTML, as they are sent."""

from __future__ import annotations

import json

import pytest
from playwright import async_api as playwright
from support import browser as browsers
from support.investigated import World, analysis, collection, commit, joined

FILES_MAX = 30 * 1024
"""Bytes of style sheets, scripts and icons."""
VISIT_MAX = 150 * 1024
"""Bytes of a first visit with its HTML."""


@pytest.mark.parametrize("path", ["/", "/investigations/{id}", "/investigations/{id}/trace", "/submit", "/system"])
async def test_first_visit_is_light(browser: playwright.Browser, site: str, world: World, path: str) -> None:
    identity, writing = await world.begin(alertData=json.dumps({"annotations": {"summary": "Pod web-0 dies"}}))
    await commit(writing, [*collection(), *joined("All agree."), *analysis("It is memory.")])

    async with browsers.opened(browser, site) as page:
        finished: list[playwright.Request] = []
        page.on("requestfinished", lambda request: finished.append(request))
        await page.goto(path.format(id=identity), wait_until="load")
        await page.locator(":root").evaluate("() => document.fonts.ready")
        sizes = {request.url.removeprefix(site): await request.sizes() for request in finished}

    files = {path: size["responseBodySize"] for path, size in sizes.items() if path.startswith("/static/")}
    html = sum(size["responseBodySize"] for path, size in sizes.items() if not path.startswith("/static/"))
    assert len(files) >= 3
    assert sum(files.values()) < FILES_MAX, files
    assert sum(files.values()) + html < VISIT_MAX

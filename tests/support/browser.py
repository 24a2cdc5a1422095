"""Pages in a real Chromium: the machine's own, because no browser is fetched.

A page that logs an error, breaks its Content-Security-Policy or asks another host for anything fails its test.
Screenshots are kept in `.screenshots`, to be looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib import parse

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright import async_api as playwright
from support import apis
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site as pages
from tarsy_dev import patience, tools

SCREENSHOTS = tools.ROOT / ".screenshots"
WIDE = playwright.ViewportSize(width=1280, height=900)
NARROW = playwright.ViewportSize(width=400, height=800)
_MILLISECONDS = patience.PATIENCE * 1000
"""The limit of each expectation: playwright's own 5 s are too few for a browser on a busy machine."""
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Raise TooLong for what a page never showed; playwright raises an AssertionError with a log of its looks."""
    try:
        return (yield)
    except (AssertionError, playwright.TimeoutError) as error:
        if isinstance(error, playwright.TimeoutError) or "Call log:" in str(error):
            raise patience.TooLong(str(error)) from error
        raise


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the machine's Chromium; tests are skipped without one."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: install one of {', '.join(_PROGRAMS)}")
    return program


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[playwright.Browser]:
    """A browser of the test's own."""
    playwright.expect.set_options(timeout=_MILLISECONDS)
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=_MILLISECONDS)
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser: playwright.Browser, url: str, *, script: bool = True) -> AsyncIterator[playwright.Page]:
    """Open a window without cookies whose base address is `url`; its faults fail the test at its end."""
    context = await browser.new_context(
        base_url=url,
        viewport=WIDE,
        locale="en-GB",
        timezone_id="UTC",
        reduced_motion="reduce",
        java_script_enabled=script,
    )
    page = await context.new_page()
    page.set_default_timeout(_MILLISECONDS)
    faults: list[str] = []
    host = parse.urlsplit(url).netloc

    def note_request(request: playwright.Request) -> None:
        if parse.urlsplit(request.url).netloc != host:
            faults.append(f"it asks another host: {request.url}")

    page.on("request", note_request)
    page.on("pageerror", lambda error: faults.append(f"a script fails: {error}"))
    page.on("console", lambda message: faults.append(message.text) if _is_fault(message) else None)
    yield page
    await context.close()
    assert faults == []


@pytest.fixture
async def site(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[str]:
    """The address of an API with its pages that needs no token."""
    parts = apis.parts(cluster=cluster, database=database)
    application = app.build(parts)
    pages.add(application)
    async with apis.listening(parts, application=application, hears=True) as url:
        yield url


@pytest.fixture
async def page(browser: playwright.Browser, site: str) -> AsyncIterator[playwright.Page]:
    """A window on the site."""
    async with opened(browser, site) as page:
        yield page


async def check_page(page: playwright.Page, name: str) -> None:
    """Keep screenshots of the page, wide and narrow, light and dark, and hold each against the rules of axe."""
    SCREENSHOTS.mkdir(exist_ok=True)
    for width, viewport in (("wide", WIDE), ("narrow", NARROW)):
        await page.set_viewport_size(viewport)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await page.screenshot(path=Path(SCREENSHOTS / f"{name}-{width}-{scheme}.png"), full_page=True)
            findings = await Axe().run(page)
            assert findings.violations_count == 0, findings.generate_report()
        overflow = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{name} {width}: the page is {overflow} px wider than the window"
    await page.set_viewport_size(WIDE)


def _is_fault(message: playwright.ConsoleMessage) -> bool:
    """Whether a console message is a fault; the browser itself reports each refused request as an error."""
    return message.type == "error" and "Failed to load resource" not in message.text

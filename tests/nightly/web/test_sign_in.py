"""Sessions in a real Chromium: two replicas behind one address, used codes, ended sessions, other origins, rights."""

from __future__ import annotations

import uuid

from playwright import async_api as playwright
from support import accounts, queue, stories
from support import browser as browsers
from support.investigated import World, analysis, collection, commit, joined
from support.signed_in_pages import (
    Serve,
    SignIn,
    address,
)
from tarsy.kube import client
from tarsy.store.base import databases

READ = {"alertinvestigations": ["get", "list"]}


async def test_a_used_code_and_an_ended_session_lead_to_signing_in(
    serve_pages: Serve, admin: client.Cluster, browser: playwright.Browser, database: databases.Database
) -> None:
    port = await serve_pages()
    token = await accounts.create(admin, f"user-{uuid.uuid4().hex[:8]}", may=READ)
    async with browsers.opened(browser, f"http://127.0.0.1:{port}") as page:
        code = await address(port, token)
        await page.goto(code)
        await playwright.expect(page.locator("#live-text")).to_have_text("Live")
        await queue.execute(database, "UPDATE browser_sessions SET until = clock_timestamp() WHERE NOT is_code")
        await page.reload()
        await playwright.expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

        await page.goto(code)

        await playwright.expect(page.get_by_text("the code is unknown, used or older than 30 seconds")).to_be_visible()
        await browsers.check_page(page, "sign-in")


async def test_an_open_page_says_when_its_session_has_ended(
    serve_pages: Serve, sign_in_page: SignIn, world: World, database: databases.Database
) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("data-collection")])
    page = await sign_in_page(await serve_pages(), READ)
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#live-state")).to_have_text("Live")

    await queue.execute(database, "UPDATE browser_sessions SET until = clock_timestamp() WHERE NOT is_code")
    await commit(writing, collection()[1:2])

    await playwright.expect(page.locator("#live-state")).to_contain_text("have ended")


async def test_a_user_who_may_only_read_is_refused_each_action_in_words(
    serve_pages: Serve, sign_in_page: SignIn, world: World
) -> None:
    identity, writing = await world.begin()
    page = await sign_in_page(await serve_pages(), {"alertinvestigations": ["get"]})
    await page.goto(f"/investigations/{identity}")

    await page.locator("#cancel").click()
    await page.get_by_role("button", name="Cancel the investigation").click()
    await playwright.expect(page.locator("#cancel-error")).to_contain_text("may not update alertinvestigations")
    await page.get_by_role("button", name="Keep it running").click()
    await commit(writing, [*collection(), *joined("All agree."), *analysis("It is memory.")])
    await page.get_by_label("Ask about this investigation").fill("Why now?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await playwright.expect(page.locator("#ask-error")).to_contain_text("may not update alertinvestigations")

    for path, right in (("/", "list"), ("/submit", "create"), ("/system", "list")):
        response = await page.goto(path)
        assert response is not None
        assert response.status == 403, path
        await playwright.expect(page.locator("dl")).to_contain_text(right)
        await playwright.expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await browsers.check_page(page, "missing-right")

"""The page of the list in a real Chromium: what it shows, its filters, and how it follows its events."""

from __future__ import annotations

import asyncio
import re

from playwright import async_api as playwright
from support import browser as browsers
from support.listed_pages import THREE, admit, run_first_stage
from tarsy.kube import client
from tarsy.store.base import databases

THREE[1] |= {"replicas": 3}


async def test_a_paused_list_counts_changes_and_shows_them_when_resumed(
    page: playwright.Page, database: databases.Database, cluster: client.Cluster
) -> None:
    released = asyncio.Event()

    async def hold(route: playwright.Route) -> None:
        await released.wait()
        await route.continue_()

    fragments = "**/fragments/investigations*"
    await page.route(fragments, hold)
    async with page.expect_request(fragments):
        await page.goto("/")
    await playwright.expect(page.locator("#live-text")).to_have_text("Live")

    await page.get_by_role("button", name="Pause").click()
    await admit(database, cluster, "first")
    await run_first_stage(database)
    await playwright.expect(page.locator("#live-text")).to_contain_text("change")
    async with page.expect_response(fragments) as late:
        released.set()
    await (await late.value).finished()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")  # in which it would be shown
    await playwright.expect(page.locator("#cards > li")).to_have_count(0)

    await page.get_by_role("button", name="Resume").click()
    await playwright.expect(page.locator("#cards > li")).to_have_count(1)


async def test_filters_live_in_the_address_and_empty_fields_leave_it(
    page: playwright.Page, database: databases.Database, cluster: client.Cluster
) -> None:
    await admit(database, cluster, "one", severity="critical")
    await admit(database, cluster, "two", severity="warning")
    await page.goto("/")
    await playwright.expect(page.locator("#cards > li")).to_have_count(2)

    await page.get_by_label("Severity", exact=True).fill("critical")
    await page.get_by_role("button", name="Apply").click()

    await playwright.expect(page.locator("#cards > li")).to_have_count(1)
    await playwright.expect(page).to_have_url(re.compile(r"/\?severity=critical$"))
    await playwright.expect(page.get_by_label("Severity", exact=True)).to_have_value("critical")
    await page.get_by_role("link", name="Queued").click()
    await playwright.expect(page).to_have_url(re.compile(r"/\?severity=critical&phase=Queued$"))
    await page.goto("/?severity=none")
    await playwright.expect(page.get_by_text("No investigation matches")).to_be_visible()
    await browsers.check_page(page, "list-no-match")


async def test_disconnected_list_page_shows_the_disconnect_and_catches_up(
    page: playwright.Page, database: databases.Database, cluster: client.Cluster
) -> None:
    await page.route("**/api/v1/events*", lambda route: route.abort())
    await page.goto("/")
    await playwright.expect(page.locator("#live-text")).to_contain_text("Disconnected")
    await admit(database, cluster)

    await page.unroute("**/api/v1/events*")

    await playwright.expect(page.locator("#live-text")).to_have_text("Live")
    await playwright.expect(page.locator("#cards > li")).to_have_count(1)

"""The trace in a real Chromium: rows and payloads are fetched when they are seen."""

from __future__ import annotations

import re

from playwright import async_api as playwright
from support import browser as browsers
from support.trace_pages import small, written
from tarsy.store.base import databases


async def test_waterfall_shows_calls_and_opens_them_beside_it(
    page: playwright.Page, database: databases.Database
) -> None:
    identity = await written(database, small(), at_once=1)
    await page.goto(f"/investigations/{identity}/trace")

    await playwright.expect(page.get_by_role("link", name="Model 1 google")).to_be_visible()
    await playwright.expect(page.locator("#trace-rows rect")).to_have_count(7)
    await browsers.check_page(page, "trace")

    await page.get_by_role("link", name="Model 1 google").click()
    panel = page.get_by_role("complementary", name="The opened call")
    await playwright.expect(panel.get_by_role("heading", name="Model call 1")).to_be_visible()
    await playwright.expect(panel.locator("strong", has_text="look")).to_be_visible()
    await playwright.expect(page).to_have_url(re.compile(r"\?row=llm-1$"))
    await browsers.check_page(page, "trace-call")

    await panel.get_by_text("Raw", exact=True).click()
    await playwright.expect(panel.locator("[data-raw] pre")).to_contain_text('"provider": "google-default"')
    await page.keyboard.press("Escape")
    await playwright.expect(panel).to_be_hidden()
    await playwright.expect(page.get_by_role("link", name="Model 1 google")).to_be_focused()

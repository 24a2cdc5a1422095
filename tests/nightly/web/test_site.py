"""What all pages have in common, in a real Chromium."""

from __future__ import annotations

from playwright import async_api as playwright
from support import browser as browsers


async def test_the_first_page_is_empty_and_says_what_begins_an_investigation(page: playwright.Page) -> None:
    await page.goto("/")

    await playwright.expect(page.get_by_role("heading", name="Investigations")).to_be_visible()
    await playwright.expect(page.get_by_text("No investigations")).to_be_visible()
    await browsers.look(page, "list-empty")


async def test_an_unknown_parameter_is_named_on_a_page(page: playwright.Page) -> None:
    response = await page.goto("/?colour=red")

    assert response is not None
    assert response.status == 422
    await playwright.expect(page.get_by_text("query.colour").first).to_be_visible()
    await browsers.look(page, "problem")

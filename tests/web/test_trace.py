"""The trace in a real Chromium: rows and payloads are fetched when they are seen."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from playwright import async_api as playwright
from support import browser as browsers
from support import queue, stories
from tarsy.store.base import databases
from tarsy.transcript import entries, messages

HOSTILE = '<img src=x onerror="alert(1)">\x1b[31mred\u202egnp.exe **bold** <script>alert(2)</script>'
LARGE = HOSTILE + "0123456789abcdef\n" * 60_000
"""A megabyte."""
CALLS = 2500
"""Model calls; each has a tool call."""


async def written(database: databases.Database, log: Iterable[entries.Entry], *, at_once: int = 500) -> UUID:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    listed = list(log)
    for start in range(0, len(listed), at_once):
        await journal.commit(*listed[start : start + at_once])
    return identity


def small() -> list[entries.Entry]:
    """Two agents, one of which fails, and a run that goes on."""
    asked = stories.asks("k8s.pods_log", text="I **look**.", thinking=HOSTILE)
    return [
        stories.stage_started(),
        stories.started(),
        stories.started("two", index=1),
        asked,
        stories.ran(asked, text=HOSTILE),
        stories.unanswered(execution="two"),
        stories.answers(f"# Result\n\n{HOSTILE}\n\n| a | b |\n|---|---|\n| 1 | 2 |", turn=1),
        stories.ended("two", "Failed", "no answer"),
        stories.ended(),
        stories.stage_ended(outcome="CompletedWithErrors"),
        stories.run_ended(final_analysis="done"),
    ]


def large() -> list[entries.Entry]:
    asked = stories.asks("k8s.pods_log")
    log: list[entries.Entry] = [stories.stage_started(), stories.started()]
    for number in range(CALLS):
        log += [asked, stories.ran(asked, text=LARGE if number in (0, CALLS - 1) else f"{number}")]
    return [*log, stories.ended(), stories.stage_ended(), stories.run_ended(final_analysis="done")]


async def test_waterfall_shows_calls_and_opens_them_beside_it(
    page: playwright.Page, database: databases.Database
) -> None:
    identity = await written(database, small(), at_once=1)
    await page.goto(f"/investigations/{identity}/trace")

    await playwright.expect(page.get_by_role("link", name="Model 1 google")).to_be_visible()
    await playwright.expect(page.locator("#trace-rows rect")).to_have_count(7)
    await browsers.look(page, "trace")

    await page.get_by_role("link", name="Model 1 google").click()
    panel = page.get_by_role("complementary", name="The opened call")
    await playwright.expect(panel.get_by_role("heading", name="Model call 1")).to_be_visible()
    await playwright.expect(panel.locator("strong", has_text="look")).to_be_visible()
    assert page.url.endswith("#llm-1")
    await browsers.look(page, "trace-call")

    await panel.get_by_text("Raw", exact=True).click()
    await playwright.expect(panel.locator("[data-raw] pre")).to_contain_text('"provider": "google-default"')
    await page.keyboard.press("Escape")
    await playwright.expect(panel).to_be_hidden()
    await playwright.expect(page.get_by_role("link", name="Model 1 google")).to_be_focused()


async def test_filters_stand_in_the_address(page: playwright.Page, database: databases.Database) -> None:
    identity = await written(database, small())
    await page.goto(f"/investigations/{identity}/trace")

    await page.get_by_label("Failed only").check()
    await page.get_by_role("button", name="Filter").click()

    await page.wait_for_url("**failed=true**")
    await playwright.expect(page.locator("#trace-rows tbody tr")).to_have_count(3)
    await playwright.expect(page.get_by_role("link", name="Tool 1")).to_have_count(0)
    await page.goto(f"/investigations/{identity}/trace?name=no+such")
    await playwright.expect(page.get_by_text("No such rows")).to_be_visible()
    await browsers.look(page, "trace-no-rows")


async def test_five_thousand_rows_keep_the_page_small(page: playwright.Page, database: databases.Database) -> None:
    identity = await written(database, large())
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.goto(f"/investigations/{identity}/trace")
    await playwright.expect(page.get_by_role("link", name="Model 1 google", exact=False).first).to_be_visible()
    elements = "document.querySelectorAll('*').length"
    assert await page.evaluate(elements) < 5000
    assert not [url for url in requests if "/rows?" in url], "the first rows come with the page"

    await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    last = page.get_by_role("link", name=f"Tool {CALLS} ")
    await playwright.expect(last).to_be_visible()

    fetched = [url for url in requests if "/rows?" in url]
    assert len(fetched) <= 3
    assert await page.evaluate(elements) < 5000
    assert not [url for url in requests if "/trace/tool/" in url], "no payload is fetched that is not opened"

    await last.click()
    panel = page.get_by_role("complementary", name="The opened call")
    await playwright.expect(panel).to_contain_text("more characters are in the raw answer")
    assert len(await panel.inner_html()) < 100_000


async def test_search_leads_to_the_calls_that_have_the_text(
    page: playwright.Page, database: databases.Database
) -> None:
    identity = await written(database, large())
    await page.goto(f"/investigations/{identity}/trace")

    await page.get_by_placeholder("Text in answers and results").fill("GNP.exe")
    await page.get_by_role("button", name="Search").click()

    await playwright.expect(page.locator("#trace-found")).to_have_text("2 calls")
    await page.locator("#trace-matches").get_by_role("link", name=f"Tool {CALLS}").click()
    await playwright.expect(page.get_by_role("heading", name=f"Tool call {CALLS}")).to_be_visible()


async def test_without_a_script_there_are_pages_of_rows_and_of_calls(
    browser: playwright.Browser, site: str, database: databases.Database
) -> None:
    identity = await written(database, large())
    async with browsers.opened(browser, site, script=False) as page:
        await page.goto(f"/investigations/{identity}/trace")
        await playwright.expect(page.locator("#trace-rows tbody tr")).to_have_count(200)
        await page.get_by_role("link", name="Next rows").click()
        await playwright.expect(page.get_by_text("201 to 400 of 5002")).to_be_visible()
        await page.locator("#trace-rows a").first.click()
        await playwright.expect(page.get_by_role("heading", name="Model call 100")).to_be_visible()


async def test_running_trace_gets_its_new_rows(page: playwright.Page, database: databases.Database) -> None:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log")
    await journal.commit(stories.stage_started(), stories.started(), asked)
    await page.goto(f"/investigations/{identity}/trace")
    await playwright.expect(page.locator("#trace-state")).to_contain_text("live")

    await journal.commit(stories.ran(asked))

    await playwright.expect(page.get_by_role("link", name="Tool 1")).to_be_visible()
    await playwright.expect(page.get_by_role("link", name="Model 1")).to_have_count(1)


async def test_page_of_a_hostile_call(page: playwright.Page, database: databases.Database) -> None:
    name = f"k8s.{HOSTILE}" + "x" * 1000
    asked = stories.asks(name, text=HOSTILE)
    failure = messages.Failure(kind="fatal", text=LARGE, code="503")
    log: list[entries.Entry] = [stories.stage_started(), stories.started(), asked]
    log.append(stories.ran(asked, text=LARGE, failed=True))
    identity = await written(database, [*log, stories.unanswered(failure=failure, turn=1)])
    for path in ("", "/llm/1", "/tool/1", "/llm/2"):
        await page.goto(f"/investigations/{identity}/trace{path}")
        assert await page.locator("main img, main script").count() == 0
        assert "\u202e" not in await page.locator("main").inner_text()
    await browsers.look(page, "trace-call-page")

"""The page of an investigation, in a real Chromium."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright import async_api as playwright
from support import browser as browsers
from support import stories
from support.investigated import World, analysis, collection, commit, joined
from support.masking import NO_SECRETS
from tarsy.store.base import databases, hints, notify
from tarsy.store.live import text_streams
from tarsy.transcript import entries, ports

HOSTILE = (
    "<script>document.title = 'owned'</script> <img src=x onerror=\"document.title='owned'\"> "
    "[a link](javascript:alert(1)) ![an image](http://evil.example/x.png) \x1b[31mred\x1b[0m \u202egnp.exe"
)


@pytest.fixture
async def sender(database: databases.Database) -> AsyncIterator[text_streams.TextSender]:
    """Sends texts in the making, as a worker does."""
    sender = text_streams.TextSender(database, secrets=NO_SECRETS)
    listener = notify.Listener(database.url, hints.Channels({text_streams.WATCHED: sender.hint}))
    tasks = [asyncio.create_task(part()) for part in (listener.run, sender.run)]
    yield sender
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_finished_investigation_has_result_stages_and_timeline(
    page: playwright.Page, world: World, browser: playwright.Browser, site: str
) -> None:
    identity, writing = await world.begin()
    await commit(
        writing, [*collection(), *joined("All agree [tool 0.0]."), *analysis("# Cause\n\nLimit of 64Mi [tool 0.0].")]
    )

    async with browsers.opened(browser, site, script=False) as plain:
        await plain.goto(f"/investigations/{identity}")
        await playwright.expect(plain.get_by_role("heading", name="Stage 1: data-collection")).to_be_visible()
        await playwright.expect(plain.get_by_text("Which pod?").first).to_be_visible()
    await page.goto(f"/investigations/{identity}")

    await playwright.expect(page.get_by_role("heading", name="Cause")).not_to_have_count(0)
    await playwright.expect(page.locator("#agents-data-collection > article")).to_have_count(3)
    await playwright.expect(page.locator("#synthesis-data-collection > article")).to_have_count(1)
    await playwright.expect(page.locator("#head")).to_contain_text("2 of 2 stages completed")
    await page.locator("#event-join\\.0\\.text a", has_text="KubernetesAgent-2").click()
    await playwright.expect(page.locator("#event-agent1\\.0\\.0\\.call")).to_be_in_viewport()
    await browsers.check_page(page, "investigation-finished")


async def test_hostile_markup_is_shown_as_plain_text(page: playwright.Page, world: World) -> None:
    labels = {"alertname": HOSTILE * 3, "pod": HOSTILE}
    identity, writing = await world.begin(alertData=HOSTILE, labels=labels, severity=HOSTILE[:60])
    long = HOSTILE + "x" * 1_000_000
    await commit(writing, [*collection(text=long), *joined(HOSTILE), *analysis(HOSTILE)])

    await page.goto(f"/investigations/{identity}")

    await playwright.expect(page.locator("#result")).to_contain_text("<script>")
    assert await page.title() != "owned"
    assert "\u202e" not in await page.locator("main").inner_text()
    assert await page.locator("main img").count() == 0
    assert await page.locator("a[href^='javascript']").count() == 0
    await browsers.check_page(page, "investigation-hostile")
    await page.locator("#event-agent0\\.0\\.0\\.result").get_by_role("link", name="show the whole").click()
    await playwright.expect(page.locator("pre").last).to_contain_text("x" * 1000)


async def test_running_investigation_shows_new_events_and_texts_in_the_making_as_they_come(
    page: playwright.Page, world: World, sender: text_streams.TextSender
) -> None:
    identity, writing = await world.begin()
    asked = stories.asks("k8s.pods_log", execution="agent0", thinking="Which pod?")
    await commit(
        writing,
        [stories.stage_started("data-collection"), stories.started("agent0", stage="data-collection"), asked],
    )
    model_call = ports.StreamedCall(
        investigation=str(identity),
        run=0,
        stage="data-collection",
        execution="agent0",
        number=1,
        kind="agent",
        strategy="native-thinking",
    )

    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#live-state")).to_have_text("Live")
    await playwright.expect(page.locator("#stage-data-collection-waiting .card")).to_have_count(2)
    await playwright.expect(page.locator("#event-agent0\\.0\\.0\\.call")).to_contain_text("Running")
    await commit(writing, [stories.ran(asked, 0, text="OOMKilled")])
    await playwright.expect(page.locator("#parts-agent0\\.0\\.0 > li")).to_have_count(1)
    text = page.locator("#event-agent0\\.1\\.text")
    with sender.open_stream(model_call) as stream:
        stream.text("The \U0001f525 limit")
        await playwright.expect(text).to_contain_text("The \U0001f525 limit")
        stream.text(" is <b>too low")
        await playwright.expect(text).to_contain_text("The \U0001f525 limit is <b>too low")
        await browsers.check_page(page, "investigation-running")
    await commit(
        writing,
        [
            stories.answers("The \U0001f525 limit is <b>too low</b>", execution="agent0", call_number=1),
            stories.ended("agent0"),
        ],
    )

    await playwright.expect(page.locator(".making")).to_have_count(0)
    await playwright.expect(text).to_have_count(1)
    await playwright.expect(page.locator("#execution-agent0-head")).to_contain_text("Completed")
    ends: list[entries.Entry] = [
        stories.stage_ended("data-collection"),
        stories.run_ended(final_analysis="It is memory."),
    ]
    await commit(writing, ends)
    await playwright.expect(page.locator("#result")).to_contain_text("It is memory.")
    await playwright.expect(page.locator("#cancel")).to_be_hidden()

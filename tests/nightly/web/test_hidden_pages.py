"""The page of an investigation that was hidden, in a real Chromium: it resumes, or loads itself anew."""

from __future__ import annotations

from collections.abc import Iterator
from urllib import parse

from playwright import async_api as playwright
from support import browser as browsers
from support import stories
from support.investigated import World, collection, commit, joined
from tarsy.transcript import entries


def agent_log(*, calls: int, execution: str = "one", stage: str = "analysis") -> Iterator[entries.Entry]:
    """The beginning of an execution with that many model calls, each with a text, a tool call and its result."""
    yield stories.started(execution, stage=stage)
    for number in range(calls):
        asked = stories.asks("k8s.pods_log", execution=execution, call_number=number, text=f"Look {number}.")
        yield asked
        yield stories.ran(asked, text=f"result {number}")


async def hide(page: playwright.Page, *, hidden: bool) -> None:
    """Hide or show a page as the browser does when another tab is chosen."""
    await page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def streams_opened(page: playwright.Page) -> list[str]:
    """Return the addresses of the streams that the page opens from now on."""
    opened: list[str] = []
    page.on("request", lambda request: opened.append(request.url) if "/events" in request.url else None)
    return opened


async def event_ids(page: playwright.Page) -> list[str]:
    ids: list[str] = await page.locator(".event").evaluate_all("all => all.map(each => each.id)")
    return ids


async def test_hidden_page_closes_its_stream_and_resumes_without_loss_or_doubles(
    page: playwright.Page, world: World
) -> None:
    identity, writing = await world.begin()
    log = [*collection(), *joined("All agree.")]
    await commit(writing, log[:3])
    opened = streams_opened(page)
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#live-state")).to_have_text("Live")

    async with page.expect_event("requestfailed", lambda request: "/events" in request.url):
        await hide(page, hidden=True)
    await commit(writing, log[3:])
    await hide(page, hidden=False)

    await playwright.expect(page.locator("li[id='event-join.0.text']")).to_have_count(1)
    ids = await event_ids(page)
    assert len(ids) == len(set(ids))
    assert len(opened) == 2
    query = dict(parse.parse_qsl(parse.urlsplit(opened[1]).query))
    assert int(query["last_event_id"]) >= 3
    async with browsers.opened(page.context.browser, page.url) as fresh:  # type: ignore[arg-type]
        await fresh.goto(page.url)
        assert sorted(await event_ids(fresh)) == sorted(ids)


async def test_page_far_behind_reloads_its_content(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("analysis")])
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#live-state")).to_have_text("Live")

    await hide(page, hidden=True)
    await writing.commit(*agent_log(calls=300))
    async with page.expect_request("**/fragment?after=0"):
        await hide(page, hidden=False)

    await playwright.expect(page.locator(".event.tool_result")).to_have_count(300)
    ids = await event_ids(page)
    assert len(ids) == len(set(ids))

"""The page of an investigation in unusual states, in a real Chromium: hidden, far behind, long, suspended, failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib import parse

from playwright import async_api as playwright
from support import browser as browsers
from support import queue, stories
from support.investigated import World, collection, commit, joined
from tarsy.store.base import databases
from tarsy.transcript import entries, messages

EVENTS = 5000
NODES_MAX = 60_000
"""Elements of a page with all of EVENTS events."""
PAGE_MAX = 600_000
"""Bytes of the first page of EVENTS events, uncompressed."""


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


async def test_page_far_behind_loads_itself_anew(page: playwright.Page, world: World) -> None:
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


async def test_5000_events_come_in_parts(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    await writing.commit(stories.stage_started("analysis"), *agent_log(calls=EVENTS // 3))
    await writing.commit(stories.ended(), stories.stage_ended(), stories.run_ended(final_analysis="done"))

    response = await page.goto(f"/investigations/{identity}")

    assert response is not None
    assert len(await response.body()) < PAGE_MAX
    first = len(await event_ids(page))
    assert first < 500
    await page.get_by_role("link", name="More events").click()
    await playwright.expect(page.locator(".event.tool_result")).to_have_count(EVENTS // 3, timeout=120_000)
    await playwright.expect(page.locator("#more")).to_be_hidden()
    assert await page.locator("*").count() < NODES_MAX


async def test_thoughts_of_react_and_of_the_model_are_told_apart(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    react = replace(stories.AGENT, strategy="react")
    text = "Thought: The limit may be too low.\nFinal Answer: It is out of memory."
    await commit(
        writing,
        [
            stories.stage_started("data-collection"),
            stories.started("first", stage="data-collection"),
            stories.started("second", stage="data-collection", index=1, agent=react),
            stories.asks("k8s.pods_log", execution="first", thinking="Which pod is it?"),
            stories.answers(text, execution="second"),
        ],
    )

    await page.goto(f"/investigations/{identity}")

    native = page.locator("#execution-first")
    await playwright.expect(native).to_contain_text("native-thinking")
    await playwright.expect(native.locator(".llm_thinking")).to_contain_text("Thinking (native)")
    other = page.locator("#execution-second")
    await playwright.expect(other.locator(".llm_thinking")).to_contain_text("Thinking (ReAct)")
    await playwright.expect(other.locator(".llm_thinking")).to_contain_text("The limit may be too low.")
    await playwright.expect(other).to_contain_text("It is out of memory.")
    await browsers.check_page(page, "investigation-react")


async def test_suspended_investigation_says_so_and_how_it_goes_on(
    page: playwright.Page, world: World, database: databases.Database
) -> None:
    identity, writing = await world.begin()
    await commit(writing, collection()[:3])
    released = "UPDATE work SET state = 'queued', token = NULL, lease_until = NULL, suspend = true"
    await queue.execute(database, released)
    await queue.execute(database, "UPDATE runs SET suspended_at = clock_timestamp()")

    await page.goto(f"/investigations/{identity}")

    await playwright.expect(page.locator("#head")).to_contain_text("Suspended")
    await page.get_by_text("Alert, runbook, suspending").click()
    await playwright.expect(page.get_by_text('{"spec":{"suspend":false}}')).to_be_visible()
    await browsers.check_page(page, "investigation-suspended")
    await page.goto("/")
    await playwright.expect(page.locator("#cards > li")).to_contain_text("Suspended")


async def test_stages_with_errors_failed_and_pending_are_told_apart(page: playwright.Page, world: World) -> None:
    names = ("data-collection", "analysis", "verdict", "report")
    stages = [{"name": name, "agent": "KubernetesAgent"} for name in names]
    identity, writing = await world.begin(chain=queue.chain(stages=stages))
    await commit(
        writing,
        [
            stories.stage_started("data-collection"),
            stories.started("one", stage="data-collection"),
            stories.answers("Partly.", execution="one"),
            stories.ended("one", "Failed", "one call was refused"),
            stories.stage_ended("data-collection", "CompletedWithErrors", "one of two agents failed"),
            stories.stage_started("analysis"),
            stories.started("two", stage="analysis"),
            stories.unanswered(execution="two", failure=messages.Failure(kind="fatal", text="no model answers")),
            stories.ended("two", "Failed", "no model answers"),
            stories.stage_ended("analysis", "Failed", "no model answers"),
            stories.stage_started("verdict"),
        ],
    )

    await page.goto(f"/investigations/{identity}")

    heads = page.locator(".stage-head")
    await playwright.expect(heads).to_have_count(4)
    await playwright.expect(heads.nth(0)).to_contain_text("Completed with errors")
    await playwright.expect(heads.nth(0)).to_contain_text("one of two agents failed")
    await playwright.expect(page.locator("#execution-one-head")).to_contain_text("(With Errors)")
    await playwright.expect(heads.nth(1)).to_contain_text("Stage Error: no model answers")
    await playwright.expect(heads.nth(2)).to_contain_text("Running")
    await playwright.expect(heads.nth(3)).to_contain_text("Pending")
    await browsers.check_page(page, "investigation-stages")


async def test_twenty_stages_are_shown_in_list_and_page(page: playwright.Page, world: World) -> None:
    stages = [{"name": f"stage-{number}", "agent": "KubernetesAgent"} for number in range(1, 21)]
    identity, writing = await world.begin(chain=queue.chain(stages=stages))
    for number in range(1, 12):
        stage, execution = f"stage-{number}", f"agent{number}"
        await commit(
            writing,
            [
                stories.stage_started(stage),
                stories.started(execution, stage=stage),
                stories.answers(f"Part {number}.", execution=execution),
                stories.ended(execution),
                *([stories.stage_ended(stage)] if number < 11 else []),
            ],
        )

    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator(".stage-head")).to_have_count(20)
    await playwright.expect(page.locator("#head")).to_contain_text("10 of 20 stages completed")
    await browsers.check_page(page, "investigation-twenty-stages")
    await page.goto("/")
    await playwright.expect(page.locator("#cards .stage")).to_have_count(20)
    await browsers.check_page(page, "list-twenty-stages")


async def test_folded_stage_and_focus_stay_as_they_are_when_parts_change(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    log = collection()
    await commit(writing, log[:3])
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#live-state")).to_have_text("Live")
    fold = page.get_by_text("Agents and their output").first
    link = page.get_by_role("link", name="Link to stage data-collection")

    await fold.click()
    await link.focus()
    await commit(writing, log[3:])

    await playwright.expect(page.locator("#stage-data-collection-head")).to_contain_text("3 of 3 agents")
    await playwright.expect(link).to_be_focused()
    await playwright.expect(page.locator("#agents-data-collection")).to_be_hidden()
    await page.evaluate("location.hash = 'event-agent2.1.text'")
    await playwright.expect(page.locator("li[id='event-agent2.1.text']")).to_be_in_viewport()

"""The trace in a real Chromium: rows and payloads are fetched when they are seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from playwright import async_api as playwright
from support import browser as browsers
from support import investigated, queue, stories
from support.trace_pages import HOSTILE, written
from tarsy.store.base import databases
from tarsy.store.queue import questions, work
from tarsy.transcript import entries

LARGE = HOSTILE + "0123456789abcdef\n" * 60_000
"""A megabyte."""

CALLS = 2500
"""Model calls; each has a tool call."""


def agent(number: int) -> Iterator[entries.Entry]:
    """An agent whose requests are sent again, compacted and answered by a fallback."""
    execution = f"agent{number}"
    slow = replace(stories.CALL, seconds=6.0, attempts=(entries.Attempt(error="overloaded", code="503"),), cost=0.0123)
    asked = stories.asks("k8s.pods_log", "prometheus.query", execution=execution, text="I look.")
    yield entries.ModelRetried(
        execution=execution,
        turn=0,
        provider="google-default",
        model="gemini-2.5-flash",
        attempt=1,
        error=f"overloaded {HOSTILE}",
        code="503",
        seconds=4.0,
    )
    yield replace(asked, call=slow)
    due = entries.SummaryDue(provider="google-default", tokens=500, reads=10_000)
    yield stories.ran(asked, 0, text="OOMKilled " * 200, summary=due)
    yield entries.ServersAway(execution=execution, servers=("prometheus",), calls=("0.1",))
    yield stories.ran(asked, 1, text="the server is away", failed=True)
    yield stories.summarised("0.0", execution=execution, text="It is memory.")
    yield entries.ContextCompacted(execution=execution, turn=1, results=("0.0",), tokens=90_000, limit=80_000)
    yield stories.fell_back("anthropic-default", execution=execution, call_number=1)
    yield stories.answers(f"Pod web-{number} is out of memory [tool 0.0].", execution=execution, call_number=1)
    yield stories.ended(execution)


async def taken_over(database: databases.Database) -> UUID:
    """An investigation of two stages, taken over in the middle of its two agents, with a question afterwards."""
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started("data-collection"))
    for number in range(2):
        await journal.commit(stories.started(f"agent{number}", stage="data-collection", index=number))
    steps = [step for both in zip(agent(0), agent(1), strict=True) for step in both]
    for step in steps[:6]:
        await journal.commit(step)
    await queue.let_leases_pass(database)
    journal = await queue.opened(database, await queue.claimed(database))
    for step in steps[6:]:
        await journal.commit(step)
    synthesis, *ends = investigated.joined("Both are out of memory.", index=2)
    assert isinstance(synthesis, entries.ExecutionStarted)
    for entry in (
        synthesis,
        *ends,
        stories.stage_started("analysis"),
        stories.started("last", stage="analysis"),
        stories.unanswered(execution="last"),
        stories.ended("last", "Failed", "no answer"),
        stories.stage_ended("analysis", "Failed", "no answer"),
        stories.run_ended("Failed", "StagesFailed", message="no answer"),
    ):
        await journal.commit(entry)
    await work.projected(database, identity, revision=(await queue.summary(database, identity)).revision)
    await questions.ask(database, identity, f"Why {HOSTILE}?", max_queued=9, by=queue.CALLER)
    journal = await queue.opened(database, await queue.claimed(database))
    chat = replace(synthesis, run=1, stage="", execution="answer", kind="chat", index=0, name="ChatAgent")
    await journal.commit(chat)
    await journal.commit(stories.answers("The limit.", execution="answer"))
    await journal.commit(stories.ended("answer"))
    await journal.commit(entries.RunEnded(run=1, ending="Completed", reason="Answered", final_analysis="The limit."))
    await queue.execute(
        database,
        """UPDATE entries SET at = earlier.at + seq * interval '7 seconds'
        FROM (SELECT min(at) AS at FROM entries WHERE investigation = :id) AS earlier WHERE investigation = :id""",
        id=identity,
    )
    return identity


def large() -> list[entries.Entry]:
    asked = stories.asks("k8s.pods_log")
    log: list[entries.Entry] = [stories.stage_started(), stories.started()]
    for number in range(CALLS):
        log += [asked, stories.ran(asked, text=LARGE if number in (0, CALLS - 1) else f"{number}")]
    return [*log, stories.ended(), stories.stage_ended(), stories.run_ended(final_analysis="done")]


async def test_takeovers_retries_fallbacks_and_compactions_have_rows(
    page: playwright.Page, database: databases.Database
) -> None:
    identity = await taken_over(database)
    await page.goto(f"/investigations/{identity}/trace")

    await playwright.expect(page.get_by_text("503: overloaded <img src=x")).to_have_count(2)
    for word, count in (("Resumed", 2), ("Sent again", 2), ("Fallback", 2), ("Compacted", 2), ("Servers away", 2)):
        await playwright.expect(page.locator(".trace-event .badge", has_text=word)).to_have_count(count)
    await playwright.expect(page.locator(".trace-execution")).to_have_count(4)
    await playwright.expect(page.get_by_role("link", name="Summary of 0.0")).to_have_count(2)
    await playwright.expect(page.locator("#trace-facts")).to_contain_text("Failed")
    await browsers.check_page(page, "trace-taken-over")

    await page.get_by_role("link", name="Question 1").click()
    await playwright.expect(page.locator("#trace-rows tbody tr")).to_have_count(2)
    await playwright.expect(page.get_by_text("Why <img src=x")).to_be_visible()
    await browsers.check_page(page, "trace-question")


async def test_investigation_leads_to_the_rows_of_its_stages_agents_and_calls_and_back(
    page: playwright.Page, database: databases.Database
) -> None:
    identity = await taken_over(database)
    for link, row in (
        ("Trace of stage analysis", "stage-analysis"),
        ("Trace of SynthesisAgent", "execution-join"),
        ("Trace of ChatAgent", "execution-answer"),
    ):
        await page.goto(f"/investigations/{identity}")
        await page.get_by_role("link", name=link).click()
        await playwright.expect(page.locator(f"[id='row-{row}']")).to_have_attribute("aria-current", "true")
    await page.goto(f"/investigations/{identity}")
    await page.locator("[id='event-agent1.0.1.call']").get_by_role("link", name="Trace of this call").first.click()
    panel = page.get_by_role("complementary", name="The opened call")
    await playwright.expect(panel).to_contain_text("the server is away")
    await playwright.expect(panel).to_contain_text("prometheus.query")

    await panel.get_by_role("link", name="Entry").click()
    await playwright.expect(page.locator("[id='event-agent1.0.1.call']")).to_be_in_viewport()
    await page.goto(f"/investigations/{identity}/trace")
    await page.get_by_role("link", name="SynthesisAgent").click()
    await playwright.expect(page.locator("#execution-join")).to_be_in_viewport()


async def test_five_thousand_rows_keep_the_page_small(page: playwright.Page, database: databases.Database) -> None:
    identity = await written(database, large())
    requests: list[str] = []
    responses: list[playwright.Response] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("response", lambda response: responses.append(response) if "/trace" in response.url else None)
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
    assert await page.locator("#trace-rows tr").count() < 600
    assert sum([len(await response.body()) for response in responses]) < 500_000
    assert not [url for url in requests if "/trace/tool/" in url], "no payload is fetched that is not opened"
    await page.evaluate("scrollTo(0, 0)")
    await playwright.expect(page.get_by_role("link", name="Model 1 google", exact=False).first).to_be_visible()

    await page.goto(f"/investigations/{identity}/trace?row=tool-{CALLS}")
    await playwright.expect(last).to_be_in_viewport()
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
    assert await page.evaluate("CSS.highlights.get('needle').size") > 0


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

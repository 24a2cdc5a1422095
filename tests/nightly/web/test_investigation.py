"""The page of an investigation, in a real Chromium."""

from __future__ import annotations

import asyncio
import json

import aiohttp
from playwright import async_api as playwright
from support import browser as browsers
from support import manifests, stories
from support.investigated import World, analysis, collection, commit, joined
from tarsy.transcript import entries

HOSTILE = (
    "<script>document.title = 'owned'</script> <img src=x onerror=\"document.title='owned'\"> "
    "[a link](javascript:alert(1)) ![an image](http://evil.example/x.png) \x1b[31mred\x1b[0m \u202egnp.exe"
)


async def test_reader_gives_a_verdict_and_the_list_filters_by_it(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("data-collection")])
    await page.goto(f"/investigations/{identity}")
    feedback = page.locator("#feedback-given li")
    await playwright.expect(page.locator("#feedback")).to_be_hidden()
    ends: list[entries.Entry] = [stories.stage_ended("data-collection"), stories.run_ended(final_analysis="Memory.")]
    await commit(writing, ends)
    wrong = page.get_by_role("button", name="Wrong")
    await wrong.click()
    await playwright.expect(feedback).to_have_count(1)
    await page.get_by_text("Cause and note").click()
    await page.get_by_label("The true cause").fill(HOSTILE)
    await wrong.click()

    await playwright.expect(feedback).to_contain_text("<script>")
    await playwright.expect(wrong).to_have_attribute("aria-pressed", "true")
    await browsers.check_page(page, "investigation-feedback")
    await page.goto("/?feedback=wrong")
    await playwright.expect(page.locator(f"#row-{identity}")).to_contain_text("Wrong, says one person")
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.get_by_label("The true cause")).to_contain_text("<script>")
    await page.get_by_role("button", name="Partly right").click()
    await playwright.expect(feedback).to_contain_text("Partly right")
    await page.get_by_role("button", name="Withdraw").click()
    await playwright.expect(feedback).to_have_count(0)
    await playwright.expect(page.get_by_role("button", name="Withdraw")).to_be_hidden()
    assert await page.title() != "owned"


async def test_ended_investigation_is_held_deleted_restored_and_purged(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("data-collection")])
    await page.goto(f"/investigations/{identity}")
    keeping, dialog = page.locator("#keeping"), page.get_by_role("dialog")

    async def do(button: str, confirm: str) -> None:
        await page.get_by_role("button", name=button, exact=True).click()
        await dialog.get_by_role("button", name=confirm, exact=True).click()

    await playwright.expect(keeping.get_by_role("button")).to_have_text(["Hold"])
    await commit(writing, [stories.stage_ended("data-collection"), stories.run_ended(final_analysis="Memory.")])
    await playwright.expect(keeping.get_by_role("button")).to_have_text(["Hold", "Delete", "Purge"])
    await page.get_by_role("button", name="Hold").click()
    await page.get_by_label("Why it has to be kept").fill("incident <4711>")
    await browsers.check_page(page, "investigation-hold")
    await dialog.get_by_role("button", name="Hold it").click()
    await playwright.expect(keeping).to_contain_text("Nothing of it is deleted: incident <4711>")
    await playwright.expect(keeping.get_by_role("button")).to_have_text(["End the hold"])
    await do("End the hold", "End the hold")
    await playwright.expect(keeping.get_by_role("button")).to_have_count(3)
    await do("Delete", "Delete it")
    await playwright.expect(page.locator("main")).to_contain_text("its object stays deleted")
    await browsers.check_page(page, "investigation-deleted")
    await page.get_by_role("link", name="All deleted investigations").click()
    await playwright.expect(page.locator("#rows")).to_contain_text("Deleted Purged after")
    await page.locator("#rows a").first.click()
    await do("Restore", "Restore it")
    await playwright.expect(page.locator("#result")).to_contain_text("Memory.")
    await page.get_by_role("button", name="Purge").click()
    await dialog.get_by_role("button", name="Close").click()
    await do("Purge", "Purge it for good")
    await playwright.expect(page.locator("#nothing")).to_contain_text("No investigations")
    response = await page.goto(f"/investigations/{identity}")
    assert response is not None
    assert response.status == 404


async def test_question_is_asked_watched_and_stopped_and_its_text_is_kept_if_refused(
    page: playwright.Page, world: World
) -> None:
    identity, writing = await world.begin()
    await commit(writing, [*collection(), *joined("All agree."), *analysis("It is memory.")])
    await page.goto(f"/investigations/{identity}")
    field = page.get_by_label("Ask about this investigation")

    await field.fill("Why <b>now</b>?")
    await page.get_by_role("button", name="Ask", exact=True).click()

    await playwright.expect(page.locator("#run-1")).to_contain_text("Why <b>now</b>?")
    await playwright.expect(field).to_have_value("")
    await browsers.check_page(page, "investigation-question")
    await page.get_by_role("button", name="Stop the answer").click()
    await playwright.expect(page.locator("#run-1")).to_contain_text("Cancelled")
    await asyncio.to_thread(world.plane.kubectl, "delete", "alertinvestigation", "web-crash", namespace=world.namespace)
    await field.fill("Again?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await playwright.expect(page.locator("#ask-error")).to_contain_text("its object was deleted")
    await playwright.expect(field).to_have_value("Again?")


async def test_ended_investigation_is_run_again_from_a_stage_on(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin()
    await commit(writing, [*collection(), *joined("All agree [tool 0.0]."), *analysis("Limit of 64Mi [tool 0.0].")])
    await page.goto(f"/investigations/{identity}")

    await page.get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    await playwright.expect(dialog).to_be_visible()
    begin = dialog.get_by_label("Begin with")
    assert await begin.locator("option").all_inner_texts() == [
        "all stages, by the chain as it was",
        "all stages, by the chain as it is now",
        "stage 2: analysis",
    ]
    await browsers.check_page(page, "investigation-retry")
    await begin.select_option(label="all stages, by the chain as it is now")
    await dialog.get_by_role("button", name="Run it again").click()
    await playwright.expect(dialog.get_by_role("alert")).to_contain_text("No chain is named 'pod-crash'")
    await begin.select_option(label="stage 2: analysis")
    await dialog.get_by_role("button", name="Run it again").click()

    await playwright.expect(page.locator("#head")).to_contain_text("web-crash from stage analysis")
    await playwright.expect(page.locator("#stage-data-collection-head")).to_contain_text("Copied")
    await playwright.expect(page.locator("#agents-data-collection > article")).to_have_count(3)
    await playwright.expect(page.locator("#head")).to_contain_text("1 of 2 stages completed")
    await browsers.check_page(page, "investigation-retried")
    await page.locator("#head").get_by_role("link", name="web-crash").click()
    await playwright.expect(page.locator("#head")).to_contain_text("web-crash-retry-")


async def test_alert_is_taken_out_of_its_group_by_its_button(page: playwright.Page, world: World, site: str) -> None:
    grouping = {"by": "Labels", "labels": ["node"]}
    chain = manifests.chain("kubernetes", grouping=grouping)
    await asyncio.to_thread(world.plane.create, chain, namespace=world.namespace)
    alerts = [
        json.loads(manifests.notification())["alerts"][0]
        | {"labels": {"alertname": "kubernetes", "node": "n", "pod": f"web-{number}"}, "fingerprint": f"{number:016x}"}
        for number in (1, 2)
    ]
    body = json.dumps(json.loads(manifests.notification()) | {"alerts": alerts})
    async with (
        aiohttp.ClientSession(site, headers={"Content-Type": "application/json"}) as sender,
        sender.post("/api/v1/webhooks/alertmanager", data=body) as response,
    ):
        first, joined_alert = (await response.json())["alerts"]
    assert (first["id"], joined_alert["outcome"]) == (joined_alert["id"], "joined")

    await page.goto(f"/investigations/{first['id']}/alerts")
    button = page.get_by_role("button", name="Investigate alone")
    await playwright.expect(button).to_have_count(1)
    await button.click()

    await playwright.expect(page.locator("#head")).to_contain_text("Split from")
    await page.locator("#head").get_by_role("link", name=first["name"]).click()
    await playwright.expect(page.locator("#head")).to_contain_text("Split into")
    await page.goto(f"/investigations/{first['id']}/alerts")
    await playwright.expect(button).to_have_count(0)

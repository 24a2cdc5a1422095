"""The form of an alert and the page of its progress, in a real Chromium."""

from __future__ import annotations

from typing import Any

import pytest
from playwright import async_api as playwright
from support import browser as browsers
from support import manifests, queue
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev.controlplane import Administrator

expect = playwright.expect


@pytest.fixture
def chain(plane: Administrator, cluster: client.Cluster) -> None:
    made = manifests.chain("KubePodCrashLooping", "NodeDown")
    plane.create(made, namespace=cluster.served.own)


async def end(database: databases.Database, *, ending: str, message: str, analysis: str = "") -> None:
    values = {"ending": ending, "message": message, "analysis": analysis}
    statement = "UPDATE runs SET ending = :ending, ended_at = now(), message = :message, final_analysis = :analysis"
    await queue.execute(database, statement, **values)
    await queue.execute(database, "UPDATE investigations SET ending = :ending, ended_at = now()", ending=ending)
    await queue.execute(database, "UPDATE work SET state = 'ended'")


@pytest.mark.usefixtures("chain")
async def test_a_refusal_stands_at_its_field_and_nothing_typed_is_lost(page: playwright.Page) -> None:
    await page.goto("/submit?alert_type=Unheard")
    await page.get_by_label("Data").fill("web-0 restarts")
    await page.get_by_label("Severity").fill("s" * 64)

    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator("#severity-error")).to_have_text("give 63 characters at most")
    await expect(page.get_by_label("Severity")).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("Severity").fill("warning")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator("#alert_type-error")).to_contain_text("No chain found for alert type 'Unheard'")
    await browsers.check_page(page, "submit-refused")

    await expect(page.locator("#severity-error")).to_be_hidden()
    await expect(page.get_by_label("Data")).to_have_value("web-0 restarts")
    await page.get_by_label("Alert type").fill("NodeDown")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("heading", name="Processing Alert...")).to_be_visible()


@pytest.mark.parametrize(
    ("ending", "heading", "fields"),
    [
        ("Completed", "Processing Complete", {"message": "", "analysis": "# Cause\n\n`shop-db` is **away**."}),
        ("Failed", "Processing Failed", {"message": "stage analysis: the model refused <b>it</b>"}),
    ],
)
async def test_the_second_page_ends_with_the_result_or_the_error(
    page: playwright.Page, database: databases.Database, ending: str, heading: str, fields: dict[str, Any]
) -> None:
    identity = await queue.admit(database, queue.subject())
    await page.goto(f"/submitted/{identity}")
    await expect(page.get_by_role("heading", name="Processing Alert...")).to_be_visible()

    await end(database, ending=ending, **fields)
    await page.reload()

    await expect(page.get_by_role("heading", name=heading)).to_be_visible()
    await browsers.check_page(page, f"submitted-{ending.lower()}")
    await expect(page.get_by_role("link", name="Open the investigation")).to_have_attribute(
        "href", f"/investigations/{identity}"
    )

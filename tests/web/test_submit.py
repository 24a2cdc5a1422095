"""The form of an alert and the page of its progress, in a real Chromium."""

from __future__ import annotations

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


@pytest.mark.usefixtures("chain")
async def test_submit_page_shows_chain_while_typing_and_two_clicks_submit_only_once(
    page: playwright.Page, database: databases.Database
) -> None:
    await page.goto("/submit")
    await browsers.check_page(page, "submit-empty")
    await page.get_by_label("Alert type").fill("Unheard")
    await expect(page.get_by_text("Available alert types: KubePodCrashLooping, NodeDown")).to_be_visible()
    await page.get_by_label("Alert type").fill("KubePodCrashLooping")
    await expect(page.get_by_text("kubernetes takes it")).to_be_visible()
    await page.get_by_label("Data").fill("Pod shop/web-0 restarts.\n<script>alert(1)</script>")
    await page.get_by_label("Severity").fill("critical")
    await page.get_by_text("Servers and tools").click()
    await browsers.check_page(page, "submit-filled")

    await page.get_by_role("button", name="Submit").dblclick()

    await expect(page.get_by_role("heading", name="Processing Alert...")).to_be_visible()
    await expect(page.get_by_text("Waiting for a worker", exact=True)).to_be_visible()
    await browsers.check_page(page, "submitted-queued")
    rows = await queue.rows(database, "SELECT alert_type, severity, alert_data FROM investigations")
    assert rows == [("KubePodCrashLooping", "critical", "Pod shop/web-0 restarts.\n<script>alert(1)</script>")]

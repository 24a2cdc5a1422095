"""The page of the list in a real Chromium: what it shows, its filters, and how it follows its events."""

from __future__ import annotations

from dataclasses import replace

from playwright import async_api as playwright
from support import browser as browsers
from support import stories
from support.listed_pages import THREE, admit, run_first_stage
from tarsy.kube import client
from tarsy.store.base import databases

THREE[1] |= {"replicas": 3}


async def test_active_card_shows_its_stages_and_ended_card_moves_to_history(
    page: playwright.Page, database: databases.Database, cluster: client.Cluster
) -> None:
    labels = {"alertname": "PodCrash", "namespace": "shop", "pod": "web-0"}
    await admit(database, cluster, summary="Pod web-0 dies\nagain", labels=labels, severity="critical")
    opened = await run_first_stage(database)

    await page.goto("/")
    card = page.locator("#cards > li")
    await playwright.expect(card).to_have_count(1)
    for text in ("PodCrash", "Pod web-0 dies", "critical", "pod-crash", "Running", "Agent: KubernetesAgent"):
        await playwright.expect(card.get_by_text(text).first).to_be_visible()
    await playwright.expect(card).to_contain_text("Progress: 1 of 3 stages completed • Currently: analysis")
    stages = card.locator(".stage")
    await playwright.expect(stages).to_have_count(3)
    await playwright.expect(stages.nth(1)).to_contain_text("Running...")
    await playwright.expect(stages.nth(1)).to_contain_text("KubernetesAgent \u00d7 3")
    await playwright.expect(stages.nth(2)).to_contain_text("Pending")
    await playwright.expect(page.locator("#live-text")).to_have_text("Live")
    await browsers.check_page(page, "list-active")

    await opened.commit(stories.ended("two", outcome="Failed", error="no answer"))
    await opened.commit(replace(stories.stage_ended(outcome="Failed"), message="no answer in 4 attempts"))
    await playwright.expect(stages.nth(1)).to_contain_text("Error")
    await playwright.expect(stages.nth(1)).to_contain_text("no answer in 4 attempts")
    await browsers.check_page(page, "list-stage-failed")

    await opened.commit(replace(stories.run_ended(final_analysis="the disk"), summary="It is the disk."))
    await playwright.expect(page.locator("#rows > tr")).to_have_count(1)
    await playwright.expect(page.locator("#rows")).to_contain_text("It is the disk.")
    await playwright.expect(page.locator("#active")).to_be_hidden()
    await browsers.check_page(page, "list-history")

"""The page of an investigation, in a real Chromium."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from playwright import async_api as playwright
from support import browser as browsers
from support import queue, stories
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import journal
from tarsy.transcript import entries

HOSTILE = (
    "<script>document.title = 'owned'</script> <img src=x onerror=\"document.title='owned'\"> "
    "[a link](javascript:alert(1)) ![an image](http://evil.example/x.png) \x1b[31mred\x1b[0m \u202egnp.exe"
)
CHAIN = queue.chain(
    stages=[
        {"name": "data-collection", "agent": "KubernetesAgent", "replicas": 3},
        {"name": "analysis", "agent": "KubernetesAgent"},
    ]
)


class World:
    """Investigations in the namespace that the site serves."""

    def __init__(self, cluster: client.Cluster, database: databases.Database) -> None:
        self.namespace = cluster.served.own
        self.database = database

    async def begin(self, name: str = "web-crash", **spec: str) -> tuple[UUID, journal.PgJournal]:
        """Admit an investigation and claim it; its id and its journal."""
        subject = queue.subject(name, **spec)
        metadata = subject.metadata.model_copy(update={"namespace": self.namespace})
        identity = await queue.admit(self.database, subject.model_copy(update={"metadata": metadata}), chain=CHAIN)
        return identity, await queue.opened(self.database, await queue.claimed(self.database))


@pytest.fixture
def world(cluster: client.Cluster, database: databases.Database) -> World:
    return World(cluster, database)


def collection(*, text: str = "web-0 restarts: OOMKilled") -> list[entries.Entry]:
    """The first stage: three agents that each call two tools, one of which fails, and a synthesis."""
    log: list[entries.Entry] = [stories.stage_started("data-collection")]
    for index in range(3):
        name = f"agent{index}"
        asked = stories.asks("k8s.pods_log", "k8s.pods_list", execution=name, text="I look.", thinking="Which pod?")
        log += [
            stories.started(name, stage="data-collection", index=index),
            asked,
            stories.ran(asked, 0, text=text),
            stories.ran(asked, 1, text="forbidden", failed=True, in_doubt=True),
            stories.answers(f"Pod web-0 is out of memory [tool 0.0]. {text}", execution=name, turn=1),
            stories.ended(name),
        ]
    return log


def joined(text: str) -> list[entries.Entry]:
    """The synthesis of the first stage, and the stage's end."""
    synthesis = entries.ExecutionStarted(
        stage="data-collection",
        execution="join",
        kind="synthesis",
        index=3,
        name="SynthesisAgent",
        agent=stories.AGENT,
        messages=stories.PROMPT,
    )
    return [
        synthesis,
        stories.answers(text, execution="join"),
        stories.ended("join"),
        stories.stage_ended("data-collection"),
    ]


def analysis(text: str) -> list[entries.Entry]:
    """The second stage, and the end."""
    return [
        stories.stage_started("analysis"),
        stories.started("last", stage="analysis"),
        stories.answers(text, execution="last"),
        stories.ended("last"),
        stories.stage_ended("analysis"),
        stories.run_ended(final_analysis=text, summary="Too little **memory**."),
    ]


async def commit(writing: journal.PgJournal, log: Sequence[entries.Entry]) -> None:
    for entry in log:
        await writing.commit(entry)


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
    await browsers.look(page, "investigation-finished")


async def test_hostile_texts_are_shown_as_text(page: playwright.Page, world: World) -> None:
    identity, writing = await world.begin(alertData=HOSTILE)
    long = HOSTILE + "x" * 1_000_000
    await commit(writing, [*collection(text=long), *joined(HOSTILE), *analysis(HOSTILE)])

    await page.goto(f"/investigations/{identity}")

    await playwright.expect(page.locator("#result")).to_contain_text("<script>")
    assert "owned" not in await page.title()
    assert await page.locator("main img").count() == 0
    assert await page.locator("a[href^='javascript']").count() == 0
    await browsers.look(page, "investigation-hostile")
    await page.locator("#event-agent0\\.0\\.0\\.result").get_by_role("link", name="show the whole").click()
    await playwright.expect(page.locator("pre").last).to_contain_text("x" * 1000)

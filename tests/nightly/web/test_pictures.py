"""The pictures of the README: a list and an investigation. `PICTURES=1` writes them to docs/pictures."""

from __future__ import annotations

import json
import os

from playwright import async_api as playwright
from support import browser as browsers
from support import investigated, queue, stories
from support.investigated import World, commit
from tarsy.transcript import entries
from tarsy_dev import tools

SIZE_MAX = 100 * 1024
"""Bytes of a picture."""
STAGES = [
    {"name": "data-collection", "agent": "KubernetesAgent", "replicas": 3},
    {"name": "analysis", "agent": "KubernetesAgent"},
]
CAUSE = """\
**Cause.** The container `web` is killed when it reaches its limit of 64Mi [tool 0.0]. The new image needs about 90Mi.

1. Raise `resources.limits.memory` of StatefulSet `shop/web` to 128Mi.
2. Alert on memory before the limit is reached.
"""


def first_stage() -> list[entries.Entry]:
    """Three agents side by side, and the synthesis of what they found."""
    log: list[entries.Entry] = [stories.stage_started("data-collection")]
    texts = (
        "Pod `web-0` was OOMKilled 14 times [tool 0.0].",
        "The memory limit is 64Mi [tool 0.0].",
        "Image `web:2.4` came an hour ago [tool 0.0].",
    )
    for index, text in enumerate(texts):
        name = f"agent{index}"
        asked = stories.asks("k8s.pods_get", execution=name, thinking="Which container ends, and why?")
        log += [
            stories.started(name, stage="data-collection", index=index),
            asked,
            stories.ran(asked, text="reason: OOMKilled"),
            stories.answers(text, execution=name, call_number=1),
            stories.ended(name),
        ]
    return [*log, *investigated.joined("The limit is too low for the new image [tool 0.0].")]


def second_stage() -> list[entries.Entry]:
    return [
        stories.stage_started("analysis"),
        stories.started("last", stage="analysis"),
        stories.answers(CAUSE, execution="last"),
        stories.ended("last"),
        stories.stage_ended("analysis"),
        stories.run_ended(
            final_analysis=CAUSE, summary="Pod web-0 runs out of memory: its limit of 64Mi is too low for web:2.4."
        ),
    ]


async def test_pictures_show_a_list_and_an_investigation(page: playwright.Page, world: World) -> None:
    for name, alert, pod, severity, text in (
        ("latency", "HighLatency", "api-7", "warning", "Pod api-7 answers late"),
        ("crash", "KubePodCrashLooping", "web-0", "critical", "Pod web-0 restarts every minute"),
    ):
        summary = json.dumps({"annotations": {"summary": f"{text} in namespace shop"}})
        labels = {"alertname": alert, "namespace": "shop", "pod": pod}
        identity, writing = await world.begin(
            name,
            chain=queue.chain(stages=STAGES, alertTypes=[alert]),
            alertType=alert,
            alertData=summary,
            severity=severity,
            labels=labels,
        )
        await commit(writing, first_stage() + (second_stage() if name == "crash" else second_stage()[:2]))
    await page.set_viewport_size({"width": 1000, "height": 700})

    await page.goto("/")
    await playwright.expect(page.locator("#live-text")).to_have_text("Live")
    await playwright.expect(page.locator("#cards > li")).to_have_count(1)
    await playwright.expect(page.locator("#rows > tr")).to_have_count(1)
    await keep(page, "list")
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#agents-data-collection > article")).to_have_count(3)
    await page.locator("#result").evaluate("(result) => result.scrollIntoView()")
    await keep(page, "investigation")


async def keep(page: playwright.Page, name: str) -> None:
    """Keep a picture of the window."""
    folder = tools.ROOT / "docs" / "pictures" if os.environ.get("PICTURES") else browsers.SCREENSHOTS
    folder.mkdir(exist_ok=True)
    picture = await page.screenshot(path=folder / f"{name}.png")
    assert len(picture) < SIZE_MAX

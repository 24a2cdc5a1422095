"""Scraped metrics: what Prometheus' own parser reads of them, and what promtool says of their text."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence

import aiohttp
import pytest
from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from tarsy.telemetry import metrics
from tarsy_dev import patience

PROMTOOL = shutil.which("promtool")
WITH_PROMTOOL = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH (Debian's package prometheus)")


async def text(url: str, *, accept: str = "") -> str:
    """The text that a listener of metrics serves."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience.PATIENCE)) as session,
        session.get(f"{url}/metrics", headers={"Accept": accept} if accept else {}) as response,
    ):
        assert response.status == 200
        return await response.text()


def families(exposition: str) -> list[Metric]:
    """The metrics of a text."""
    return list(parser.text_string_to_metric_families(exposition))


def samples(exposition: str, name: str, **labels: str) -> Iterator[float]:
    """The values of the samples of that name with these labels, among others."""
    for family in families(exposition):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample.value


def total(exposition: str, name: str, **labels: str) -> float | None:
    """The sum of these samples; None if there are none."""
    measured = list(samples(exposition, name, **labels))
    return sum(measured) if measured else None


def label_values(exposition: str) -> set[str]:
    """All values of labels of TARSy's own metrics, without those of buckets."""
    return {
        value
        for family in families(exposition)
        if family.name.startswith("tarsy_")
        for sample in family.samples
        for label, value in sample.labels.items()
        if label != "le"
    }


def own() -> str:
    """The metrics of the tests' own process."""
    exposition, _ = metrics.render("")
    return exposition.decode()


class Since:
    """The rise of metrics of the tests' own process since this was made."""

    def __init__(self) -> None:
        self._before = own()

    def __call__(self, name: str, **labels: str) -> float:
        return (total(own(), name, **labels) or 0.0) - (total(self._before, name, **labels) or 0.0)


async def until(scrape: Callable[[], Awaitable[str]], wanted: Callable[[str], bool]) -> str:
    """The first scrape that is as `wanted`."""
    async with patience.limit():
        while True:
            if wanted(exposition := await scrape()):
                return exposition
            await asyncio.sleep(0.2)


async def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Run promtool; its exit status, and all that it says."""
    running = await asyncio.create_subprocess_exec(
        str(PROMTOOL),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await running.communicate(stdin.encode())
    assert running.returncode is not None
    return running.returncode, output.decode()


def names(exposition: str) -> Sequence[str]:
    """The names of TARSy's own metrics."""
    return [family.name for family in families(exposition) if family.name.startswith("tarsy_")]

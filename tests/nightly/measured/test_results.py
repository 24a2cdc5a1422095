"""Conversion of an MCP server's answer: text as it is, the rest by its name, nothing twice, and all of it masked."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

from tarsy.masking import masker
from tarsy.tools.calls import results
from tarsy.transcript import ports


async def cleaned(text: str, mask: Any = lambda text: text) -> ports.ToolOutput:
    return await results.mask_and_cut(ports.ToolOutput(text=text), mask=mask)


def lists(size: int) -> str:
    """A list of pods as a server prints it, of about so many characters: what takes a masker longest of honest text."""
    pod = (
        '{"metadata": {"name": "web-%d", "namespace": "shop", "labels": {"app": "web"}, "uid": "6f1c2f9e-3a55-4f0e"}, '
        '"spec": {"containers": [{"name": "web", "image": "shop/web:1.2", "env": [{"name": "MODE", "value": "x"}]}]}}'
    )
    items = ", ".join(pod % number for number in range(size // (len(pod) - 2)))
    return f'{{"kind": "PodList", "apiVersion": "v1", "items": [{items}]}}'


async def test_eight_megabytes_are_masked_in_bounded_time_without_blocking_the_event_loop(
    record_property: Callable[[str, object], None],
) -> None:
    text = lists(8_000_000)
    mask = functools.partial(masker.Masker(groups=["security", "kubernetes"]).text)
    lags: list[float] = []
    done = asyncio.Event()

    async def tick() -> None:
        while not done.is_set():
            began, used = time.monotonic(), time.process_time()
            await asyncio.sleep(0.01)
            # Not what the machine gives to other processes.
            lags.append(min(time.monotonic() - began - 0.01, time.process_time() - used))

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    output = await cleaned(text, mask)
    seconds = time.monotonic() - began
    done.set()
    await ticking
    late = f"the loop late by {max(lags) * 1000:.0f} ms at most"
    record_property(
        "figure", f"8 MB of a list: {'withheld' if output.length else 'masked'} after {seconds:.1f} s, {late}"
    )
    assert seconds < 20
    assert max(lags) < 1.0

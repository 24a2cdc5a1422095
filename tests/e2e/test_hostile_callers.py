"""Whoever reaches the port, and even whoever has the webhook's token, keeps no honest caller waiting.

Source: reliability.md, test 17.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from support import manifests, operators, pace
from tarsy.api import protocol
from tarsy_dev import tools

if TYPE_CHECKING:
    from support.operators import Operator, Process

SERVED_SECONDS = 0.2
MEMORY_MAX = 256 * 1024  # KiB beside what the process has before


def kib(process: Process, what: str) -> int:
    """Memory of the process, as the kernel counts it."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1])


@pytest.mark.slow
async def test_five_hundred_slow_sockets_and_large_bodies_keep_no_honest_caller_waiting(
    operator: Operator, editor: str
) -> None:
    await operator.apply(manifests.chain())
    process = await operator.start(role="api")
    body = json.dumps({"alert_type": "kubernetes", "data": "web-0 restarts"}).encode()
    status, posted = await process.request("POST", "/api/v1/alerts", body=body)
    assert status == 202
    path = f"/api/v1/investigations/{posted['alert_id']}"
    before = kib(process, "VmRSS")
    hostile = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.hostile", process.url.rpartition(":")[2], operators.TOKEN),
        env={**os.environ, "PYTHONPATH": str(tools.ROOT / "tests")},
        stdout=subprocess.PIPE,
    )
    ending = asyncio.create_task(hostile.communicate())
    served: list[float] = []
    async with aiohttp.ClientSession(process.url, headers={"Authorization": f"Bearer {editor}"}) as honest:
        while not ending.done():
            began = time.perf_counter()
            async with honest.get(path) as response:
                assert response.status == 200
                await response.read()
            served.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
    closed = float((await ending)[0])
    grown = kib(process, "VmHWM") - before
    served.sort()
    p99 = served[len(served) * 99 // 100]
    print(f"{len(served)} requests, median {served[len(served) // 2]:.3f} s, p99 {p99:.3f} s, at most {served[-1]:.3f} s")
    print(f"slow ones were closed after {closed:.1f} s; the process has {grown} KiB more at most")
    assert closed < protocol.REQUEST_SECONDS + 2
    assert grown < MEMORY_MAX
    assert p99 < SERVED_SECONDS * max(1.0, pace.slowness())
    await process.stop()

"""What eight calls at once through the pool take, beside eight through the SDK alone."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import mcp
from support import leases
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.tools.servers import pool
from tarsy.transcript import messages, ports

ROUNDS = 25
AT_ONCE = 8
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
CALL = messages.ToolCall(id="0.0", name="one.lookup", arguments='{"name": "web-0"}')


async def took(ask: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return time.perf_counter() - started


async def test_eight_calls_at_once_take_at_most_a_third_longer_than_the_sdks_own() -> None:
    """The rounds take turns, so that both meet the same machine."""
    command = (sys.executable, "-m", "tarsy_dev.mcp_server")
    there = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert there.stdout
    url = (await there.stdout.readline()).decode().strip()
    settings = {"mcp_servers": {"one": {"transport": {"type": "http", "url": url}}}}
    servers = pool.Pool(platforms.Platform.model_validate(settings), secrets=NO_SECRETS)
    owners = asyncio.create_task(servers.run())
    try:
        async with servers.tools.toolbox(["one"], lambda _: True) as box, mcp.Client(url) as bare:
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(await took(lambda: box.call(CALL, SCOPE)))
                theirs.append(await took(lambda: bare.call_tool("lookup", {"name": "web-0"})))
        assert statistics.median(ours) < 1.3 * statistics.median(theirs)
    finally:
        owners.cancel()
        await asyncio.gather(owners, return_exceptions=True)
        there.terminate()
        await there.wait()

"""Messages, calls and exports of logs in Postgres: whole on pages of any size, of one moment, and never in the way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from support import apis, kubeconfigs, stories
from support.transcripts import turns, written
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.transcript import entries

QUICK = 0.1
"""Seconds."""


@pytest.fixture
async def session(database: databases.Database, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of an API on the database."""
    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    parts = apis.parts(cluster=cluster, database=database)
    async with apis.served(parts) as session:
        yield session
    await cluster.close()


async def test_reading_a_large_log_does_not_block_the_loop(
    database: databases.Database, session: aiohttp.ClientSession
) -> None:
    """2,000 entries, 20 MB."""
    dice = random.Random(3)  # noqa: S311 - what does not compress

    def lengthened(run: entries.ToolRun) -> entries.ToolRun:
        return replace(run, result=replace(run.result, text=dice.randbytes(7500).hex()))

    log = [
        replace(entry, runs=tuple(map(lengthened, entry.runs))) if isinstance(entry, entries.ToolsAnswered) else entry
        for entry in turns("one", count=665)
    ]
    identity = await written(database, [stories.stage_started(), stories.started(), *log])
    path = f"/api/v1/investigations/{identity}"
    paths = ("", "/timeline", "/messages", "/trace", "/trace/llm/660", "/export", "/export?format=markdown")
    done = asyncio.Event()
    took: list[float] = []

    async def ask_often() -> None:
        while not done.is_set():
            began = time.monotonic()
            async with session.get("/healthz") as response:
                assert response.status == 200
            took.append(time.monotonic() - began)

    asking = asyncio.create_task(ask_often())
    for suffix in paths:
        async with session.get(path + suffix) as response:
            assert response.status == 200, suffix
            async for _ in response.content.iter_any():
                pass
    done.set()
    await asking
    took.sort()
    assert took[int(len(took) * 0.99)] < QUICK, took[-10:]

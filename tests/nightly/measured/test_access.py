"""Who may do what, on a real API server: every route of the API, whoever else has added it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest
from support import apis, queue
from tarsy.auth import identities
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.intake import queueing
from tarsy_dev import proxy
from tarsy_dev.controlplane import Administrator

WEBHOOK = "the token"

SOON_SECONDS = 6.0
"""Beside guesses; behind 2,000 of them, each of 0.2 s and 32 at once, it would be twelve."""

BUSY = 5
"""So often what a call takes alone: 2,000 requests take turns with it, in this process too."""


@pytest.fixture
async def admitted(database: databases.Database, cluster: client.Cluster) -> Callable[..., Awaitable[UUID]]:
    """Admits an investigation of the operator's namespace, or of another, as it is now or was once."""

    async def admit(*, namespace: str = cluster.served.own, namespace_uid: str | None = None) -> UUID:
        subject = queue.subject()
        moved = subject.model_copy(update={"metadata": subject.metadata.model_copy(update={"namespace": namespace})})
        admission = replace(queue.admission(moved), namespace_uid=namespace_uid)
        assert await queueing.admit(database, admission)
        return UUID(admission.id)

    return admit


async def test_behind_a_slow_api_server_guesses_keep_nobody_waiting_who_calls_honestly(
    cluster: client.Cluster,
    database: databases.Database,
    plane: Administrator,
    admitted: Callable[..., Awaitable[UUID]],
    editor: str,
    tmp_path: Path,
) -> None:
    """One who is known, at the address of the guesses, and one who calls for the first time, from another."""
    path = f"/api/v1/investigations/{await admitted()}"
    host, port = plane.url.removeprefix("https://").split(":")
    async with contextlib.AsyncExitStack() as stack:
        between = await stack.enter_async_context(proxy.serve(host, int(port)))
        kubeconfig = tmp_path / "through"
        given = plane.kubeconfig(namespace=cluster.served.own).read_text()
        kubeconfig.write_text(given.replace(plane.url, f"https://127.0.0.1:{between.port}"))
        through = await client.connect(kubeconfig)
        stack.push_async_callback(through.close)
        parts = apis.parts(cluster=through, database=database, token=WEBHOOK)
        url = await stack.enter_async_context(apis.listening(parts))

        async def calling(address: str) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(local_addr=(address, 0), limit=200)
            return await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector))

        async def ask(session: aiohttp.ClientSession, token: str) -> tuple[int, float]:
            began = time.monotonic()
            async with session.get(path, headers=apis.bearer(token)) as response:
                await response.read()
            return response.status, time.monotonic() - began

        guesser, known, elsewhere = await calling("127.0.0.1"), await calling("127.0.0.1"), await calling("127.0.0.2")
        assert (await ask(known, editor))[0] == 200
        between.delay_down = 0.2
        tokens = [plane.kubectl("create", "token", "tarsy-test-editor", namespace="default").strip() for _ in range(2)]
        alone = await ask(elsewhere, tokens[0])
        began = time.monotonic()
        guessing = asyncio.gather(*(ask(guesser, f"guess{number}") for number in range(2000)))
        await between.wait_for(lambda: between.open_connections > 2)
        first = await ask(elsewhere, tokens[1])
        told = [await ask(known, editor) for _ in range(5)]
        assert not guessing.done()
        answers = Counter(status for status, _ in await guessing)
        took = time.monotonic() - began
    longest = max(seconds for _, seconds in told)
    print(f"alone {alone[1]:.2f} s; the first call {first[1]:.2f} s, the known one's {longest:.2f} s; {answers}")
    assert [status for status, _ in (first, *told)] == [200] * 6
    assert max(first[1], longest) < SOON_SECONDS + BUSY * alone[1]
    assert set(answers) == {401, 429}
    assert identities.GUESSES <= answers[401] <= identities.GUESSES + math.ceil(took), "and one a second"

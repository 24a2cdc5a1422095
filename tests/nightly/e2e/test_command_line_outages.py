"""`tarsy watch` and `logs -f` while connections are cut, and the API server and the operator are away and come back."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from support import command_line, finished, manifests
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import controlplane, model, proxy

if TYPE_CHECKING:
    from support.operators import Operator


async def test_a_watch_outlasts_the_api_server_and_the_operator(
    operator: Operator, llm: model.Server, plane: controlplane.Administrator, programs: dict[str, Path]
) -> None:
    look = model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "web-0"}),))
    llm.script = lambda model_call: model.Hang() if model_call.iteration else look
    first = await operator.start(lease=timedelta(seconds=3))
    await operator.apply(manifests.chain(), manifests.investigation("web"))
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(proxy.serve("127.0.0.1", int(plane.url.rpartition(":")[2])))
        api = await stack.enter_async_context(proxy.serve("127.0.0.1", int(first.url.rpartition(":")[2])))
        config = plane.kubeconfig(namespace=operator.namespace, url=f"https://127.0.0.1:{server.port}")
        run = command_line.CommandLine(
            kubectl=programs["kubectl"],
            kubeconfig=config,
            env={"TARSY_API": f"http://127.0.0.1:{api.port}", "TARSY_TOKEN": first.editor},
        )
        watching = await stack.enter_async_context(run.started("watch", "web", "-o", "jsonl"))
        following = await stack.enter_async_context(run.started("logs", "-f", "web"))
        assert watching.stdout
        assert watching.stderr
        assert following.stderr
        assert following.stdout
        await asyncio.wait_for(watching.stdout.readuntil(b'"stage":"analysis"'), 60)
        await asyncio.wait_for(following.stdout.readuntil(b"Calls tools.lookup"), 60)

        server.refuse()
        server.cut()  # a watch that is being opened meets the refusal
        await asyncio.wait_for(watching.stderr.readuntil(b"The cluster does not answer, retrying"), 60)
        server.accept()
        await asyncio.wait_for(watching.stderr.readuntil(b"The cluster answers again."), 60)
        await first.kill()
        await asyncio.wait_for(following.stderr.readuntil(b"The connection was lost, reconnecting"), 60)
        llm.script = lambda _call: model.Answer(text="root cause")
        second = await operator.start(lease=timedelta(seconds=3))
        api.upstream = ("127.0.0.1", int(second.url.rpartition(":")[2]))
        await asyncio.wait_for(watching.stdout.readuntil(b'"type":"takeover"'), 60)
        assert await asyncio.wait_for(watching.wait(), 60) == 0
        assert await asyncio.wait_for(following.wait(), 60) == 0
        assert (await following.stdout.read()).decode().endswith("] root cause\n")


async def test_a_list_of_thousands_comes_page_by_page(
    admin: client.Cluster,
    database: databases.Database,
    plane: controlplane.Administrator,
    programs: dict[str, Path],
) -> None:
    await finished.create(admin, database, count=1_200)
    run = command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=admin.served.own),
        env={"TARSY_API": "http://127.0.0.1:1", "TARSY_TOKEN": "x"},
    )

    listing = await run.run("list", "-o", "name")
    assert (listing.code, len(listing.out.splitlines())) == (0, 25), listing
    assert "Without the API, this is one page of the cluster's objects, by name" in listing.err
    every = await run.run("list", "--field-selector", "status.phase=Completed", "--limit", "0", "-o", "name")
    assert len(set(every.out.splitlines())) == 1_200
    completed = ("list", "-A", "--field-selector", "status.phase!=Failed", "-o", "name")
    first = await run.run(*completed, "--limit", "100")
    assert len(first.out.splitlines()) == 100
    cursor = first.err.partition("add --cursor ")[2].partition(",")[0]
    second = await run.run(*completed, "--cursor", cursor)
    assert len(second.out.splitlines()) == 25
    assert set(second.out.splitlines()).isdisjoint(first.out.splitlines())

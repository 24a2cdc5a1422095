"""Servers that answer in the place of an API server and are none: it is away, and nothing ends by it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tarsy.kube import client, discovery

GROUP = {"groups": [{"versions": [{"groupVersion": "tarsy.dev/v1alpha1"}]}]}


async def connected(folder: Path, port: int) -> client.Cluster:
    cluster = {"cluster": {"server": f"http://127.0.0.1:{port}"}, "name": "c"}
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "tarsy"}}],
        "current-context": "x",
    }
    (folder / "config").write_text(json.dumps(written))
    return await client.connect(folder / "config")


@pytest.mark.parametrize(
    "answers",
    [
        ([],),
        (None,),
        ({},),
        ({"groups": None},),
        ({"groups": [None]},),
        ({"groups": [{}]},),
        ({"groups": [{"versions": [{}]}]},),
        ({"groups": [{"versions": [{"groupVersion": []}]}]},),
        ("ok",),
        (GROUP, {}),
        (GROUP, {"resources": None}),
        (GROUP, {"resources": [{"name": {}}]}),
        (GROUP, [1]),
    ],
    ids=json.dumps,
)
async def test_malformed_api_server_answer_counts_as_api_server_down(
    answers: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PING_SECONDS", 60.0)
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(left.pop(0)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        cluster = await connected(tmp_path, listening.sockets[0].getsockname()[1])
        with pytest.raises(client.ClusterDownError, match="is not that of an API server"):
            await discovery.unserved_kinds(cluster)
        await cluster.close()
    assert not left

"""The real kubernetes-mcp-server, on a real API server, over each of the three ways to speak to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from support import leases
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.tools.servers import pool
from tarsy.transcript import messages, ports
from tarsy_dev import children, patience, tools
from tarsy_dev.controlplane import Administrator

FLAGS = ("--read-only", "--toolsets", "core", "--disable-multi-cluster")
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


@contextlib.asynccontextmanager
async def listening(kubeconfig: str) -> AsyncIterator[str]:
    """The program on a port of its own; its address."""
    (port,) = children.free_ports(1)
    command = (
        str(tools.kubernetes_mcp_server()), *FLAGS,
        "--port", str(port), "--bind-address", "127.0.0.1", "--kubeconfig", kubeconfig,
    )  # fmt: skip
    quiet = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(*command, stdin=quiet, stdout=quiet, stderr=quiet)
    address = f"http://127.0.0.1:{port}"
    try:
        async with patience.limit(), httpx2.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    await http.get(f"{address}/healthz")
                    break
                await asyncio.sleep(0.05)
        yield address
    finally:
        child.terminate()
        await child.wait()


@contextlib.asynccontextmanager
async def connected(servers: pool.Pool) -> AsyncIterator[ports.Toolbox]:
    """A toolbox with the server's tools: on a busy machine the program starts later than an execution waits for it."""
    while True:
        async with servers.tools.toolbox(["k8s"], lambda _: True) as box:
            if box.problems == ():
                yield box
                return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("way", ["stdio", "http", "sse"])
async def test_a_toolbox_reads_the_cluster_through_it(plane: Administrator, cluster: client.Cluster, way: str) -> None:
    plane.kubectl("create", "configmap", "found-here", "--from-literal=a=b", namespace=cluster.served.own)
    kubeconfig = str(plane.kubeconfig(namespace=cluster.served.own))
    async with contextlib.AsyncExitStack() as stack:
        if way == "stdio":
            command = str(tools.kubernetes_mcp_server())
            transport = {"type": "stdio", "command": command, "args": [*FLAGS, "--kubeconfig", kubeconfig]}
        else:
            address = await stack.enter_async_context(listening(kubeconfig))
            path = "mcp" if way == "http" else "sse"
            transport = {"type": way, "url": f"{address}/{path}"}
        servers = pool.Pool(
            platforms.Platform.model_validate({"mcp_servers": {"k8s": {"transport": transport}}}),
            secrets=NO_SECRETS,
        )
        owners = asyncio.create_task(servers.run())
        async with patience.limit(), connected(servers) as box:
            assert {"k8s.resources_list", "k8s.pods_log", "k8s.events_list"} <= {spec.name for spec in box.specs}
            assert all(spec.idempotent for spec in box.specs)
            asked = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": cluster.served.own}
            call = messages.ToolCall(id="0.0", name="k8s.resources_list", arguments=json.dumps(asked))
            outputs = await asyncio.gather(*(box.call(call, SCOPE) for _ in range(8)))
            assert all("found-here" in output.text and not output.failed for output in outputs)
        owners.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owners

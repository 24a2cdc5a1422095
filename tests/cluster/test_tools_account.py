"""kubernetes-mcp-server over HTTP, as the chart runs it and under its account, on a real API server.

It looks, and it neither reads Secrets nor writes: by its own rules, and without them by those of the account.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client, MCPError
from mcp_types import TextContent
from support import charts, installed
from support.charts import Object
from tarsy.config.load import loader
from tarsy.kube import client
from tarsy.process import server_check
from tarsy_dev import children
from tarsy_dev.controlplane import Administrator

pytestmark = pytest.mark.once

HIDDEN = f"hidden-{secrets.token_hex(8)}"
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0"},
    "spec": {"containers": [{"name": "web", "image": "web"}]},
}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"password": HIDDEN}}
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": {"made": "by a tool"}}


@pytest.fixture
async def account(
    plane: Administrator, admin: client.Cluster, namespace: str
) -> AsyncIterator[tuple[installed.Installed, Path]]:
    """The accounts, and the kubeconfig of the tools' own; their namespace has a pod and a Secret."""
    accounts = installed.Installed(plane, admin)
    made = yaml.safe_dump_all([POD, SECRET])
    await asyncio.to_thread(plane.kubectl, "create", "-f", "-", namespace=namespace, input=made)
    yield accounts, await accounts.kubeconfig(installed.TOOLS)
    await accounts.remove()


def write(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)


@contextlib.asynccontextmanager
async def running(
    programs: Mapping[str, Path], kubeconfig: Path, folder: Path, *, guarded: bool = True
) -> AsyncIterator[str]:
    """The server as the chart's pod runs it, but for its address; without its own guards, if they are not wanted."""
    rendered = charts.render()
    (container,) = charts.pod_templates(rendered)["Deployment/tarsy-mcp"]["spec"]["containers"]
    config = charts.one(rendered, "ConfigMap", "tarsy-mcp")["data"]["config.toml"]
    write(folder / "config.toml", config if guarded else "")
    (port,) = children.free_ports(1)
    here = {
        "--config": folder / "config.toml",
        "--port": port,
        "--bind-address": "127.0.0.1",
        "--cluster-provider": "kubeconfig",
    } | ({} if guarded else {"--toolsets": "core,config,helm"})
    flags = dict(flag.partition("=")[::2] for flag in container["args"] if guarded or flag != "--read-only")
    assert here.keys() <= flags.keys()
    flags |= {name: str(value) for name, value in here.items()}
    command = [
        programs["kubernetes-mcp-server"],
        *(f"{name}={value}" if value else name for name, value in flags.items()),
    ]
    command.append(f"--kubeconfig={kubeconfig}")
    child = children.start(command, name="mcp", log=folder / "log", cwd=folder, env={"HOME": str(folder)})
    path = container["readinessProbe"]["httpGet"]["path"]

    def is_ready() -> bool:
        return children.http_status(HTTPConnection("127.0.0.1", port, timeout=60), path) == 200

    try:
        await asyncio.to_thread(child.wait_until, is_ready, what="readiness")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        await asyncio.to_thread(child.end)


async def call_tool(server: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Whether a call came through, and what was said."""
    try:
        result = await server.call_tool(tool, arguments)
    except MCPError as error:
        return False, str(error)
    return not result.is_error, "".join(part.text for part in result.content if isinstance(part, TextContent))


async def test_tools_as_the_chart_runs_them_read_but_see_no_secrets_and_do_not_write(
    account: tuple[installed.Installed, Path], programs: dict[str, Path], namespace: str, tmp_path: Path
) -> None:
    _, kubeconfig = account
    async with running(programs, kubeconfig, tmp_path / "mcp") as url, Client(url) as server:
        tools = (await server.list_tools()).tools
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        came, listed = await call_tool(server, "pods_list_in_namespace", namespace=namespace)
        assert came
        assert "web-0" in listed
        for kind in ("Secret", "SecretList"):
            asked = {"apiVersion": "v1", "kind": kind, "namespace": namespace}
            for tool, named in (("resources_list", {}), ("resources_get", {"name": "hidden"})):
                came, output = await call_tool(server, tool, **asked, **named)
                assert not came, output
                assert HIDDEN not in output
        for tool, arguments in writing(namespace).items():
            came, output = await call_tool(server, tool, **arguments)
            assert not came
            assert "unknown tool" in output
        await check_ours(url)


async def check_ours(url: str) -> None:
    """The platform file that the chart renders, but for the address, finds them as an operator does."""
    rendered = charts.one(charts.render(), "ConfigMap", "tarsy-platform")["data"]["tarsy.yaml"]
    text = rendered.replace("http://tarsy-mcp:8080/mcp", url)
    assert url in text
    loaded = loader.from_bytes(text.encode(), file="tarsy.yaml", environment={})
    (report,), unfit = await server_check.servers(loaded.platform)
    assert (report.name, report.is_connected, report.problem, unfit) == ("kubernetes-server", True, "", [])
    assert {"pods_list", "pods_log", "resources_get", "events_list"} <= set(report.tools)


def writing(namespace: str) -> dict[str, Object]:
    """Return the calls that would change something, or that run or read what is forbidden to all."""
    here = {"namespace": namespace}
    return {
        "resources_create_or_update": {"resource": json.dumps(MAP | {"metadata": {"name": "made", **here}})},
        "resources_delete": {"apiVersion": "v1", "kind": "Pod", "name": "web-0", **here},
        "resources_scale": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "scale": 0, **here},
        "pods_delete": {"name": "web-0", **here},
        "pods_exec": {"name": "web-0", "command": ["id"], **here},
        "pods_run": {"name": "made", "image": "web", **here},
        "helm_list": here,
    }


async def test_account_refuses_the_same_without_rules_of_the_server(
    account: tuple[installed.Installed, Path],
    programs: dict[str, Path],
    plane: Administrator,
    namespace: str,
    tmp_path: Path,
) -> None:
    accounts, kubeconfig = account
    async with running(programs, kubeconfig, tmp_path / "mcp", guarded=False) as url, Client(url) as server:
        assert {tool.name for tool in (await server.list_tools()).tools} >= writing(namespace).keys()
        came, listed = await call_tool(server, "pods_list_in_namespace", namespace=namespace)
        assert came
        assert "web-0" in listed
        asked = {"apiVersion": "v1", "kind": "Secret", "namespace": namespace}
        for tool, arguments in [
            *writing(namespace).items(),
            ("resources_list", asked),
            ("resources_get", {**asked, "name": "hidden"}),
        ]:
            came, output = await call_tool(server, tool, **arguments)
            assert not came, f"{tool}: {output}"
            assert "forbidden" in output, f"{tool}: {output}"
            assert HIDDEN not in output
    there = await asyncio.to_thread(plane.kubectl, "get", "pods,configmaps", "-o", "name", namespace=namespace)
    assert set(there.split()) - {"configmap/kube-root-ca.crt"} == {"pod/web-0"}
    allowed = {(use.right.verb, use.right.resource) for use in accounts.uses(installed.TOOLS) if use.allowed}
    allowed.discard(("create", "selfsubjectaccessreviews"))  # every account may ask for its own rights
    assert ("list", "pods") in allowed
    assert {verb for verb, _ in allowed} <= {"get", "list", "watch"}
    assert not {resource for _, resource in allowed} & {"secrets", "pods/exec"}

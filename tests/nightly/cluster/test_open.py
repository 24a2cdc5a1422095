"""`tarsy open` with the real kubectl, an API server and the API with its pages."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click import testing
from support import accounts, apis
from tarsy.api import app
from tarsy.cli import main
from tarsy.cli.client import failures, kubeconfig, kubectl, port_forward
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site
from tarsy_dev import chart, controlplane


@pytest.fixture
async def url(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[str]:
    """The address of an API with its pages that wants tokens."""
    parts = apis.parts(cluster=cluster, database=database, token="the webhook's token")
    application = app.build(parts)
    site.add(application)
    async with apis.listening(parts, application=application) as url:
        yield url


def write_kubeconfig(path: Path, user: dict[str, Any]) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))


@pytest.fixture
def config(programs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the kubeconfig that kubectl reads, which the test writes."""
    monkeypatch.setenv("PATH", f"{programs['kubectl'].parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path / "kubeconfig"


def test_a_token_is_taken_from_the_kubeconfig_or_from_its_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")

    write_kubeconfig(config, {"token": "written"})
    assert kubeconfig.token(kubeconfig.read(kubectl.Kubectl())) == "written"
    write_kubeconfig(config, {"tokenFile": str(tmp_path / "token")})
    assert kubeconfig.token(kubeconfig.read(kubectl.Kubectl())) == "from-file"


def test_a_token_is_taken_from_a_credential_plugin(config: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\ntest -n "$KUBERNETES_EXEC_INFO" && echo \'{"status": {"token": "\'$1-$WHO\'"}}\'\n')
    plugin.chmod(stat.S_IRWXU)
    exec_entry = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "args": ["token"],
        "env": [{"name": "WHO", "value": "jane"}],
        "interactiveMode": "Never",
    }
    write_kubeconfig(config, {"exec": exec_entry})

    assert kubeconfig.token(kubeconfig.read(kubectl.Kubectl())) == "token-jane"


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"client-certificate-data": "eA==", "client-key-data": "eA=="}, "has a client certificate, and no token"),
        ({}, "has no token: make one with `kubectl create token ACCOUNT`"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}, "false gave no token"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}, "no-such-plugin"),
    ],
    ids=["certificate", "nothing", "failing plugin", "missing plugin"],
)
def test_kubeconfig_user_without_a_token_is_refused_with_how_to_create_a_token(
    config: Path, user: dict[str, Any], message: str
) -> None:
    write_kubeconfig(config, user)

    with pytest.raises(failures.Refused, match=message):
        kubeconfig.token(kubeconfig.read(kubectl.Kubectl()))


async def test_the_printed_address_signs_a_browser_in(url: str, admin: client.Cluster) -> None:
    token = await accounts.create(admin, "opener", may={"alertinvestigations": ["get", "list"]})

    result = await asyncio.to_thread(
        testing.CliRunner().invoke,
        main.main,
        ["open", "--api", url, "--token-file", "-", "--no-browser"],
        input=token,
    )

    assert result.exit_code == 0, result.output
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
        browser.get(result.output.strip()) as response,
    ):
        page = await response.text()
    assert response.status == 200
    assert str(response.url) == f"{url}/"
    assert "Sign out" in page
    assert token not in result.output


@pytest.mark.parametrize("mode", ["single", "split"])
def test_service_of_the_api_is_found_among_the_services_of_the_chart(
    mode: str, plane: controlplane.Administrator, namespace: str, config: Path
) -> None:
    config.write_text(plane.kubeconfig(namespace=namespace).read_text())
    rendered = chart.rendered({"mode": mode, "postgres": {"trial": True}}, name="team-a", namespace=namespace)
    services = [each for each in chart.objects(rendered) if each["kind"] == "Service"]
    for service in services:
        plane.kubectl("apply", "-f", "-", input=json.dumps(service), namespace=namespace)

    assert len(services) == 3
    assert port_forward.api_service(kubectl.Kubectl(), namespace) == "team-a-tarsy"

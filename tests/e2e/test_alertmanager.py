"""A real Alertmanager in front of the operator, where there is one on PATH."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml
from aiohttp import test_utils, web
from support import manifests, operators
from support import receivers as recorded
from tarsy.ingest import grouping
from tarsy_dev import children, model, patience, tools

if TYPE_CHECKING:
    from support.operators import Operator

PROGRAM = shutil.which("prometheus-alertmanager")


def configuration(url: str) -> str:
    """Alertmanager's configuration, which is YAML."""
    webhook = {
        "url": f"{url}/api/v1/webhooks/alertmanager",
        "http_config": {"authorization": {"credentials": operators.TOKEN}},
    }
    route = {
        "receiver": "tarsy",
        "group_by": ["..."],
        "group_wait": "0s",
        "group_interval": "1s",
        "repeat_interval": "1h",
    }
    return json.dumps({"route": route, "receivers": [{"name": "tarsy", "webhook_configs": [webhook]}]})


ALERTMANAGER = pytest.mark.skipif(PROGRAM is None, reason="prometheus-alertmanager is not on PATH")


@contextlib.asynccontextmanager
async def alertmanager(folder: Path, configuration: str) -> AsyncIterator[int]:
    """A running Alertmanager; its port."""
    (folder / "alertmanager.yml").write_text(configuration)
    (port,) = children.free_ports(1)
    running = children.start(
        [
            str(PROGRAM),
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        name="alertmanager",
        log=folder / "alertmanager.log",
        cwd=folder,
    )
    try:
        await asyncio.to_thread(
            running.wait_until,
            lambda: children.http_status(HTTPConnection("127.0.0.1", port, timeout=60), "/-/ready") == 200,
            what="readiness",
        )
        yield port
    finally:
        await asyncio.to_thread(running.end)


async def post(port: int, *, starts_at: datetime, ends_at: datetime | None = None) -> None:
    """Post the alert as Prometheus does, with its start: of one without, Alertmanager would make the end the start."""
    alert: dict[str, Any] = {
        "labels": {"alertname": "KubePodCrashLooping", "pod": "web-0"},
        "startsAt": starts_at.isoformat(),
    }
    if ends_at:
        alert["endsAt"] = ends_at.isoformat()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/api/v2/alerts"
        async with session.post(url, json=[alert]) as response:
            assert response.status == 200, await response.text()


@pytest.fixture
async def pager() -> AsyncIterator[recorded.Receiver]:
    async with recorded.started() as pager:
        yield pager


@ALERTMANAGER
async def test_alert_of_a_real_alertmanager_is_investigated_and_its_resolve_is_recorded(
    operator: Operator, llm: model.Server, pager: recorded.Receiver, tmp_path: Path
) -> None:
    llm.script = model.answers(model.Answer(calls=(model.Call(name="tools__lookup"),)), "root cause")
    process = await operator.start()
    await operator.apply(manifests.chain("KubePodCrashLooping"))
    configured = json.loads(configuration(process.url))
    configured["receivers"][0]["pagerduty_configs"] = [{"routing_key": "x", "url": f"{pager.url}/v2/enqueue"}]
    async with alertmanager(tmp_path, json.dumps(configured)) as port:
        starts_at = datetime.now(UTC) - timedelta(minutes=1)
        await post(port, starts_at=starts_at)
        await process.logged("new=1")
        ((_, manifest),) = (await operator.finished()).items()
        assert manifest["spec"]["alertType"] == "KubePodCrashLooping"
        assert manifest["spec"]["source"]["receiver"] == "tarsy"
        (event, *_) = await pager.has(1)
        assert json.loads(event.body)["dedup_key"] == grouping.digest(manifest["spec"]["source"]["groupKey"])
        await post(port, starts_at=starts_at, ends_at=datetime.now(UTC) - timedelta(seconds=1))
        await process.logged("resolved=1")
        assert len(llm.requests) == 2


class Receivers:
    """The webhooks of an Alertmanager's receivers, and TARSy's: which alerts came to which."""

    def __init__(self) -> None:
        self.got = set[tuple[str, str]]()
        """(receiver, alertname)."""
        self._came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        """Note the alerts of a notification."""
        if request.path == "/api/v1/webhooks/alertmanager":
            assert request.headers["Authorization"] == f"Bearer {operators.TOKEN}"
            receiver = "tarsy"
        else:
            receiver = request.path.strip("/")
        self.got |= {(receiver, alert["labels"]["alertname"]) for alert in (await request.json())["alerts"]}
        self._came.set()
        return web.Response()

    async def all_of(self, expected: set[tuple[str, str]]) -> None:
        """Wait until these have come."""
        async with patience.limit():
            while not expected <= self.got:
                self._came.clear()
                await self._came.wait()


@pytest.fixture
async def receivers() -> AsyncIterator[tuple[Receivers, str]]:
    """Yield an app that records notifications, and its URL."""
    noting = Receivers()
    app = web.Application()
    app.router.add_post("/{path:.*}", noting.take)
    server = test_utils.TestServer(app)
    await server.start_server()
    yield noting, f"http://127.0.0.1:{server.port}"
    await server.close()


ALERTS = {
    "Plain": {},
    "Critical": {"severity": "critical"},
    "Database": {"team": "db"},
    "CriticalDatabase": {"team": "db", "severity": "critical"},
}
BEFORE = {
    ("pager", "Plain"),
    ("oncall", "Critical"),
    ("dba", "Database"),
    ("dba", "CriticalDatabase"),
    ("oncall", "CriticalDatabase"),
}
"""The alerts that the receivers of `existing` get."""


def existing(url: str) -> dict[str, Any]:
    """A configuration as people have one."""
    return {
        "route": {
            "receiver": "pager",
            "group_by": ["alertname"],
            "group_wait": "0s",
            "routes": [
                {"receiver": "dba", "matchers": ["team = db"], "continue": True},
                {"receiver": "oncall", "matchers": ["severity = critical"]},
            ],
        },
        "receivers": [
            {"name": name, "webhook_configs": [{"url": f"{url}/{name}"}]} for name in ("pager", "dba", "oncall")
        ],
    }


def documented(url: str, token_file: Path) -> list[dict[str, Any]]:
    """The configurations that docs/alertmanager.md shows, with the addresses of the test."""
    text = (tools.ROOT / "docs" / "alertmanager.md").read_text(encoding="utf-8")
    section = text.partition("\n## Alertmanager\n")[2].partition("\n## ")[0]
    section = section.replace("http://tarsy:8080", url).replace("/etc/alertmanager/tarsy-token", str(token_file))
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]


def added_to_receivers(config: dict[str, Any], example: dict[str, Any]) -> None:
    """The first way: the webhook in each receiver."""
    (receiver,) = example["receivers"]
    for mine in config["receivers"]:
        mine["webhook_configs"] += receiver["webhook_configs"]


def routed(config: dict[str, Any], example: dict[str, Any]) -> None:
    """The second way: a first and a last route."""
    first, last = example["route"]["routes"]
    assert example["route"]["receiver"] == config["route"]["receiver"]
    config["route"]["routes"] = [first, *config["route"]["routes"], last]
    config["receivers"] += example["receivers"]


@ALERTMANAGER
@pytest.mark.parametrize(
    ("way", "more"),
    [
        (None, set()),
        (added_to_receivers, set()),
        (routed, {("pager", "Database")}),
    ],
    ids=["without", "added", "routed"],
)
async def test_pager_gets_the_same_alerts_after_tarsy_was_added_as_documented(
    receivers: tuple[Receivers, str],
    tmp_path: Path,
    way: Callable[[dict[str, Any], dict[str, Any]], None] | None,
    more: set[tuple[str, str]],
) -> None:
    noting, url = receivers
    (tmp_path / "token").write_text(operators.TOKEN)
    config, (added, routes) = existing(url), documented(url, tmp_path / "token")
    expected = BEFORE | more
    if way is not None:
        way(config, added if way is added_to_receivers else routes)
        expected |= {("tarsy", name) for name in ALERTS}
    async with alertmanager(tmp_path, json.dumps(config)) as port, aiohttp.ClientSession() as session:
        alerts = [{"labels": {"alertname": name, **labels}} for name, labels in ALERTS.items()]
        async with session.post(f"http://127.0.0.1:{port}/api/v2/alerts", json=alerts) as response:
            assert response.status == 200, await response.text()
        await noting.all_of(expected)
    assert noting.got == expected


_FIELDS = {
    "spec": {"route", "receivers", "inhibitRules", "muteTimeIntervals"},
    "route": {"receiver", "groupBy", "groupWait", "groupInterval", "repeatInterval", "matchers", "continue", "routes"},
    "webhookConfigs": {"sendResolved", "url", "urlSecret", "httpConfig", "maxAlerts", "timeout"},
    "authorization": {"type", "credentials"},
    "credentials": {"name", "key", "optional"},
}
"""The fields of `monitoring.coreos.com/v1alpha1`. Source: the Prometheus Operator's alertmanager_config_types.go."""


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not on PATH")
def test_documented_alertmanager_config_has_known_fields_and_is_valid(tmp_path: Path) -> None:
    """As the Prometheus Operator translates it: a first-level route for the namespace, secrets in place."""
    text = (tools.ROOT / "docs" / "alertmanager.md").read_text(encoding="utf-8")
    (block,) = [
        fragment for fragment in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "AlertmanagerConfig" in fragment
    ]
    example = yaml.safe_load(block)
    spec, namespace = example["spec"], example["metadata"]["namespace"]
    (receiver,) = spec["receivers"]
    (webhook,) = receiver["webhookConfigs"]
    authorization = webhook["httpConfig"]["authorization"]
    for name, fields in (
        ("spec", spec),
        ("route", spec["route"]),
        ("webhookConfigs", webhook),
        ("authorization", authorization),
        ("credentials", authorization["credentials"]),
    ):
        assert set(fields) <= _FIELDS[name], name
    assert webhook["url"].endswith(f"/api/v1/webhooks/alertmanager/{namespace}")
    assert spec["route"]["receiver"] == receiver["name"]
    full_name = f"{namespace}/{example['metadata']['name']}/{receiver['name']}"
    first = {
        "receiver": full_name,
        "group_by": spec["route"]["groupBy"],
        "matchers": [f'namespace="{namespace}"'],
        "continue": True,
    }
    http = {"authorization": {"credentials": operators.TOKEN}}
    configuration = {
        "route": {"receiver": "null", "routes": [first]},
        "receivers": [
            {"name": "null"},
            {"name": full_name, "webhook_configs": [{"url": webhook["url"], "http_config": http}]},
        ],
    }
    file = tmp_path / "alertmanager.yml"
    file.write_text(yaml.safe_dump(configuration))
    checked = subprocess.run(["amtool", "check-config", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr

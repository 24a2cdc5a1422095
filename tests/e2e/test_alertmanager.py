"""A real Alertmanager in front of the operator, where there is one on PATH."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from support import manifests, operators
from tarsy_dev import children, model

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


@pytest.mark.skipif(PROGRAM is None, reason="prometheus-alertmanager is not on PATH")
async def test_what_a_real_alertmanager_sends_is_investigated_and_its_resolve_is_recorded(
    operator: Operator, llm: model.Server, tmp_path: Path
) -> None:
    llm.script = model.answers(model.Answer(calls=(model.Call(name="tools__lookup"),)), "root cause")
    process = await operator.start()
    await operator.apply(manifests.chain("KubePodCrashLooping"))
    (tmp_path / "alertmanager.yml").write_text(configuration(process.url))
    (port,) = children.free_ports(1)
    alertmanager = children.start(
        [
            str(PROGRAM),
            f"--config.file={tmp_path / 'alertmanager.yml'}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        name="alertmanager",
        log=tmp_path / "alertmanager.log",
        cwd=tmp_path,
    )
    try:
        await asyncio.to_thread(
            alertmanager.wait_until,
            lambda: children.http_status(HTTPConnection("127.0.0.1", port, timeout=5), "/-/ready") == 200,
            timeout=30,
            what="readiness",
        )
        starts_at = datetime.now(UTC) - timedelta(minutes=1)
        await post(port, starts_at=starts_at)
        await process.logged("new=1")
        ((_, found),) = (await operator.finished()).items()
        assert found["spec"]["alertType"] == "KubePodCrashLooping"
        assert found["spec"]["source"]["receiver"] == "tarsy"
        await post(port, starts_at=starts_at, ends_at=datetime.now(UTC) - timedelta(seconds=1))
        await process.logged("resolved=1")
        assert len(llm.requests) == 2
    finally:
        await asyncio.to_thread(alertmanager.end)

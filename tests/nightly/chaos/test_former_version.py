"""An upgrade and a rollback with the former version beside this one, under kills: no alert is lost, nothing run twice.

The former version is that of `COMMIT`, from this repository's history. A checkout without it, as a shallow clone, skips
these tests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import tarfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import manifests, repeats
from tarsy.store.base import databases, schema
from tarsy_dev import mcp_server, model, patience, tools

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = pytest.mark.timeout(850)

COMMIT = "449bef3480155786e1afc8813d1da401c47c5379"
"""The last commit of the former version, whose programs the newest schema serves."""
LEASE = timedelta(seconds=3)
KILLS = 8
WEBHOOK = "/api/v1/webhooks/alertmanager"


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the former version's package."""
    folder = tmp_path_factory.mktemp("former")
    archive = folder / "former.tar"
    command = ["git", "archive", "--output", str(archive), COMMIT, "operator/tarsy"]
    made = subprocess.run(command, cwd=tools.ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"the former version is not in this checkout's history: {made.stderr.strip()}")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "operator"


@pytest.fixture
def migrated_url(database_url: str, former: Path) -> str:
    """The URL of a database at the former version's schema."""
    assert "newest" in migrate_by(former, database_url)
    return database_url


def migrate_by(former: Path, database_url: str) -> str:
    """Run `tarsy migrate` of the former version; return its output."""
    env = {"PYTHONPATH": str(former), "DATABASE_URL": database_url}
    command = [str(Path(sys.executable).with_name("tarsy")), "migrate"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


class Installation:
    """Processes of both versions on one database, and the alerts that were brought to them."""

    def __init__(self, operator: Operator, llm: model.Server, former: Path) -> None:
        self._operator = operator
        self._llm = llm
        self._former = former
        self._alerts = itertools.count()
        self.running: dict[str, Process] = {}

    async def start(self, version: str) -> None:
        """Start, or start again, the process of "former" or "new"."""
        env = {"PYTHONPATH": str(self._former)} if version == "former" else None
        self.running[version] = await self._operator.start(lease=LEASE, env=env, as_installed=version == "former")

    async def kill(self, version: str) -> None:
        await self.running.pop(version).kill()

    async def stop(self, version: str) -> None:
        await self.running.pop(version).stop()

    async def alert(self, version: str) -> str:
        """Post a new alert; return the name of its investigation."""
        number = next(self._alerts)
        labels = {"alertname": "KubePodCrashLooping", "namespace": f"shop-{number}", "pod": f"web-{number}"}
        body = manifests.notification(labels=labels, fingerprint=f"{number:016x}")
        status, receipt = await self.running[version].request("POST", WEBHOOK, body=body)
        assert (status, receipt["counts"]["created"]) == (200, 1), receipt
        (name,) = await self.names(f"fingerprint = '{number:016x}'")
        return name

    async def names(self, condition: str = "true") -> list[str]:
        rows = await repeats.rows(self._operator, f"SELECT name FROM investigations WHERE {condition}")  # noqa: S608
        return [row["name"] for row in rows]

    async def status(self, name: str, *, waiting_for: str) -> dict[str, Any]:
        """Wait until the status of an investigation says what it waits for; return it."""
        async with patience.limit():
            while True:
                manifest = json.loads(await self._operator.kubectl("get", "inv", name, "-o", "json"))
                status: dict[str, Any] = manifest.get("status", {})  # the one that was killed may not have written it
                if f"waits for {waiting_for}" in json.dumps(status.get("conditions")):
                    return status

    async def await_request(self, name: str) -> None:
        """Wait until a model was asked about an investigation."""
        wanted = f"{self._operator.namespace}/{name}"
        await self._llm.wait_for(lambda requests: any(request.key.investigation == wanted for request in requests))


@pytest.fixture
def installation(operator: Operator, llm: model.Server, former: Path) -> Installation:
    llm.script = repeats.investigate
    return Installation(operator, llm, former)


async def migrate(database_url: str) -> None:
    database = databases.Database(database_url)
    try:
        assert await schema.migrate(database) == schema.NEWEST
    finally:
        await database.close()


async def test_rolling_upgrade_under_kills_loses_no_alert_and_runs_none_twice(
    installation: Installation, operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    await operator.apply(repeats.CHAIN)
    await installation.start("former")
    await installation.await_request(await installation.alert("former"))
    await migrate(operator.database_url)  # in the middle of an investigation
    await installation.start("new")
    chance = random.Random(20261127)  # noqa: S311 - the same kills each time
    for number in range(KILLS):
        name = await installation.alert(("former", "new")[number % 2])
        await installation.await_request(name)
        await asyncio.sleep(chance.uniform(0, 1.0))  # not for the test's sake: where in the run the kill falls
        victim = chance.choice(("former", "new"))
        await installation.kill(victim)
        await installation.start(victim)
    await installation.stop("former")
    names = await installation.names()
    assert len(names) == KILLS + 1
    objects = await operator.finished(*names)
    assert set(objects) == set(names)
    await repeats.check(operator, llm, toolbox, names=names)


async def test_rollback_goes_on_with_new_alerts_and_leaves_what_it_cannot_read_to_the_newer_version(
    installation: Installation,
    operator: Operator,
    llm: model.Server,
    toolbox: mcp_server.Server,
    former: Path,
) -> None:
    await operator.apply(repeats.CHAIN)
    await migrate(operator.database_url)
    await installation.start("new")
    begun = await installation.alert("new")
    await installation.await_request(begun)
    await installation.kill("new")
    assert "was changed" in migrate_by(former, operator.database_url)
    await installation.start("former")
    later = await installation.alert("former")
    assert (await operator.finished(later))[later]["status"]["phase"] == "Completed"
    status = await installation.status(begun, waiting_for="a version of TARSy that can read its log")
    assert status["phase"] == "Suspended"
    await installation.stop("former")
    await installation.start("new")
    await operator.finished(begun, later)
    await repeats.check(operator, llm, toolbox, names=[begun, later])

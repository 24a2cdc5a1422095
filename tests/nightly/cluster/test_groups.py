"""Groups of alerts, from the webhook to the store: alerts of one cause are one investigation and one object."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from support import apis, command_line, queue
from support.grouped_alerts import alert, grouped, listed, notify, objects, read, replica, split
from tarsy import failpoints
from tarsy.agent import spending
from tarsy.config.model import budgets
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.transcript import ports, record
from tarsy_dev.controlplane import Administrator

BY_NODE = {"by": "Labels", "labels": ["node"]}


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    async with replica(cluster, database) as session:
        yield session


async def test_a_severer_alert_lets_a_waiting_investigation_be_claimed_earlier_and_never_later(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)

    async def priority() -> int:
        ((current,),) = await queue.rows(database, "SELECT priority FROM work")
        assert isinstance(current, int)
        return current

    await notify(api, alert(1, node="n", severity="warning"))
    for number, severity, expected in ((2, "warning", 0), (3, "error", 2), (4, "critical", 3), (5, "info", 3)):
        await notify(api, *(alert(10 * number + its, node="n", severity=severity) for its in range(3)))
        assert await priority() == expected, severity
    await queue.execute(database, "UPDATE work SET priority = 50")
    await notify(api, alert(6, node="n", severity="critical"))
    assert await priority() == 50
    await queue.execute(database, "UPDATE work SET priority = 0")
    await queue.claimed(database)
    await notify(api, alert(7, node="n", severity="critical"))
    assert await priority() == 0, "it does not wait any more"


@pytest.mark.parametrize(
    ("reason", "severity", "is_woken"),
    [("ApprovalPending", "warning", True), ("BudgetSpent", "warning", False), ("BudgetSpent", "critical", True)],
)
async def test_an_alert_that_joins_wakes_a_parked_run_and_of_a_budget_only_if_it_is_more_severe(
    api: aiohttp.ClientSession,
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    *,
    reason: str,
    severity: str,
    is_woken: bool,
) -> None:
    grouped(plane, cluster, BY_NODE)
    await notify(api, alert(1, node="n", severity="warning"))
    until = datetime.now(UTC) + timedelta(hours=1)
    claim = await queue.claimed(database)
    await work.release(database, claim, build=record.build(), wait=ports.Wait(reason=reason, message="m", until=until))
    await notify(api, alert(2, node="n", severity=severity))
    await work.sweep(database)
    assert await queue.rows(database, "SELECT state FROM work") == [("queued" if is_woken else "parked",)]


async def test_an_alert_that_joins_with_the_severity_of_a_reserve_opens_it(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    """Whichever alert was first, the next request may spend it, and another investigation's may not."""
    grouped(plane, cluster, BY_NODE)
    reserve = budgets.Reserve(severity="critical", share=40)
    day = budgets.Budget(scope="all", per="day", model_calls=5, at_limit="Wait", reserve=reserve)

    async def asks(journal: ports.Journal) -> ports.Charged:
        charges = budgets.charges(
            {"day": day}, spending.subject(journal.record.snapshot), provider="p", settings=None, request_bytes=1
        )
        return await journal.reserve(charges)

    (of_n,) = await notify(api, alert(1, node="n", severity="warning"))
    await notify(api, alert(2, node="m", severity="warning"))
    first, other = [await queue.opened(database, await queue.claimed(database)) for _ in range(2)]
    for asking in (first, first, other):
        assert not (await asks(asking)).exceeded
    assert [list((await asks(asking)).exceeded) for asking in (first, other)] == [["day"], ["day"]]
    node = "n" if first.record.snapshot.id == of_n["id"] else "m"
    await notify(api, alert(3, node=node, severity="warning"))
    assert (await asks(first)).exceeded
    await notify(api, alert(4, node=node, severity="critical"))
    assert not (await asks(first)).exceeded
    assert (await asks(other)).exceeded, "the reserve is not open to all"
    assert not (await asks(first)).exceeded
    refused = await asks(first)
    assert (list(refused.exceeded), list(refused.too_small)) == (["day"], []), "the limit is the limit"


async def test_split_command_takes_an_alert_out_of_its_group_or_reports_why_not(
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    programs: dict[str, Path],
    editor: str,
) -> None:
    grouped(plane, cluster, BY_NODE)
    webhook = "the webhook's token"
    parts = apis.parts(cluster=cluster, database=database, token=webhook)
    async with apis.listening(parts) as url:
        async with aiohttp.ClientSession(url, headers=apis.bearer(webhook)) as sender:
            first, wrong = await notify(sender, alert(1, node="n"), alert(2, node="n"))
            (lone,) = await notify(sender, alert(3))
        assert first["id"] == wrong["id"]
        command = command_line.CommandLine(
            kubectl=programs["kubectl"],
            kubeconfig=plane.kubeconfig(namespace=cluster.served.own),
            env={"TARSY_API": url, "TARSY_TOKEN": editor},
        )
        header, *listed = (await command.run("list", "-o", "wide")).out.splitlines()
        column = slice(header.index("ALERTS"), header.index("STAGE"))
        assert {line.split()[0]: line[column].strip() for line in listed} == {first["name"]: "2", lone["name"]: ""}
        ended = await command.run("split", first["name"], f"{2:016x}")
        assert ended.code == 0, ended.err
        kind, _, rest = ended.out.partition("/")
        name, _, word = rest.strip().partition(" ")
        assert (kind, word) == ("alertinvestigation.tarsy.dev", "created")
        again = await command.run("split", first["name"], f"{2:016x}", "-o", "json")
        document = json.loads(again.out)
        assert (again.code, document["name"], document["split_from"]["id"]) == (0, name, first["id"])
        for fingerprint, reason in ((f"{1:016x}", "was made for this alert"), (f"{7:016x}", "no alert of it has")):
            refused = await command.run("split", first["name"], fingerprint)
            assert (refused.code != 0, refused.out, reason in refused.err) == (True, "", True), refused
    assert objects(plane, cluster) == 3


@pytest.mark.parametrize("point", ["intake.create.before", "intake.create.after"])
async def test_split_interrupted_by_a_crash_is_finished_by_the_same_request(
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    grouped(plane, cluster, BY_NODE)
    async with replica(cluster, database) as first_replica, replica(cluster, database) as other:
        (first,) = await notify(first_replica, alert(1, node="n"))
        await notify(first_replica, alert(2, node="n"))
        with monkeypatch.context() as patched:
            patched.setattr(failpoints, "_points", failpoints.parse(f"{point}=raise"))
            patched.setattr(failpoints, "_hits", Counter())
            assert (await split(first_replica, first["id"], 2))[0] == 500
        assert (await read(first_replica, first["id"]))["alert_group"]["total"] == 2, (
            "it belongs to its group until then"
        )
        begun = await asyncio.gather(*(split(api, first["id"], 2) for api in (first_replica, other)))
        ids = {answer["id"] for status, answer in begun if status == 202}
        assert len(ids) == 1, begun
        assert objects(plane, cluster) == 2
        assert (await read(first_replica, ids.pop()))["split_from"]["id"] == first["id"]


async def test_the_alerts_of_a_group_are_listed_in_pages_as_they_came(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, *(alert(number, node="n", pod="<script>web") for number in range(2, 26)))
    fingerprints: list[str] = []
    after, more = -1, True
    while more:
        page = await listed(api, first["id"], f"limit=10&after={after}")
        assert len(page["items"]) <= 10
        fingerprints += [listed_alert["fingerprint"] for listed_alert in page["items"]]
        after, more = page["last"], page["more"]
    assert fingerprints[0] == f"{1:016x}"
    assert sorted(fingerprints) == [f"{number:016x}" for number in range(1, 26)]
    async with api.get(f"/investigations/{first['id']}/alerts") as response:
        text = await response.text()
    assert text.count("data-split=") == 24, "each but the one that the investigation was made for"
    assert "<script>web" not in text
    async with api.get(f"/api/v1/investigations/{first['id']}/export") as response:
        assert [listed_alert["fingerprint"] for listed_alert in (await response.json())["alerts"]] == fingerprints
    async with api.get(f"/api/v1/investigations/{first['id']}/export?format=markdown") as response:
        document = await response.text()
    assert document.count("`alertname=kubernetes, pod=<script>web`") == document.count("pod=") == 24, "as code"

"""Groups of alerts, from the webhook to the store: alerts of one cause are one investigation and one object."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import aiohttp
import pytest
import sqlalchemy
from support import queue
from support.grouped_alerts import TYPE, alert, end, grouped, notify, objects, read, replica, split
from tarsy import failpoints
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.operations import deliveries
from tarsy_dev.controlplane import Administrator

BY_NODE = {"by": "Labels", "labels": ["node"]}


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    async with replica(cluster, database) as session:
        yield session


async def test_alerts_with_equal_labels_join_one_investigation_and_are_found_by_search(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    receipts = await notify(api, *(alert(number, node=f"n{number % 2}") for number in range(6)), alert(9))
    assert Counter(receipt["outcome"] for receipt in receipts) == {"created": 3, "joined": 4}
    assert {receipt["reason"] for receipt in receipts[:6]} == {""}
    assert receipts[6]["reason"] == "investigated alone: it lacks labels by which its chain groups: node"
    await notify(api, alert(7, node="n1"), group_key="other")
    digests = await deliveries.group_digests(database, UUID(receipts[1]["id"]), limit=9)
    assert len(digests) == 2, "its alerts came in notifications of two groups"
    assert len({receipt["id"] for receipt in receipts}) == 3, "an alert that lacks the label is investigated alone"
    assert objects(plane, cluster) == 3
    again = await notify(api, *(alert(number, node=f"n{number % 2}") for number in range(6)))
    assert {receipt["outcome"] for receipt in again} == {"repeated"}
    assert [receipt["id"] for receipt in again] == [receipt["id"] for receipt in receipts[:6]]
    (late,) = await notify(api, alert(20, name="Other", node="n1"))
    assert (late["outcome"], late["id"]) == ("joined", receipts[1]["id"])
    for number, its in ((2, receipts[2]), (20, late)):
        for query in (f"q=tale{number}", f"fingerprint={number:016x}"):
            async with api.get(f"/api/v1/investigations?{query}") as response:
                assert [listed["id"] for listed in (await response.json())["items"]] == [its["id"]], query


async def test_notifications_of_one_group_join_one_investigation_with_group_key_digest(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, {"by": "Notification"})
    first = await notify(api, alert(1), alert(2), group_key="a")
    second = await notify(api, alert(3), group_key="a")
    other = await notify(api, alert(4), group_key="b")
    ids = [receipt["id"] for receipt in (*first, *second, *other)]
    for identity, group_key in ((ids[0], "a"), (ids[3], "b")):
        digest = hashlib.sha256(group_key.encode()).hexdigest()
        assert await deliveries.group_digests(database, UUID(identity), limit=9) == [digest]
    assert len({*ids[:3]}) == 1
    assert ids[3] != ids[0]


@pytest.mark.parametrize("point", ["intake.create.before", "intake.create.after"])
async def test_group_is_finished_by_another_process_after_a_death_around_object_creation(
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    grouped(plane, cluster, BY_NODE)
    async with replica(cluster, database) as first_replica:
        with monkeypatch.context() as patched:
            patched.setattr(failpoints, "_points", failpoints.parse(f"{point}=raise"))
            patched.setattr(failpoints, "_hits", Counter())
            await notify(first_replica, alert(1, node="n"))
    assert await queue.rows(database, "SELECT count(*) FROM identities") == [(0,)]
    async with replica(cluster, database) as other:
        receipts = await notify(other, alert(2, node="n"), alert(1, node="n"))
    assert len({receipt["id"] for receipt in receipts}) == 1
    assert objects(plane, cluster) == 1
    assert await queue.rows(database, "SELECT count(*) FROM identities") == [(2,)]


async def test_group_with_a_result_counts_only_alerts_its_agents_got_within_the_window(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE | {"windowSeconds": 600})
    (first,) = await notify(api, alert(1, node="n", severity="warning"))
    await end(database)
    for number, severity in ((2, "warning"), (3, "INFO"), (4, "")):
        (same,) = await notify(api, alert(number, node="n", severity=severity))
        assert (same["outcome"], same["id"]) == ("joined", first["id"]), severity
    last = first
    for number, name, severity, ago in (
        (5, TYPE, "critical", 0),
        (6, "Other", "critical", 0),
        (7, "Other", "sev1", 0),
        (8, "Other", "sev1", 601),
    ):
        await end(database, ago=ago)
        (other,) = await notify(api, alert(number, name=name, node="n", severity=severity))
        assert other["outcome"] == "created", (name, severity, ago)
        investigation = await read(api, other["id"])
        assert investigation["previous"]["id"] == last["id"], "linked to the one that it follows"
        last = other


@pytest.mark.parametrize("ending", ["Completed", "Failed"])
async def test_alerts_that_come_while_their_investigation_ends_join_it_as_those_that_come_after(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database, ending: str
) -> None:
    """They wait for the lock under which it ends, and only the row that they lock is read again after that."""
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("UPDATE work SET state = 'ended'"))
        values = {"ending": ending}
        await connection.execute(
            sqlalchemy.text("UPDATE investigations SET ended_at = clock_timestamp(), ending = :ending"), values
        )
        coming = asyncio.create_task(notify(api, *(alert(number, node="n") for number in range(2, 5))))
        await queue.blocked(database)
    assert [(receipt["outcome"], receipt["id"]) for receipt in await coming] == [("joined", first["id"])] * 3
    assert await queue.rows(database, "SELECT count(*) FROM identities") == [(4,)]
    assert objects(plane, cluster) == 1


async def test_failed_group_is_investigated_again_as_one_group_after_the_cool_down(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    first, second = await notify(api, alert(1, node="n"), alert(2, node="n"))
    await end(database, "Failed")
    receipts = await notify(api, alert(1, node="n"), alert(2, node="n"), alert(3, node="n"))
    assert [receipt["outcome"] for receipt in receipts] == ["repeated", "repeated", "joined"]
    await end(database, "Failed", ago=301)
    receipts = await notify(api, alert(3, node="n"), alert(2, node="n"), alert(1, node="n"))
    assert Counter(receipt["outcome"] for receipt in receipts) == {"created": 1, "joined": 2}
    assert len({receipt["id"] for receipt in receipts} | {first["id"], second["id"]}) == 2
    summary = await queue.summary(database, UUID(receipts[0]["id"]))
    assert summary.previous is not None
    assert str(summary.previous.id) == first["id"]


async def test_an_investigation_is_cancelled_once_all_its_alerts_are_resolved(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE, onResolved="Cancel")
    first, *_ = await notify(api, alert(1, node="n"), alert(2, node="n"))
    identity = UUID(first["id"])
    await notify(api, alert(1, node="n", status="resolved"))
    assert (await queue.summary(database, identity)).alert_status == "firing"
    await notify(api, alert(1, node="n", minute=5))  # it fires again, and is counted
    await notify(api, alert(2, node="n", status="resolved"))
    assert (await queue.summary(database, identity)).ended_at is None
    await notify(api, alert(1, node="n", minute=5, status="resolved"))
    summary = await queue.summary(database, identity)
    assert (summary.alert_status, summary.ending, summary.reason) == ("resolved", "Cancelled", "AlertResolved")


async def test_alert_split_from_its_group_gets_own_investigation_and_both_are_linked(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    wrong = alert(3, node="n", severity="critical", team="a", password="hunter22")
    wrong["annotations"]["description"] = f"the key {secret} is refused"
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, alert(2, node="n"), wrong)
    status, begun = await split(api, first["id"], 3)
    assert (status, begun["split_from"]["id"]) == (202, first["id"])
    assert (await split(api, first["id"], 3)) == (202, begun), "a repeat begins nothing"
    assert objects(plane, cluster) == 2
    new, rest = await read(api, begun["id"]), await read(api, first["id"])
    assert new["split_from"] == {"id": first["id"], "name": rest["name"]}
    assert rest["split_into"] == [{"id": begun["id"], "name": begun["name"]}]
    assert (new["fingerprint"], new["severity"], new["alert_summary"]) == (f"{3:016x}", "critical", "tale3")
    read_by_agents = json.loads(new["alert_data"])
    assert {**read_by_agents["labels"], "password": ""} == {**wrong["labels"], "password": ""}
    assert "hunter22" not in new["alert_data"]
    assert secret not in new["alert_data"]
    assert rest["alert_group"]["total"] == 2
    assert (rest["alert_count"], new["alert_count"]) == (2, None)
    ((action, detail),) = await queue.rows(
        database, "SELECT action, detail FROM audit WHERE investigation = :id", id=UUID(begun["id"])
    )
    assert (action, detail) == ("split", {"split_from": first["id"]})
    (again,) = await notify(api, wrong)
    assert (again["outcome"], again["id"]) == ("repeated", begun["id"]), "the alert stands there now"

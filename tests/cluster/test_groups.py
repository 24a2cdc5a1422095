"""Groups of alerts, from the webhook to the store: alerts of one cause are one investigation and one object."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
import sqlalchemy
from support import apis, command_line, manifests, queue, stories
from tarsy import failpoints
from tarsy.agent import spending
from tarsy.api import app
from tarsy.config.model import budgets
from tarsy.kube import client
from tarsy.masking import masker
from tarsy.resources import chains
from tarsy.store.base import databases
from tarsy.store.intake import receipts
from tarsy.store.operations import deliveries
from tarsy.store.queue import work
from tarsy.transcript import entries, messages, ports, record
from tarsy.web import site
from tarsy_dev.controlplane import ControlPlane

JSON = {"Content-Type": "application/json"}
START = datetime(2026, 11, 21, 20, tzinfo=UTC)
TYPE = "kubernetes"
BY_NODE = {"by": "Labels", "labels": ["node"]}


@contextlib.asynccontextmanager
async def replica(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    mask = masker.Masker(groups=["security"]).text
    parts = apis.parts(cluster=cluster, database=database, mask=mask)
    application = app.build(parts)
    site.add(application)
    async with apis.served(parts, application=application, headers=JSON) as session:
        yield session


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    async with replica(cluster, database) as session:
        yield session


def grouped(plane: ControlPlane, cluster: client.Cluster, grouping: dict[str, Any], **spec: Any) -> None:
    plane.create(manifests.chain(TYPE, "Other", grouping=grouping, **spec), namespace=cluster.served.own)


def alert(number: int, *, name: str = TYPE, status: str = "firing", minute: int = 0, **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, **labels},
        "annotations": {"summary": f"tale{number}"},
        "startsAt": (START + timedelta(minutes=minute)).isoformat(),
        "fingerprint": f"{number:016x}",
    }


async def notify(
    api: aiohttp.ClientSession, *alerts: dict[str, Any], group_key: str = "{}:{}", status: int = 200
) -> list[dict[str, Any]]:
    """Send a notification; the outcomes of its alerts."""
    body = json.loads(manifests.notification()) | {"alerts": alerts, "groupKey": group_key}
    async with api.post("/api/v1/webhooks/alertmanager", data=json.dumps(body)) as response:
        receipt = await response.json()
        assert response.status == status, receipt
        return list(receipt.get("alerts", ()))


def objects(plane: ControlPlane, cluster: client.Cluster) -> int:
    listed = plane.kubectl("get", "inv", "-o", "name", namespace=cluster.served.own)
    return len(listed.split())


async def end(database: databases.Database, ending: str = "Completed", ago: int = 0) -> None:
    await queue.execute(database, "UPDATE work SET state = 'ended' WHERE state <> 'ended'")
    await queue.execute(
        database,
        "UPDATE investigations SET ended_at = clock_timestamp() - make_interval(secs => :ago), ending = :ending"
        " WHERE ended_at IS NULL OR :ago > 0",
        ending=ending,
        ago=ago,
    )


async def test_alerts_with_equal_labels_are_one_investigation_and_are_found_by_search(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    told = await notify(api, *(alert(number, node=f"n{number % 2}") for number in range(6)), alert(9))
    assert Counter(one["outcome"] for one in told) == {"created": 3, "joined": 4}
    assert {one["reason"] for one in told[:6]} == {""}
    assert told[6]["reason"] == "investigated alone: it lacks labels by which its chain groups: node"
    await notify(api, alert(7, node="n1"), group_key="other")
    digests = await deliveries.group_digests(database, UUID(told[1]["id"]), limit=9)
    assert len(digests) == 2, "its alerts came in notifications of two groups"
    assert len({one["id"] for one in told}) == 3, "an alert that lacks the label is investigated alone"
    assert objects(plane, cluster) == 3
    again = await notify(api, *(alert(number, node=f"n{number % 2}") for number in range(6)))
    assert {one["outcome"] for one in again} == {"repeated"}
    assert [one["id"] for one in again] == [one["id"] for one in told[:6]]
    (late,) = await notify(api, alert(20, name="Other", node="n1"))
    assert (late["outcome"], late["id"]) == ("joined", told[1]["id"])
    for number, its in ((2, told[2]), (20, late)):
        for query in (f"q=tale{number}", f"fingerprint={number:016x}"):
            async with api.get(f"/api/v1/investigations?{query}") as response:
                assert [item["id"] for item in (await response.json())["items"]] == [its["id"]], query


async def test_notifications_of_one_group_are_one_investigation_with_the_digest_of_its_key(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, {"by": "Notification"})
    first = await notify(api, alert(1), alert(2), group_key="a")
    second = await notify(api, alert(3), group_key="a")
    other = await notify(api, alert(4), group_key="b")
    ids = [one["id"] for one in (*first, *second, *other)]
    for identity, group_key in ((ids[0], "a"), (ids[3], "b")):
        digest = hashlib.sha256(group_key.encode()).hexdigest()
        assert await deliveries.group_digests(database, UUID(identity), limit=9) == [digest]
    assert len({*ids[:3]}) == 1
    assert ids[3] != ids[0]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["intake.create.before", "intake.create.after"])
async def test_a_group_whose_process_died_before_or_after_its_object_is_finished_by_another(
    plane: ControlPlane,
    cluster: client.Cluster,
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    grouped(plane, cluster, BY_NODE)
    async with replica(cluster, database) as one:
        with monkeypatch.context() as patched:
            patched.setattr(failpoints, "_points", failpoints.parse(f"{point}=raise"))
            patched.setattr(failpoints, "_hits", Counter())
            await notify(one, alert(1, node="n"))
    assert await queue.rows(database, "SELECT count(*) FROM identities") == [(0,)]
    async with replica(cluster, database) as other:
        told = await notify(other, alert(2, node="n"), alert(1, node="n"))
    assert len({one["id"] for one in told}) == 1
    assert objects(plane, cluster) == 1
    assert await queue.rows(database, "SELECT count(*) FROM identities") == [(2,)]


async def test_after_a_result_only_what_its_agents_were_told_of_is_counted_and_only_within_the_window(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
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
        found = await read(api, other["id"])
        assert found["previous"]["id"] == last["id"], "linked to the one that it follows"
        last = other


@pytest.mark.parametrize("ending", ["Completed", "Failed"])
async def test_alerts_that_come_while_their_investigation_ends_join_it_as_those_that_come_after(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database, ending: str
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
    assert [(one["outcome"], one["id"]) for one in await coming] == [("joined", first["id"])] * 3
    assert await queue.rows(database, "SELECT count(*) FROM identities") == [(4,)]
    assert objects(plane, cluster) == 1


async def test_after_a_result_an_alert_of_another_subject_in_a_notification_begins_anew(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, {"by": "Notification"})
    (first,) = await notify(api, alert(1, namespace="shop", pod="web-0"))
    await end(database)
    (same,) = await notify(api, alert(2, namespace="shop", pod="web-0", container="other"))
    assert (same["outcome"], same["id"]) == ("joined", first["id"])
    (other,) = await notify(api, alert(3, namespace="shop", pod="web-1"))
    assert other["outcome"] == "created"


async def test_agents_read_the_result_of_the_investigation_that_theirs_follows(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n", severity="warning"))
    await end(database)
    await queue.execute(database, "UPDATE runs SET summary = 'the disk is full'")
    (higher,) = await notify(api, alert(2, node="n", severity="critical"))
    journal = await queue.opened(database, await queue.claimed(database))
    former = journal.record.snapshot.former
    assert (journal.record.snapshot.id, former and former.summary) == (higher["id"], "the disk is full")
    await queue.execute(database, "UPDATE investigations SET deleted_at = now() WHERE id = :id", id=UUID(first["id"]))
    await queue.let_leases_pass(database)
    later = await queue.opened(database, await queue.claimed(database))
    assert later.record.snapshot.former is None, "it was deleted"


async def test_a_severer_alert_lets_a_waiting_investigation_be_claimed_earlier_and_never_later(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)

    async def priority() -> int:
        ((found,),) = await queue.rows(database, "SELECT priority FROM work")
        assert isinstance(found, int)
        return found

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
    plane: ControlPlane,
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
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
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


async def test_a_failed_group_comes_again_as_one_after_the_cool_down(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    first, second = await notify(api, alert(1, node="n"), alert(2, node="n"))
    await end(database, "Failed")
    told = await notify(api, alert(1, node="n"), alert(2, node="n"), alert(3, node="n"))
    assert [one["outcome"] for one in told] == ["repeated", "repeated", "joined"]
    await end(database, "Failed", ago=301)
    told = await notify(api, alert(3, node="n"), alert(2, node="n"), alert(1, node="n"))
    assert Counter(one["outcome"] for one in told) == {"created": 1, "joined": 2}
    assert len({one["id"] for one in told} | {first["id"], second["id"]}) == 2
    found = await queue.summary(database, UUID(told[0]["id"]))
    assert found.previous is not None
    assert str(found.previous.id) == first["id"]


async def test_a_failed_group_comes_again_with_all_alerts_that_still_fire(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, *(alert(number, node="n") for number in range(2, 6)))
    await notify(api, alert(2, node="n", status="resolved"))
    await end(database, "Failed", ago=301)
    (again,) = await notify(api, alert(3, node="n"))
    assert again["outcome"] == "created"
    assert [item["fingerprint"] for item in (await listed(api, again["id"]))["items"]] == [
        f"{number:016x}" for number in (3, 1, 4, 5)
    ]
    assert [item["fingerprint"] for item in (await listed(api, first["id"]))["items"]] == [f"{2:016x}"]
    async with api.get("/api/v1/investigations?q=tale5") as response:
        assert again["id"] in {item["id"] for item in (await response.json())["items"]}
    journal = await queue.opened(database, await queue.claimed(database))
    joined = await journal.joined_alerts(0)
    assert (journal.joined, joined and joined.total) == (3, 3), "its agents are told of them"


async def age(database: databases.Database, **days: int) -> None:
    """Move all times of what intake remembers into the past."""
    for statement in (
        "UPDATE receipts SET created_at = created_at - make_interval(days => :days)",
        "UPDATE identities SET first_seen = first_seen - make_interval(days => :days)",
        "UPDATE investigations SET admitted_at = admitted_at - make_interval(days => :days)",
        "UPDATE investigations SET ended_at = ended_at - make_interval(days => :days)",
    ):
        await queue.execute(database, statement, **days)


async def test_a_group_that_stays_open_longer_than_the_dedup_window_stays_one(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE | {"windowSeconds": chains.GROUP_WINDOW_MAX})
    first, _ = await notify(api, alert(1, node="n"), alert(2, node="n"))
    await age(database, days=30)
    await receipts.drop_expired(database, window=timedelta(days=7))
    told = await notify(api, *(alert(number, node="n") for number in (1, 2, 3)))
    assert [one["outcome"] for one in told] == ["repeated", "repeated", "joined"]
    assert {one["id"] for one in told} == {first["id"]}
    await end(database)
    await age(database, days=6)
    await receipts.drop_expired(database, window=timedelta(hours=1))
    (late,) = await notify(api, alert(4, node="n"))
    assert (late["outcome"], late["id"]) == ("joined", first["id"]), "the chain's window is longer than the other"
    await age(database, days=2)
    await receipts.drop_expired(database, window=timedelta(days=7))
    assert await queue.rows(database, "SELECT count(*) FROM receipts") == [(0,)]
    (later,) = await notify(api, alert(5, node="n"))
    assert later["outcome"] == "created"


async def test_an_investigation_is_cancelled_once_all_its_alerts_are_resolved(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
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
    found = await queue.summary(database, identity)
    assert (found.alert_status, found.ending, found.reason) == ("resolved", "Cancelled", "AlertResolved")


async def test_alerts_that_resolve_at_once_cancel_their_investigation(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE, onResolved="Cancel")
    first, *_ = await notify(api, *(alert(number, node="n") for number in range(8)))
    await notify(api, *(alert(number, node="n", status="resolved") for number in range(8)))
    assert (await queue.summary(database, UUID(first["id"]))).ending == "Cancelled"


async def test_a_group_whose_object_was_deleted_begins_anew(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    await work.cancel(database, UUID(first["id"]), why="deleted")
    (again,) = await notify(api, alert(2, node="n"))
    assert (again["outcome"], again["id"] == first["id"]) == ("created", False)


async def test_a_running_investigation_knows_what_joined_it_by_its_commits(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    journal = await queue.opened(database, await queue.claimed(database))
    assert journal.joined == 0
    assert await journal.joined_alerts(0) is None
    await notify(api, *(alert(number, name="Other", node="n", severity="critical") for number in range(2, 30)))
    await journal.commit(stories.stage_started(), stories.started())
    assert journal.joined == 28
    joined = await journal.joined_alerts(0)
    assert joined is not None
    assert (joined.number, joined.total, joined.types, len(joined.named)) == (28, 28, {"Other": 28}, 20)
    assert joined.named[0] == ports.JoinedAlert(
        alert_type="Other", severity="critical", labels={"alertname": "Other", "node": "n"}
    )
    message = messages.Message(role="user", text="28 more alerts")
    told = entries.AlertJoined(execution="one", number=28, alerts=28, clock=0.0, messages=(message,))
    await journal.commit(told)
    await notify(api, *(alert(number, node="n") for number in (29, 30)))
    await queue.let_leases_pass(database)
    taken_over = await queue.opened(database, await queue.claimed(database))
    assert (taken_over.joined, taken_over.record.executions["one"].told) == (29, told)
    again = await taken_over.joined_alerts(28)
    assert again is not None
    assert (again.total, again.number) == (1, 29), "29 had joined before"
    shown = await queue.rows(database, "SELECT text FROM messages WHERE text = '28 more alerts'")
    assert len(shown) == 1
    await end(database)
    (counted,) = await notify(api, alert(31, name="Other", node="n", severity="critical"))
    assert (counted["outcome"], counted["id"]) == ("joined", first["id"]), "its agents were told of the type"


async def split(
    api: aiohttp.ClientSession, investigation: str, fingerprint: int | str, **headers: str
) -> tuple[int, dict[str, Any]]:
    its = fingerprint if isinstance(fingerprint, str) else f"{fingerprint:016x}"
    path = f"/api/v1/investigations/{investigation}/alerts/{its}/investigate"
    async with api.post(path, data="{}", headers=headers) as response:
        return response.status, await response.json()


async def listed(api: aiohttp.ClientSession, investigation: str, query: str = "") -> dict[str, Any]:
    async with api.get(f"/api/v1/investigations/{investigation}/alerts?{query}") as response:
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return answer


async def read(api: aiohttp.ClientSession, investigation: str) -> dict[str, Any]:
    async with api.get(f"/api/v1/investigations/{investigation}") as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def test_an_alert_taken_out_of_its_group_has_one_investigation_of_its_own_and_both_say_so(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
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


@pytest.mark.slow
async def test_the_command_takes_an_alert_out_of_its_group_or_says_why_it_cannot(
    plane: ControlPlane,
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


async def test_an_alert_that_cannot_be_taken_out_is_refused_with_the_remedy(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, alert(2, node="n"))
    status, problem = await split(api, first["id"], 1)
    assert (status, "made for this alert: take the other ones out" in problem["detail"]) == (409, True)
    status, problem = await split(api, first["id"], 7)
    assert (status, "no alert of it has fingerprint" in problem["detail"]) == (404, True)
    assert (await split(api, first["id"], "..%2F1"))[0] in (404, 422)
    plane.kubectl("delete", "chain", "--all", namespace=cluster.served.own)
    status, problem = await split(api, first["id"], 2)
    assert (status, "No chain found" in problem["detail"]) == (409, True)
    assert objects(plane, cluster) == 1


async def test_the_rest_of_a_group_counts_as_resolved_once_its_only_firing_alert_is_taken_out(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE, onResolved="Cancel")
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, alert(2, node="n"), alert(3, node="n"))
    await notify(api, alert(3, node="n", status="resolved"), alert(1, node="n", status="resolved"))
    _, resolved = await split(api, first["id"], 3)
    assert (await read(api, resolved["id"]))["alert_status"] == "resolved"
    assert (await queue.summary(database, UUID(first["id"]))).ended_at is None
    _, begun = await split(api, first["id"], 2)
    assert (await queue.summary(database, UUID(first["id"]))).reason == "AlertResolved"
    assert (await read(api, begun["id"]))["alert_status"] == "firing"


async def test_a_split_that_ended_before_it_was_complete_is_completed_by_its_repeat(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE, onResolved="Cancel")
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, alert(2, node="n"))
    await notify(api, alert(2, node="n", status="resolved"))
    later = alert(2, node="n") | {"startsAt": (START + timedelta(hours=1)).isoformat()}
    await notify(api, later)
    await notify(api, alert(1, node="n", status="resolved"))
    _, begun = await split(api, first["id"], 2)
    # As the admission has left them: the newest episode has moved, the earlier one has not.
    back = "UPDATE identities SET investigation = :id WHERE fingerprint = :fingerprint AND status = 'resolved'"
    await queue.execute(database, back, id=UUID(first["id"]), fingerprint=f"{2:016x}")
    await queue.execute(
        database, "UPDATE investigations SET alert_status = 'firing' WHERE id = :id", id=UUID(first["id"])
    )
    assert await split(api, first["id"], 2) == (202, begun)
    assert objects(plane, cluster) == 2
    assert (await read(api, first["id"]))["alert_status"] == "resolved"
    assert (await read(api, begun["id"]))["alert_status"] == "firing"
    assert [
        row[0]
        for row in await queue.rows(
            database, "SELECT DISTINCT fingerprint FROM identities WHERE investigation = :id", id=UUID(first["id"])
        )
    ] == [f"{1:016x}"]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["intake.create.before", "intake.create.after"])
async def test_a_split_whose_process_died_is_finished_by_the_same_request(
    plane: ControlPlane,
    cluster: client.Cluster,
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    grouped(plane, cluster, BY_NODE)
    async with replica(cluster, database) as one, replica(cluster, database) as other:
        (first,) = await notify(one, alert(1, node="n"))
        await notify(one, alert(2, node="n"))
        with monkeypatch.context() as patched:
            patched.setattr(failpoints, "_points", failpoints.parse(f"{point}=raise"))
            patched.setattr(failpoints, "_hits", Counter())
            assert (await split(one, first["id"], 2))[0] == 500
        assert (await read(one, first["id"]))["alert_group"]["total"] == 2, "it belongs to its group until then"
        begun = await asyncio.gather(*(split(api, first["id"], 2) for api in (one, other)))
        ids = {answer["id"] for status, answer in begun if status == 202}
        assert len(ids) == 1, begun
        assert objects(plane, cluster) == 2
        assert (await read(one, ids.pop()))["split_from"]["id"] == first["id"]


async def test_list_counts_the_alerts_of_groups_by_their_index_and_reads_nothing_for_others(
    api: aiohttp.ClientSession,
    plane: ControlPlane,
    cluster: client.Cluster,
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grouped(plane, cluster, BY_NODE)
    told = await notify(api, *(alert(number, node="n") for number in range(3)), *map(alert, range(3, 9)))
    run, plans = databases.Database.run, list[str]()

    async def explained(self: databases.Database, statement: sqlalchemy.TextClause, **values: Any) -> Any:
        if "alert_count" in statement.text:
            async with self.begin() as connection:
                for other in ("seqscan", "bitmapscan"):  # what it takes of them depends on when Postgres last analyzed
                    await connection.execute(sqlalchemy.text(f"SET LOCAL enable_{other} = off"))
                shown = sqlalchemy.text(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {statement.text}")
                plans.append("\n".join((await connection.execute(shown, values)).scalars()))
        return await run(self, statement, **values)

    monkeypatch.setattr(databases.Database, "run", explained)
    async with api.get("/api/v1/investigations") as response:
        counts = {item["id"]: item["alert_count"] for item in (await response.json())["items"]}
    assert counts == dict.fromkeys((one["id"] for one in told), None) | {told[0]["id"]: 3}
    assert len(counts) == 7
    (plan,) = plans
    scans = [line for line in plan.splitlines() if "Scan" in line and "identities" in line]
    assert len(scans) == 1, plan
    assert re.search(r"identities_investigation .*\(actual rows=3(\.00)? loops=1\)", scans[0]), plan


async def test_pages_list_groups_with_the_number_of_their_alerts(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster, database: databases.Database
) -> None:
    grouped(plane, cluster, BY_NODE)
    told = await notify(api, *(alert(number, node="n") for number in range(3)), alert(3))
    for state in ("card", "row"):
        async with api.get("/") as response:
            _, *items = re.split(f'id="{state}-', await response.text())
        counts = {item[:36]: re.findall(r"(\d+) alerts<", item) for item in items}
        assert counts == {told[0]["id"]: ["3"], told[3]["id"]: []}
        await end(database)


async def test_the_alerts_of_a_group_are_listed_in_pages_as_they_came(
    api: aiohttp.ClientSession, plane: ControlPlane, cluster: client.Cluster
) -> None:
    grouped(plane, cluster, BY_NODE)
    (first,) = await notify(api, alert(1, node="n"))
    await notify(api, *(alert(number, node="n", pod="<script>web") for number in range(2, 26)))
    found: list[str] = []
    after, more = -1, True
    while more:
        page = await listed(api, first["id"], f"limit=10&after={after}")
        assert len(page["items"]) <= 10
        found += [item["fingerprint"] for item in page["items"]]
        after, more = page["last"], page["more"]
    assert found[0] == f"{1:016x}"
    assert sorted(found) == [f"{number:016x}" for number in range(1, 26)]
    async with api.get(f"/investigations/{first['id']}/alerts") as response:
        text = await response.text()
    assert text.count("data-split=") == 24, "each but the one that the investigation was made for"
    assert "<script>web" not in text
    async with api.get(f"/api/v1/investigations/{first['id']}/export") as response:
        assert [item["fingerprint"] for item in (await response.json())["alerts"]] == found
    async with api.get(f"/api/v1/investigations/{first['id']}/export?format=markdown") as response:
        document = await response.text()
    assert document.count("`alertname=kubernetes, pod=<script>web`") == document.count("pod=") == 24, "as code"

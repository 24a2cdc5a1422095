"""Budgets at the API: alerts that they refuse, what is shown of them, and events about them."""

from __future__ import annotations

import functools
import json
import re
import uuid
from decimal import Decimal
from typing import Any

from support import apis, manifests, queue
from tarsy.api import app
from tarsy.cli import budgets as command
from tarsy.config.check import chain_index
from tarsy.config.model import budgets, platforms
from tarsy.controller import budget_events, investigations
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import ledgers
from tarsy.web import site
from tarsy_dev.controlplane import Administrator

JSON = {"Content-Type": "application/json"}
REFUSING = budgets.Budget(
    scope="all",
    per="month",
    model_calls=10,
    at_limit="Refuse",
    reserve=budgets.Reserve(severity="critical", share=20),
)


async def spend(database: databases.Database, amount: int, *, budget: str = "calls") -> None:
    """Spend of the budget for good: the claim does not exist."""
    charge = budgets.Charge(
        budget=budget,
        unit="model_calls",
        subject="",
        per="month",
        amount=Decimal(amount),
        most=Decimal(1000),
        at_limit="Refuse",
    )
    refused = await ledgers.reserve(
        database, [charge], request=uuid.uuid4(), investigation=uuid.uuid4(), token=uuid.uuid4()
    )
    assert refused is None


async def test_alerts_are_ignored_while_a_budget_refuses_them_and_taken_afterwards(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain("KubePodCrashLooping"), namespace=cluster.served.own)
    body = json.loads(manifests.notification())
    (alert,) = body["alerts"]
    body["alerts"] = [
        alert | {"labels": {**alert["labels"], "severity": severity}, "fingerprint": f"{number:016x}"}
        for number, severity in enumerate(("warning", "critical"))
    ]

    async def outcomes() -> list[tuple[str, str]]:
        async with session.post("/api/v1/webhooks/alertmanager", data=json.dumps(body)) as response:
            assert response.status == 200
            return [
                (alert_outcome["outcome"], alert_outcome["reason"])
                for alert_outcome in (await response.json())["alerts"]
            ]

    async def read_budget() -> dict[str, Any]:
        async with session.get("/api/v1/budgets") as response:
            assert response.status == 200
            (budget,) = (await response.json())["budgets"]
            only_budget: dict[str, Any] = budget
            return only_budget

    parts = apis.parts(cluster=cluster, database=database, known_budgets={"calls": REFUSING})
    async with apis.served(parts, headers=JSON) as session:
        assert (await read_budget())["ledgers"] == []
        await spend(database, 8)
        ((now,),) = await queue.rows(database, "SELECT clock_timestamp()")
        renewal = budgets.period_end("month", now)
        assert renewal is not None
        until = f"used up: budget 'calls', until {renewal:%Y-%m-%dT%H:%M:%SZ}"
        remedy = "a later notification is taken, or one after the limit was raised"
        assert await outcomes() == [("ignored", f"not investigated: {until}; {remedy}"), ("created", "")]
        for severity, status in (("warning", 429), ("critical", 202)):
            posted = {"alert_type": "KubePodCrashLooping", "data": "web-0", "severity": severity}
            async with session.post("/api/v1/alerts", json=posted) as response:
                assert response.status == status, await response.text()
                if status == 429:
                    assert (await response.json())["detail"] == until
                    assert 0 < int(response.headers["Retry-After"]) <= 31 * 86400
        budget = await read_budget()
        (ledger,) = budget["ledgers"]
        assert ledger == {"subject": "", "spent": 0.0, "reserved": 0.0, "unconfirmed": 8.0, "left": 2.0}
        ((_, _, _, _, limit, *_, renews),) = command._rows(budget)
        assert (limit, renews[:3]) == ("10", "in ")
        await queue.execute(database, "UPDATE budget_ledgers SET period = '2001-01'")
        assert [outcome for outcome, _ in await outcomes()] == ["created", "repeated"]


async def test_system_page_shows_what_is_left_of_each_budget(
    cluster: client.Cluster, database: databases.Database
) -> None:
    cost = budgets.Budget(scope="namespace", per="day", cost=12.5, at_limit="Wait")
    parts = apis.parts(cluster=cluster, database=database, known_budgets={"calls": REFUSING, "each": cost})
    application = app.build(parts)
    site.add(application)

    async def rows() -> list[str]:
        async with session.get("/system/parts") as response:
            _, _, table = (await response.text()).partition('id="budgets"')
        return [
            " ".join(re.sub("<[^>]*>", " ", row).split()) for row in re.findall(r"<tr>\s*<td.*?</tr>", table, re.DOTALL)
        ]

    async with apis.served(parts, application=application) as session:
        for amount, unconfirmed_and_left in ((8, "8 2"), (2, "10 nothing")):
            await spend(database, amount)
            calls, each, *_ = await rows()
            row_start = "calls Refuse at the limit; 20 % kept for critical all 10 model calls per month 0 0"
            assert calls.startswith(f"{row_start} {unconfirmed_and_left} ")
            assert each.startswith("each Wait at the limit each namespace 12.50 cost per day 0.00 0.00 0.00 12.50 ")


async def test_budget_refuses_user_created_object_but_not_object_accepted_by_intake(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    """An API process may die between its object and the admission of that."""
    platform = queue.PLATFORM.model_copy(update={"budgets": {"calls": REFUSING}})
    reconciler = investigations.Reconciler(
        cluster=cluster,
        database=database,
        index=functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={}),
        mask=str,
        workers=1,
        platform=lambda: platform,
    )
    plane.create(manifests.chain(), namespace=cluster.served.own)
    await spend(database, 8)
    receipt = {"type": "alertmanager", "receipt": "0123456789abcdef"}
    for name, spec in (
        ("noise", {"severity": "warning"}),
        ("outage", {"severity": "critical"}),
        ("received", {"severity": "warning", "source": receipt}),
    ):
        made = plane.create(manifests.investigation(name, **spec), namespace=cluster.served.own)["metadata"]
        await reconciler.reconcile(investigations.Key(namespace=made["namespace"], name=made["name"], uid=made["uid"]))
    rows = await queue.rows(
        database,
        "SELECT name, reason, message FROM investigations JOIN runs ON investigation = id AND number = 0 ORDER BY name",
    )
    assert [(name, reason) for name, reason, _ in rows] == [
        ("noise", "BudgetSpent"),
        ("outage", None),
        ("received", None),
    ]
    assert rows[0][2].startswith("used up: budget 'calls', until 20")


async def test_each_passed_threshold_makes_one_event_per_period_across_all_replicas(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    name = "tarsy"
    kubectl = functools.partial(plane.kubectl, namespace=cluster.served.own)
    kubectl("create", "deployment", name, "--image=tarsy", "--replicas=0")
    platform = platforms.Platform(budgets={"calls": REFUSING})
    replicas = [
        budget_events.BudgetEvents(cluster=cluster, database=database, deployment=name, platform=lambda: platform)
        for _ in range(2)
    ]
    for amount in (4, 1, 1, 2, 1, 1):
        await spend(database, amount)
        for replica in replicas:
            await replica.post()
    uid = json.loads(kubectl("get", "deployment", name, "-o", "json"))["metadata"]["uid"]
    events = json.loads(kubectl("get", "events", "-o", "json", f"--field-selector=involvedObject.uid={uid}"))["items"]
    messages = sorted(event["message"] for event in events if event["reason"] == "BudgetThreshold")
    (period,) = {row[0] for row in await queue.rows(database, "SELECT period FROM budget_ledgers")}
    assert messages == [
        f"budget 'calls': {threshold} % of 10 (model calls) is spent in {period} (UTC). See /api/v1/budgets"
        for threshold in (100, 50, 80)
    ]

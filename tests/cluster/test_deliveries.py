"""Messages to receivers: real receivers on loopback, a real Postgres, and an API server for the events."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from support import manifests, queue, receivers, slack, stories
from support.deliveries import KEY, Duty, channel, ended, settled, until, webhook
from tarsy import failpoints
from tarsy.config.model import deliveries
from tarsy.controller import delivery_queues, projector
from tarsy.deliveries import slack as slack_receiver
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev.controlplane import Administrator


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pauses out: the tests wait for states."""
    for name in ("POLL_SECONDS", "GIVE_UP_SECONDS", "FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(delivery_queues, name, 0.0)


@pytest.fixture
async def receiver() -> AsyncIterator[receivers.Receiver]:
    async with receivers.started() as receiver:
        yield receiver


@pytest.mark.usefixtures("own_postgres")
async def test_a_webhook_gets_a_signed_cloud_event_of_the_end_and_no_double(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    before = await ended(database, "before")
    hook = webhook(f"{receiver.url}/hook?key=1", secret_env="HOOK_SECRET", headers={"X-Team": "shop", "CE-ID": "x"})
    async with Duty(cluster, database, hook=hook).running():
        identity = await ended(database)
        (request,) = await receiver.has(1)
        assert await settled(database) == [("hook", "ended", 0, False)]
        second = await ended(database, "second")
        await receiver.has(2)
        await settled(database, 2)
    headers = request.headers
    assert (request.method, request.path, request.query) == ("POST", "/hook", {"key": "1"})
    assert (headers["x-team"], headers["content-type"]) == ("shop", "application/json")
    assert {name: value for name, value in headers.items() if name.startswith("ce-") and name != "ce-time"} == {
        "ce-specversion": "1.0",
        "ce-id": headers["webhook-id"],
        "ce-type": "dev.tarsy.investigation.ended.v1",
        "ce-source": "/apis/tarsy.dev/v1alpha1/namespaces/tarsy/alertinvestigations",
        "ce-subject": "web-crash",
    }
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    digest = hmac.new(base64.b64decode(KEY), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    message = json.loads(request.body)
    assert (message["version"], message["kind"], message["event"]) == ("tarsy.dev/v1", "investigation", "ended")
    about = message["investigation"]
    assert (about["id"], about["phase"], about["headline"]) == (
        str(identity),
        "Completed",
        "web-0 is out of memory.",
    )
    assert message["title"].endswith(" [critical]")
    assert message["text"].splitlines()[-1] == f"https://tarsy.example/investigations/{identity}"
    delivered_ids = [json.loads(request.body)["investigation"]["id"] for request in receiver.requests]
    assert delivered_ids == [str(identity), str(second)], f"{before} ended before there was a receiver"


async def test_rules_and_namespaces_choose_what_a_receiver_hears_of(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    receiver_settings = {
        "all": webhook(f"{receiver.url}/all"),
        "foreign": webhook(f"{receiver.url}/foreign", namespace="shop"),
        "starts": webhook(f"{receiver.url}/starts", events=["started"]),
        "calm": webhook(f"{receiver.url}/calm", rules=[{"severities": ["warning"]}]),
        "failed": webhook(f"{receiver.url}/failed", rules=[{"phases": ["Failed"]}, {"chains": ["pod-crash"]}]),
        "named": webhook(f"{receiver.url}/named", rules=[]),
    }
    async with Duty(cluster, database, **receiver_settings).running():
        await ended(database, notify=["foreign", "named", "unknown"])
        assert [row[0] for row in await settled(database, 4)] == ["all", "failed", "named", "starts"]
    assert sorted(request.path for request in receiver.requests) == ["/all", "/failed", "/named", "/starts"]


async def test_events_of_one_investigation_arrive_in_order_and_unsent_event_is_replaced(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    down = asyncio.Event()
    hook = webhook(receiver.url, events=["started", "ended", "resolved"])
    receiver.answer = lambda _: web.Response(status=503 if down.is_set() else 200)
    async with Duty(cluster, database, hook=hook).running():
        first = await queue.admit(database, queue.subject("first"))
        writing = await queue.opened(database, await queue.claimed(database))
        await receiver.has(1)
        await settled(database)
        down.set()
        await writing.commit(stories.run_ended(final_analysis="done"))
        await receiver.has(3)
        await queue.execute(
            database,
            "UPDATE investigations SET alert_status = 'resolved' WHERE id = :id",
            id=first,
        )
        await queue.execute(database, "UPDATE work SET revision = revision + 1 WHERE investigation = :id", id=first)
        await until(database, "SELECT 1 FROM deliveries WHERE event = 'resolved'")
        down.clear()
        assert await settled(database) == [("hook", "resolved", 0, False)]
    events = [json.loads(request.body)["event"] for request in receiver.requests]
    assert events[0] == "started"
    assert events[-1] == "resolved"
    assert events == sorted(events, key=deliveries.MILESTONES.index)


async def test_undelivered_message_is_given_up_after_a_day_with_an_event_on_the_object(
    cluster: client.Cluster, database: databases.Database, plane: Administrator
) -> None:
    made = plane.create(manifests.investigation("web-crash"), namespace=cluster.served.own)
    subject = queue.subject()
    metadata = subject.metadata.model_copy(update={"uid": made["metadata"]["uid"], "namespace": cluster.served.own})
    hook = webhook("http://127.0.0.1:1/", namespace=cluster.served.own)
    projecting = asyncio.create_task(projector.Projector(cluster=cluster, database=database).run())
    async with Duty(cluster, database, hook=hook).running():
        await queue.admit(database, subject.model_copy(update={"metadata": metadata}))
        writing = await queue.opened(database, await queue.claimed(database))
        await writing.commit(stories.run_ended(final_analysis="done"))
        await until(database, "SELECT 1 FROM deliveries WHERE problem <> ''")
        await queue.execute(database, "UPDATE deliveries SET since = since - interval '25 hours'")
        ((name, event, attempts, gave_up),) = await settled(database)
        await until(database, "SELECT 1 FROM work WHERE NOT stale")
        projecting.cancel()
        summary = await queue.summary(database, made["metadata"]["uid"])
    assert [(undelivered.receiver, undelivered.problem) for undelivered in summary.undelivered] == [
        ("hook", "it cannot be reached: Connection refused")
    ]
    assert (name, event, gave_up) == ("hook", "ended", True)
    assert attempts
    event_messages = plane.kubectl("get", "events", "-o", "jsonpath={.items[*].message}", namespace=cluster.served.own)
    assert event_messages.count("a message was given up; receiver hook: it cannot be reached: Connection refused") == 1


async def test_leader_alone_sends_and_nothing_is_read_without_receivers(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    no_database: Any = None  # any use of it is an error
    idle = Duty(cluster, no_database)
    follower = Duty(cluster, no_database, hook=webhook(receiver.url))
    follower.leads_until = -math.inf
    async with Duty(cluster, database, hook=webhook(receiver.url)).running():
        pass
    await ended(database)
    tasks = [asyncio.create_task(duty.queues.run()) for duty in (idle, follower)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert not [task for task in tasks if task.done()], "neither uses the database"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert await queue.rows(database, "SELECT 1 FROM deliveries") == []
    async with Duty(cluster, database, hook=webhook(receiver.url)).running():
        await receiver.has(1)
        await settled(database)


@pytest.mark.parametrize("point", ["deliveries.queue.before", "deliveries.send.before", "deliveries.send.after"])
async def test_a_fault_at_each_point_loses_nothing(
    cluster: client.Cluster,
    database: databases.Database,
    receiver: receivers.Receiver,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    monkeypatch.setattr(failpoints, "_points", failpoints.parse(f"{point}=raise"))
    monkeypatch.setattr(failpoints, "_hits", Counter())
    is_fatal = point == "deliveries.queue.before"
    died = False
    try:
        async with Duty(cluster, database, hook=webhook(receiver.url)).running():
            await ended(database)
            await (asyncio.Event().wait() if is_fatal else settled(database))
    except BaseExceptionGroup:
        died = True
    assert died == is_fatal
    async with Duty(cluster, database, hook=webhook(receiver.url)).running():
        await settled(database)
    expected = 2 if point == "deliveries.send.after" else 1
    assert len({request.body for request in receiver.requests}) == 1
    assert len(receiver.requests) == expected


async def test_slack_gets_one_message_per_investigation_and_later_events_in_its_thread(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack_receiver, "PACE_SECONDS", 0.0)
    workspace = slack.Slack(limits=1)
    receiver.answer = workspace.answer
    channel_settings = channel(receiver.url, events=["started", "ended", "resolved"])
    async with Duty(cluster, database, slack=channel_settings).running():
        hostile = "web-0 <!channel> & <@U1> *dies* <https://evil.example|here>"
        subject = queue.subject(severity="critical", labels={"alertname": hostile})
        identity = await queue.admit(database, subject)
        writing = await queue.opened(database, await queue.claimed(database))
        await settled(database)
        assert [len(workspace.firsts), len(workspace.replies)] == [1, 0]
        await writing.commit(stories.run_ended(final_analysis=hostile + " x" * 10_000))
        await until(database, "SELECT 1 FROM deliveries WHERE event = 'ended' AND next_at IS NULL")
        await queue.execute(database, "UPDATE investigations SET alert_status = 'resolved'")
        await queue.execute(database, "UPDATE work SET revision = revision + 1")
        await until(database, "SELECT 1 FROM deliveries WHERE event = 'resolved' AND next_at IS NULL")
    (first,), (reply,) = workspace.firsts, workspace.replies
    assert workspace.calls.count("chat.update") == 2
    assert first["blocks"][1]["text"]["text"].startswith("Resolved. ")
    assert (
        first["blocks"][2]["elements"][0]["text"] == f"<https://tarsy.example/investigations/{identity}|Investigation>"
    )
    assert reply["thread_ts"] == first["ts"]
    assert hostile in reply["blocks"][0]["text"]["text"], "as plain text, in which Slack reads no mention"
    assert {block["text"]["type"] for block in (*first["blocks"][:2], *reply["blocks"])} == {"plain_text"}

"""Messages to receivers: real receivers on loopback, a real Postgres, and an API server for the events."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import json
import math
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from sqlalchemy import text
from support import grafana, pagerduty, queue, receivers, slack, stories, waiting
from support.deliveries import KEY, Duty, channel, ended, settled, until, webhook
from tarsy.config.model import deliveries
from tarsy.controller import delivery_queues
from tarsy.deliveries import requests
from tarsy.deliveries import slack as slack_receiver
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.operations import deletion
from tarsy.store.operations import deliveries as stored
from tarsy_dev import patience


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pauses be short: the tests wait for states."""
    monkeypatch.setattr(delivery_queues, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(delivery_queues, "GIVE_UP_SECONDS", 0.02)
    monkeypatch.setattr(delivery_queues, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(delivery_queues, "LONGEST_PAUSE", 0.05)


@pytest.fixture
async def receiver() -> AsyncIterator[receivers.Receiver]:
    async with receivers.started() as receiver:
        yield receiver


async def test_a_receiver_that_hangs_floods_redirects_or_refuses_delays_no_other(
    cluster: client.Cluster,
    database: databases.Database,
    receiver: receivers.Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(requests, "Client", functools.partial(requests.Client, seconds=300.0))

    async def flood(_: receivers.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 5_000_000)

    async def hang(_: receivers.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    answers: dict[str, receivers.Answer] = {
        "/good": lambda _: web.Response(),
        "/hangs": hang,
        "/floods": flood,
        "/redirects": lambda _: web.Response(status=307, headers={"Location": f"{receiver.url}/elsewhere"}),
        "/refuses": lambda _: web.Response(status=422, text="whsec_secret in an answer"),
        "/limits": lambda _: web.Response(status=429, headers={"Retry-After": "3000"}),
    }
    receiver.answer = lambda request: answers[request.path](request)
    hooks = {path[1:]: webhook(f"{receiver.url}{path}") for path in answers}
    async with Duty(cluster, database, dead=webhook("http://127.0.0.1:1/"), **hooks).running():
        for number in range(3):
            await ended(database, f"crash-{number}")
        assert await settled(database, 6) == [("floods", "ended", 0, False)] * 3 + [("good", "ended", 0, False)] * 3
        await until(database, "SELECT 1 FROM deliveries WHERE receiver = 'redirects' AND attempts > 1")
        await until(database, "SELECT 1 FROM deliveries WHERE receiver = 'refuses' AND problem <> ''", rows=3)
        await until(database, "SELECT DISTINCT receiver FROM deliveries WHERE problem <> ''", rows=4)
        async with receiver.arrival:
            await receiver.arrival.wait_for(lambda: any(request.path == "/hangs" for request in receiver.requests))
    problems = dict(await queue.rows(database, "SELECT DISTINCT receiver, problem FROM deliveries WHERE problem <> ''"))
    assert problems == {
        "dead": "it cannot be reached: Connection refused",
        "redirects": "it answers 307, a redirect, which is not followed",
        "refuses": "it answers 422",
        "limits": "it answers 429",
    }
    paths = [request.path for request in receiver.requests]
    assert "/elsewhere" not in paths
    assert (paths.count("/limits"), paths.count("/hangs")) == (1, 1), "one rests, the other still waits"
    assert "whsec_secret" not in caplog.text


async def test_message_about_a_deleted_investigation_is_not_sent_and_a_new_address_takes_others(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    duty = Duty(cluster, database, hook=webhook("http://127.0.0.1:1/"))
    async with duty.running():
        gone, remaining = await ended(database, "gone"), await ended(database, "kept")
        await until(database, "SELECT 1 FROM deliveries", rows=2)
        assert await deletion.delete(database, gone, by=queue.CALLER) is None
        duty.platform = duty.platform.model_copy(update={"deliveries": {"hook": webhook(receiver.url)}})
        await settled(database)
        async with patience.limit():
            while await queue.rows(database, "SELECT count(*) FROM deliveries") != [(1,)]:
                pass
    delivered_ids = [json.loads(request.body)["investigation"]["id"] for request in receiver.requests]
    assert delivered_ids == [str(remaining)]


async def test_waiting_message_is_not_sent_to_a_receiver_that_may_no_longer_get_it(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    duty = Duty(cluster, database, hook=webhook("http://127.0.0.1:1/"))
    async with duty.running():
        await ended(database)
        await until(database, "SELECT 1 FROM deliveries")
        duty.platform = duty.platform.model_copy(update={"deliveries": {"hook": webhook(receiver.url, "shop")}})
        async with patience.limit():
            while await queue.rows(database, "SELECT 1 FROM deliveries"):
                pass
    assert receiver.requests == []


async def test_a_process_that_leads_no_more_stops_sending_even_if_the_database_does_not_answer(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    async def hang(_: receivers.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    receiver.answer = hang
    duty = Duty(cluster, database, hook=webhook(receiver.url))
    async with duty.running():
        await ended(database)
        await receiver.has(1)
        async with database.begin() as connection:
            await connection.execute(text("LOCK TABLE deliveries IN ACCESS EXCLUSIVE MODE"))  # more could deadlock
            duty.leads_until = -math.inf
            while duty.queues._senders:  # noqa: ASYNC110 - there is no event of it
                await asyncio.sleep(0)


async def test_receiver_that_was_removed_and_put_back_gets_what_waits_signed_with_the_rotated_secret(
    cluster: client.Cluster,
    database: databases.Database,
    receiver: receivers.Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    due, read_for = stored.due, list[str]()

    async def noted(database: databases.Database, names: Sequence[str], *, limit: int) -> dict[str, list[UUID]]:
        read_for[:] = names
        return await due(database, names, limit=limit)

    monkeypatch.setattr(stored, "due", noted)
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{base64.b64encode(b'x' * 32).decode()}\n")

    def answer(request: receivers.Request) -> web.StreamResponse:
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
        digest = base64.b64encode(hmac.new(base64.b64decode(KEY), signed, hashlib.sha256).digest()).decode()
        return web.Response(status=200 if request.headers["webhook-signature"] == f"v1,{digest}" else 401)

    receiver.answer = answer
    hook = webhook(receiver.url, secret_file=secret)
    duty = Duty(cluster, database, hook=hook, other=webhook(f"{receiver.url}/other", secret_env="HOOK_SECRET"))
    async with duty.running():
        await ended(database, "first")
        await until(database, "SELECT 1 FROM deliveries WHERE problem = 'it answers 401'")
        present = duty.platform
        duty.platform = present.model_copy(update={"deliveries": {"other": present.deliveries["other"]}})
        await waiting.until(lambda: "hook" not in duty.queues._senders and read_for == ["other"])
        await settled(database)
        sent = len(receiver.requests)
        await ended(database, "second")
        await settled(database, 2)
        assert {request.path for request in receiver.requests[sent:]} == {"/other"}
        duty.platform = present
        secret.write_text(f"whsec_{KEY}\n")
        assert await settled(database, 3) == [("hook", "ended", 0, False)] + [("other", "ended", 0, False)] * 2
    delivered_names = [json.loads(request.body)["investigation"]["name"] for request in receiver.requests[sent:]]
    assert sorted(delivered_names) == ["first", "second"], "it hears no more of what ended while it was not in the file"


async def test_slack_thread_reports_each_stage_once_and_message_shows_joined_alerts(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack_receiver, "PACE_SECONDS", 0.0)
    monkeypatch.setattr(stored, "UPDATE", timedelta(0))
    workspace = slack.Slack()
    receiver.answer = workspace.answer
    stages = [{"name": name, "agent": "KubernetesAgent"} for name in ("collect", "analysis")]
    slack_settings = channel(receiver.url, events=["started", "updated", "ended"])

    async def sent(state: str) -> None:
        rows = f"SELECT 1 FROM deliveries WHERE next_at IS NULL AND sent_event || sent_told_of = '{state}'"  # noqa: S608
        await until(database, rows)

    async with Duty(cluster, database, slack=slack_settings).running():
        identity = await queue.admit(database, queue.subject(severity="critical"), chain=queue.chain(stages=stages))
        writing = await queue.opened(database, await queue.claimed(database))
        await writing.commit(stories.stage_started("collect"))
        await writing.commit(stories.stage_ended("collect"))
        await sent("started1/0")
        (reply,) = workspace.replies
        assert reply["blocks"][0]["text"]["text"] == "collect: Completed"
        assert "1/2 stages have ended" in workspace.firsts[0]["blocks"][1]["text"]["text"]
        for number in (1, 2):
            await queue.execute(
                database,
                "INSERT INTO identities (investigation, namespace, fingerprint, starts_ms, alert_type)"
                " VALUES (:id, 'tarsy', :name, 1, 'KubePodNotReady')",
                id=identity,
                name=f"alert-{number}",
            )
        await queue.execute(database, "UPDATE work SET revision = revision + 1")
        await sent("started1/2")
        assert "2 alerts, 2 firing: 2 KubePodNotReady" in workspace.firsts[0]["blocks"][1]["text"]["text"]
        await writing.commit(stories.stage_started("analysis"))
        await writing.commit(
            stories.stage_ended("analysis"), stories.run_ended(final_analysis="web-0 is out of memory.")
        )
        await sent("ended2/2")
    texts = [reply["blocks"][0]["text"]["text"] for reply in workspace.replies]
    assert texts == ["collect: Completed", "analysis: Completed\n\nweb-0 is out of memory."]
    assert len(workspace.firsts) == 1


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("lost", [1, 2])
async def test_slack_message_posted_before_a_crash_is_found_if_history_is_readable(
    cluster: client.Cluster,
    database: databases.Database,
    receiver: receivers.Receiver,
    monkeypatch: pytest.MonkeyPatch,
    lost: int,
    *,
    history: bool,
) -> None:
    monkeypatch.setattr(slack_receiver, "PACE_SECONDS", 0.0)
    workspace = slack.Slack(history=history)
    dead = asyncio.Event()

    async def answer(request: receivers.Request) -> web.StreamResponse:
        answered = workspace.answer(request)
        if len(workspace.posted) == lost and not dead.is_set():
            dead.set()  # posted, and the answer does not arrive
            await asyncio.Event().wait()
        return answered

    receiver.answer = answer
    async with Duty(cluster, database, slack=channel(receiver.url)).running():
        await ended(database)
        await dead.wait()
    async with Duty(cluster, database, slack=channel(receiver.url)).running():
        await settled(database)
    expected = (1, 1) if history else {1: (2, 1), 2: (1, 2)}[lost]
    assert (len(workspace.firsts), len(workspace.replies)) == expected


def alert(dashboard: str, **annotations: str) -> str:
    """The data of an alert with a panel of a dashboard."""
    return json.dumps({"panelURL": f"https://evil.example/d/{dashboard}?viewPanel=7", "annotations": annotations})


def dashboards(url: str, **settings: Any) -> deliveries.Receiver:
    return deliveries.Grafana.model_validate(
        {"type": "grafana", "base_url": url, "token_env": "GRAFANA_TOKEN", "allowed_namespaces": ["tarsy"], **settings}
    )


async def test_grafana_has_an_annotation_on_the_alerts_dashboard_and_no_text_of_it_is_html(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    site = grafana.Grafana()
    receiver.answer = site.answer
    grafana_settings = dashboards(
        f"{receiver.url}/", events=["started", "ended", "resolved"], text="{{ investigation.summary }}"
    )
    async with Duty(cluster, database, grafana=grafana_settings).running():
        await ended(database, "elsewhere", alert("unknown"))
        await until(database, "SELECT 1 FROM deliveries WHERE problem = 'it answers 404'")
        await ended(database, "without")
        identity = await queue.admit(database, queue.subject(alertData=alert("shop")))
        writing = await queue.opened(database, await queue.claimed(database))
        await waiting.until(lambda: 1 in site.annotations)
        assert site.annotations[1]["time"] == site.annotations[1]["timeEnd"]
        await writing.commit(stories.run_ended(summary="<img src=x onerror=alert(1)> & </a>"))
        await waiting.until(lambda: "Completed" in site.annotations[1]["tags"])
        await until(database, "SELECT 1 FROM deliveries WHERE event = 'ended' AND next_at IS NULL", rows=2)
    (annotation,) = site.annotations.values()
    times = "SELECT round(extract(epoch FROM started_at) * 1000), round(extract(epoch FROM ended_at) * 1000) FROM runs"
    ((started, end),) = await queue.rows(database, f"{times} WHERE investigation = '{identity}'")
    assert abs(annotation["time"] - started) <= 1
    assert abs(annotation["timeEnd"] - end) <= 1
    assert (annotation["dashboardUID"], annotation["panelId"]) == ("shop", 7)
    assert annotation["tags"] == ["tarsy", f"tarsy:{identity}", "Completed"]
    assert annotation["text"].splitlines()[1:] == [
        "&lt;img src=x onerror=alert(1)&gt; &amp; &lt;/a&gt;<br>",
        f'<a href="https://tarsy.example/investigations/{identity}">Investigation</a>',
    ]


async def test_annotation_of_a_dead_process_is_found_by_tag_and_recreated_if_deleted(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    site = grafana.Grafana()
    dead = asyncio.Event()

    async def answer(request: receivers.Request) -> web.StreamResponse:
        answered = site.answer(request)
        if not dead.is_set():
            dead.set()  # created, and the answer does not arrive
            await asyncio.Event().wait()
        return answered

    receiver.answer = answer
    grafana_settings = dashboards(receiver.url, events=["ended", "resolved"])
    async with Duty(cluster, database, grafana=grafana_settings).running():
        await ended(database, alert_data=alert("shop"))
        await dead.wait()
    async with Duty(cluster, database, grafana=grafana_settings).running():
        await settled(database)
        assert (len(site.annotations), site.calls) == (1, ["POST", "GET", "PATCH"])
        site.annotations.clear()
        await queue.execute(database, "UPDATE investigations SET alert_status = 'resolved'")
        await queue.execute(database, "UPDATE work SET revision = revision + 1")
        await until(database, "SELECT 1 FROM deliveries WHERE event = 'resolved' AND next_at IS NULL")
    assert (len(site.annotations), site.calls[3:]) == (1, ["PATCH", "POST"])


async def test_incident_of_an_alert_has_a_note_and_an_alert_of_people_has_none(
    cluster: client.Cluster, database: databases.Database, receiver: receivers.Receiver
) -> None:
    account = pagerduty.PagerDuty()
    receiver.answer = account.answer
    key = '{}:{alertname="KubePodCrashLooping"}'
    incident = account.opened(hashlib.sha256(key.encode()).hexdigest())
    settings = {"type": "pagerduty", "from_email": pagerduty.USER, "token_env": "PD_KEY", "base_url": receiver.url}
    pagerduty_settings = deliveries.PagerDuty.model_validate(settings | {"allowed_namespaces": ["tarsy"]})
    async with Duty(cluster, database, pagerduty=pagerduty_settings).running():
        await ended(database, "of-people")
        identity = await ended(database)
        await settled(database, 2)
        assert account.calls == []
        await queue.execute(
            database,
            "INSERT INTO identities (investigation, namespace, fingerprint, starts_ms, group_digest)"
            " VALUES (:id, 'tarsy', 'f', 1, encode(sha256(convert_to(:key, 'UTF8')), 'hex'))",
            id=identity,
            key=key,
        )
        await queue.execute(database, "UPDATE deliveries SET next_at = now()")
        await settled(database, 2)
    ((note,),) = (account.notes[incident],)
    assert note.splitlines()[-1] == f"https://tarsy.example/investigations/{identity}"

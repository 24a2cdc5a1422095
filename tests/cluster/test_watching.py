"""Rights to watch, for as long as they hold: on a real API server, whose rights change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import accounts, apis, queue, stories, watching
from tarsy.api import app
from tarsy.auth import cluster_rights
from tarsy.config.model import platforms
from tarsy.kube import client, discovery
from tarsy.live import subscriptions
from tarsy.store.base import databases
from tarsy.store.intake import queueing
from tarsy.store.operations import deletion

WEBHOOK = "the webhook's token"
MAY: dict[str, list[str]] = {"alertinvestigations": ["get", "list"]}


@dataclass
class World:
    """An API that knows people, and an investigation of its namespace."""

    url: str
    parts: app.Parts
    identity: UUID

    @property
    def channel(self) -> str:
        return f"investigation:{self.identity}"


Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[Serve]:
    """Serves an API on a cluster, by default the test's; its URL."""
    async with contextlib.AsyncExitStack() as stack:

        async def serving(on: client.Cluster = cluster, settings: platforms.API | None = None) -> str:
            parts = apis.parts(cluster=on, database=database, token=WEBHOOK, settings=settings)
            return await stack.enter_async_context(apis.listening(parts))

        yield serving


@pytest.fixture
async def admitted(database: databases.Database, cluster: client.Cluster) -> Callable[..., Awaitable[UUID]]:
    """Admits an investigation of the operator's namespace, as it is now."""
    uid = await discovery.namespace_uid(cluster, cluster.served.own)

    async def admit(name: str = "web-crash") -> UUID:
        subject = queue.subject(name)
        metadata = subject.metadata.model_copy(update={"namespace": cluster.served.own})
        moved = subject.model_copy(update={"metadata": metadata})
        admission = replace(queue.admission(moved), namespace_uid=uid)
        assert await queueing.admit(database, admission)
        return UUID(admission.id)

    return admit


async def stream(session: aiohttp.ClientSession, url: str, *, token: str, **headers: str) -> tuple[int, Any]:
    async with session.get(url, headers=apis.bearer(token) | headers) as response:
        return response.status, await response.json()


def heading(message: dict[str, Any]) -> tuple[Any, Any]:
    return message["type"], message.get("channel")


async def test_caller_without_the_right_to_read_watches_nothing(
    serve: Serve, admin: client.Cluster, admitted: Callable[..., Awaitable[UUID]], unreachable: str
) -> None:
    identity = await admitted()
    url = await serve()
    reader = await accounts.create(admin, "reader", may=MAY)
    nobody = await accounts.create(admin, "nobody")
    for token, status in ((None, 401), ("guess", 401), (WEBHOOK, 403)):
        headers = apis.bearer(token) if token else {}
        assert (await watching.refused(url, headers=headers))[0] == status, token
        async with aiohttp.ClientSession() as session:
            for path in (f"/api/v1/investigations/{identity}/events", "/api/v1/events"):
                async with session.get(url + path, headers=headers) as response:
                    assert response.status == status, (token, path)
    async with watching.watching(url, headers=apis.bearer(nobody)) as watcher:
        for channel in (f"investigation:{identity}", f"session:{identity}", "investigations", "sessions"):
            error = await watcher.answer(action="subscribe", channel=channel)
            assert (error["type"], error["status"], error["channel"]) == ("subscription.error", 403, channel)
    async with watching.watching(url, headers=apis.bearer(reader)) as watcher:
        error = await watcher.answer(action="subscribe", channel="investigations", namespace="default")
        assert (error["type"], error["status"]) == ("subscription.error", 403)
        error = await watcher.answer(action="subscribe", channel="investigation:x")
        assert (error["type"], error["status"]) == ("subscription.error", 404)
        assert (await watcher.answer(action="subscribe", channel="sessions"))["type"] == "subscription.confirmed"

    nowhere = await client.connect(Path(unreachable))
    away = await serve(nowhere)
    assert (await watching.refused(away, headers=apis.bearer(reader)))[0] == 503
    await nowhere.close()


async def test_a_right_that_is_taken_away_ends_what_is_watched(
    serve: Serve,
    admin: client.Cluster,
    admitted: Callable[..., Awaitable[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_rights, "ALLOWED_SECONDS", 0.0)
    monkeypatch.setattr(subscriptions, "CHECKED_EVERY", (0.1, 0.2))
    identity = await admitted()
    url = await serve()
    good, revoked = [await accounts.create(admin, name, may=MAY) for name in ("good", "revoked")]
    channels = (f"investigation:{identity}", "investigations")
    async with (
        watching.watching(url, headers=apis.bearer(good)) as stays,
        watching.watching(url, headers=apis.bearer(revoked)) as goes,
        aiohttp.ClientSession(headers=apis.bearer(revoked)) as session,
        session.get(f"{url}/api/v1/investigations/{identity}/events") as response,
    ):
        for watcher in (stays, goes):
            for channel in channels:
                await watcher.ask(action="subscribe", channel=channel)
                await watcher.until(lambda event, name=channel: heading(event) == ("subscription.confirmed", name))  # type: ignore[misc]
        reader = watching.Reader(response)
        await reader.until_type("investigation.status")
        await accounts.revoke(admin, "revoked")
        ended: dict[str, str] = {}
        while len(ended) < len(channels):
            ended_message = (await goes.until_type("subscription.ended"))[-1]
            ended[ended_message["channel"]] = ended_message["reason"]
        assert ended.keys() == set(channels)
        assert all("may not" in reason for reason in ended.values()), ended
        assert "may not get" in (await reader.until_type("subscription.ended"))[-1]["reason"]
        with pytest.raises(EOFError):
            await reader.next()
        for watcher in (goes, stays):
            await watcher.ask(action="ping")
            await watcher.until_type("pong")
        assert not [message for message in stays.messages if message["type"] == "subscription.ended"]


async def test_caller_behind_a_proxy_needs_an_origin_of_our_own_pages(serve: Serve, admin: client.Cluster) -> None:
    await accounts.grant(admin, "jane", may=MAY)
    settings = platforms.API(trusted_proxies=["127.0.0.1"], allowed_origins=["https://tarsy.example:8443"])
    url = await serve(settings=settings)
    jane = {"X-Forwarded-User": "jane"}
    status, problem = await watching.refused(url, headers=jane)
    assert (status, problem["detail"][:8]) == (403, "Origin: ")
    site = {"X-Forwarded-Host": "tarsy.example", "X-Forwarded-Proto": "https"}
    for headers, is_let_in in (
        ({"Origin": "https://tarsy.example"}, False),
        ({"Origin": "https://tarsy.example", **site}, True),
        ({"Origin": "https://tarsy.example:443", **site}, True),
        ({"Origin": "http://tarsy.example", **site}, False),
        ({"Origin": "https://tarsy.example:8443"}, True),
        ({"Origin": "null", **site}, False),
        ({"Origin": "https://evil.example", **site}, False),
    ):
        if is_let_in:
            async with watching.watching(url, headers=jane | headers) as watcher:
                assert (await watcher.answer(action="ping"))["type"] == "pong"
        else:
            assert (await watching.refused(url, headers=jane | headers))[0] == 403, headers
    token = apis.bearer(await accounts.create(admin, "reader", may=MAY))
    async with watching.watching(url, headers=jane | token):
        pass
    assert (await watching.refused(url, headers=token | {"Origin": "https://evil.example"}))[0] == 403


async def test_list_subscription_sends_changes_and_resumes_after_the_last_sent_change(
    serve: Serve,
    cluster: client.Cluster,
    admin: client.Cluster,
    database: databases.Database,
    admitted: Callable[..., Awaitable[UUID]],
) -> None:
    url = await serve()
    token = apis.bearer(await accounts.create(admin, "reader", may=MAY))
    async with watching.watching(url, headers=token) as watcher, watching.watching(url, headers=token) as old:
        await watcher.answer(action="subscribe", channel="investigations")
        await old.answer(action="subscribe", channel="sessions")
        identity = await admitted()
        first = (await watcher.until(lambda message: message["phase"] == "Queued" and "id" in message))[-1]
        assert (first["type"], first["investigation"], first["name"]) == (
            "investigation.status",
            str(identity),
            "web-crash",
        )
        journal = await queue.opened(database, await queue.claimed(database))
        await watcher.until(lambda message: message["phase"] == "Running")
        await journal.commit(stories.stage_started(), stories.started(), stories.answers(), stories.ended())
        await journal.commit(stories.stage_ended(), stories.run_ended(final_analysis="it is memory"))
        completed = (await watcher.until_type("investigation.completed"))[-1]
        assert (completed["phase"], completed["final_analysis"], "id" in completed) == (
            "Completed",
            "it is memory",
            True,
        )
        revisions = [message["revision"] for message in watcher.messages if message["type"] == "investigation.status"]
        assert revisions == sorted(set(revisions)), "none is told twice"
        completed = (await old.until_type("session.completed"))[-1]
        assert (completed["status"], completed["session_id"]) == ("completed", str(identity))
        for _ in range(2):
            assert await deletion.delete(database, identity, by=queue.CALLER) is None
            gone = (await watcher.until_type("investigation.deleted"))[-1]
            assert (gone["investigation"], gone["name"], "id" in gone) == (str(identity), "web-crash", True)
            assert (await old.until_type("session.deleted"))[-1]["session_id"] == str(identity)
            assert await deletion.restore(database, identity, by=queue.CALLER) is None
            back = await watcher.until_type("investigation.completed")
            assert [message["type"] for message in back] == ["investigation.status", "investigation.completed"]
        assert await deletion.delete(database, identity, by=queue.CALLER) is None
        await watcher.until_type("investigation.deleted")
    other = await admitted("other")
    headers = token | {"Last-Event-ID": str(first["id"])}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/api/v1/events?namespace={cluster.served.own}", headers=headers) as response,
    ):
        reader = watching.Reader(response)
        messages = [await reader.next() for _ in range(2)]
        assert {(message["type"], message["investigation"]) for message in messages} == {
            ("investigation.deleted", str(identity)),
            ("investigation.status", str(other)),
        }
    future = f"{url}/api/v1/events?last_event_id={2**62}"
    async with aiohttp.ClientSession(headers=token) as session, session.get(future) as response:
        problem = await response.json()
        assert (response.status, problem["errors"][0]["place"]) == (422, "last_event_id")

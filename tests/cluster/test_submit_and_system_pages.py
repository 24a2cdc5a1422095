"""The submit and system pages over a real API server: hostile texts, and accounts with too few rights."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from support import accounts, apis, manifests, queue
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.telemetry import component_states
from tarsy.web import site
from tarsy_dev.controlplane import Administrator

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e'\""
PINNED, OFFERED = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


@contextlib.asynccontextmanager
async def serving(
    cluster: client.Cluster, database: databases.Database, *, token: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    parts = apis.parts(cluster=cluster, database=database, token=token)
    application = app.build(parts)
    site.add(application)
    async with apis.served(parts, application=application) as session:
        yield session


async def get(api: aiohttp.ClientSession, path: str, token: str = "", **params: str) -> tuple[int, str]:
    headers = apis.bearer(token) if token else {}
    async with api.get(path, params=params, headers=headers) as response:
        return response.status, await response.text()


async def report(database: databases.Database) -> None:
    """Report a process whose every text is hostile."""

    def fact(kind: component_states.Kind, name: str, state: str, **detail: Any) -> component_states.ComponentState:
        decoded = component_states.decode(kind, detail)
        return component_states.ComponentState(kind=kind, name=name, state=state, since=NOON, detail=decoded)

    facts = [
        fact("server", HOSTILE, "unreachable", problem=HOSTILE, missing=HOSTILE),
        fact(
            "server",
            "k8s",
            "connected",
            stopped=[{"tool": HOSTILE, "pinned": PINNED, "offered": OFFERED, "written": ""}],
        ),
        fact(
            "tools", "k8s", "listed", tools=[{"name": HOSTILE, "description": HOSTILE, "read_only": True, "hash": ""}]
        ),
        fact(
            "provider",
            HOSTILE,
            "failing",
            type="openai",
            model=HOSTILE,
            limits={"requests_per_minute": 5, "tokens_per_minute": None, "context_tokens": None},
            problem=HOSTILE,
            failure={"kind": "rejected", "code": HOSTILE},
        ),
        fact("configuration", "platform", HOSTILE, written={HOSTILE: [HOSTILE]}),
    ]
    reporter = apis.keeping(database, host=HOSTILE, slots=2)
    reporter.add_source(lambda: iter(facts))
    await reporter.report()


async def test_an_unknown_path_is_a_page_for_browsers_and_json_for_programs(
    cluster: client.Cluster, database: databases.Database
) -> None:
    html = {"Accept": "text/html,application/xhtml+xml;q=0.9"}
    async with serving(cluster, database, token="of-webhooks") as api:
        answers = []
        for path, headers in (("/nowhere/%3Cb%3E", html), ("/api/v1/nowhere", html), ("/nowhere", {})):
            async with api.get(path, headers=headers) as response:
                answers.append((response.status, response.content_type, await response.text()))

    assert [status for status, _, _ in answers] == [404, 404, 404]
    assert [kind for _, kind, _ in answers] == ["text/html", *["application/problem+json"] * 2]
    assert "there is no page /nowhere/&lt;b&gt;" in answers[0][2]


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("/", "list alertinvestigations.tarsy.dev"),
        ("/submit", "create alertinvestigations.tarsy.dev"),
        ("/system", "list agentchains.tarsy.dev"),
    ],
)
async def test_page_names_the_right_that_the_user_lacks(
    admin: client.Cluster, cluster: client.Cluster, database: databases.Database, path: str, missing: str
) -> None:
    token = await accounts.create(admin, f"nobody-{uuid.uuid4().hex[:8]}")

    async with serving(cluster, database, token="of-webhooks") as api:
        status, text = await get(api, path, token)

    verb, resource = missing.split()
    assert status == 403
    assert "The missing right" in text
    for word in (verb, resource, cluster.served.own):
        assert f"<dd>{word}</dd>" in text.replace("<code>", "").replace("</code>", "")
    assert 'title="You are signed in as this user">system:serviceaccount:' in text


@pytest.fixture
async def hostile(plane: Administrator, cluster: client.Cluster, database: databases.Database) -> None:
    chain = manifests.chain(HOSTILE, name="hostile")
    plane.create(chain, namespace=cluster.served.own)
    await report(database)


@pytest.mark.usefixtures("hostile")
async def test_hostile_names_and_texts_are_text_on_both_pages(
    cluster: client.Cluster, database: databases.Database
) -> None:
    async with serving(cluster, database) as api:
        for path, params in (
            ("/system", {}),
            ("/system/parts", {}),
            ("/submit", {"alert_type": HOSTILE}),
            ("/submit/match", {"alert_type": HOSTILE + "?"}),
        ):
            status, page = await get(api, path, **params)
            assert status == 200, page
            assert "&lt;script&gt;alert(1)" in page, path
            for raw in ("<script>alert(1)", "\x1b", "\u202e"):
                assert raw not in page, path


async def test_rights_decide_what_each_account_sees(
    cluster: client.Cluster, admin: client.Cluster, database: databases.Database
) -> None:
    suffix = uuid.uuid4().hex[:8]
    reader = await accounts.create(admin, f"reader-{suffix}", may={"alertinvestigations": ["get", "list"]})
    sender = await accounts.create(admin, f"sender-{suffix}", may={"alertinvestigations": ["create"]})
    lister = await accounts.create(admin, f"lister-{suffix}", may={"agentchains": ["list"]})
    editor = await accounts.create(admin, f"editor-{suffix}", may=accounts.EDITOR)
    identity = await queue.admit(database, queue.subject())
    await report(database)  # it is told of for 30 s, and a busy machine may take that long for accounts

    async with serving(cluster, database, token="webhook") as api:
        assert (await get(api, "/submit", sender))[0] == 200
        status, page = await get(api, "/submit", reader)
        assert (status, "may not create alertinvestigations" in page) == (403, True)
        status, page = await get(api, "/system", reader)
        assert (status, "may not list agentchains" in page) == (403, True)
        status, page = await get(api, "/system", lister)
        assert (status, "may not update mcpservers" in page, "data-accept" in page) == (200, True, False)
        status, page = await get(api, "/system", editor)
        assert (status, "may not" in page, "data-accept" in page) == (200, False, True)
        assert (await get(api, f"/submitted/{identity}", sender))[0] in (403, 404)
        assert (await get(api, "/system"))[0] == 401


async def test_form_submitted_without_javascript_is_refused_with_the_reason(
    cluster: client.Cluster, database: databases.Database
) -> None:
    async with serving(cluster, database) as api, api.post("/submit", data={"alert_type": "PodCrash"}) as response:
        assert response.status == 415
        assert "submitting needs JavaScript" in await response.text()
    assert await queue.rows(database, "SELECT id FROM investigations") == []

"""Two teams on one operator: what a caller of one sees on every path, and that it is nothing of the other's."""

from __future__ import annotations

import functools
import json
import re
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import aiohttp
import fastapi
import pytest
from fastapi import routing
from support import accounts, apis, manifests, queue, stories, watching
from tarsy.api import app
from tarsy.config.check import chain_index
from tarsy.config.model import budgets
from tarsy.kube import client, discovery, reviews
from tarsy.resources import namespaces
from tarsy.store.base import databases
from tarsy.store.queue import ledgers
from tarsy.web import site
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

pytestmark = pytest.mark.once

LEFT_OUT = ("/static/{digest}/{name}", "/sign-in", "/api/v1/events", "/inv/{namespace}/{name}")
"""The pages that need no caller; the live list and the link by name, which are tested by themselves."""
LISTS = {
    "/api/v1/investigations": {
        "q": "",
        "name": "-ended",
        "author": "-author",
        "severity": "",
        "chain": "-chain",
        "alert_type": "",
        "fingerprint": "",
    },
    "/api/v1/history/sessions": {"search": "", "alert_type": ""},
    "/": {"q": "", "name": "-ended"},
    "/api/v1/chain-match": {"alert_type": ""},
}
"""The filters of lists, each with the end of a text of the other team."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """A namespace with its own account, chain and investigations."""

    namespace: str
    uid: str
    word: str
    """A word of all its names and texts."""
    token: str
    running: UUID
    ended: UUID

    @property
    def headers(self) -> dict[str, str]:
        return apis.bearer(self.token)


@dataclass(frozen=True, kw_only=True)
class API:
    """An API that serves both teams, and its pages."""

    url: str
    session: aiohttp.ClientSession
    application: fastapi.FastAPI
    alpha: Team
    beta: Team

    async def ask(self, method: str, path: str, token: str, **options: Any) -> tuple[int, str]:
        async with self.session.request(method, self.url + path, headers=apis.bearer(token), **options) as response:
            return response.status, await response.text()

    async def get(self, path: str, token: str) -> Any:
        status, text = await self.ask("GET", path, token)
        assert status == 200, (path, text)
        return json.loads(text)


async def admit(database: databases.Database, word: str, name: str) -> UUID:
    """Admit an investigation with that word in all that people wrote; `move` gives it to its namespace."""
    written = {"alertData": f"{word} restarts", "author": f"{word}-author", "labels": {"alertname": word}}
    chain = queue.chain(stages=[{"name": f"{word}-stage", "agent": "KubernetesAgent"}])
    chain = chain.model_copy(update={"metadata": chain.metadata.model_copy(update={"name": f"{word}-chain"})})
    return await queue.admit(database, queue.subject(f"{word}-{name}", severity=word, **written), chain=chain)


async def move(database: databases.Database, namespace: str, uid: str, word: str) -> None:
    """Give the investigations with that word in their names to a namespace."""
    await queue.execute(
        database,
        "UPDATE investigations SET namespace = :namespace, namespace_uid = :uid WHERE starts_with(name, :word)",
        namespace=namespace,
        uid=uid,
        word=word,
    )


async def worked_on(database: databases.Database, word: str, *, ends: bool) -> None:
    """Let the queued investigation be worked on, with that word in all that agents say."""
    stage = f"{word}-stage"
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started(stage), stories.started("one", stage=stage))
    await journal.commit(stories.answers(f"{word} analysis", execution="one"))
    if ends:
        await journal.commit(stories.ended("one"), stories.stage_ended(stage))
        await journal.commit(replace(stories.run_ended(final_analysis=f"{word} it is"), summary=f"{word} in short"))


async def team(
    plane: Administrator, admin: client.Cluster, database: databases.Database, side: str, namespace: str
) -> Team:
    """A team's namespace with a chain, investigations, and an account that may see TARSy's setup, too."""
    plane.create_namespace(namespace)
    uid = await discovery.namespace_uid(admin, namespace)
    assert uid
    word = f"{side}{secrets.token_hex(4)}"
    chain = json.dumps(manifests.chain(word, name=f"{word}-chain"))
    plane.kubectl("create", "-f", "-", input=chain, namespace=namespace)
    running = await admit(database, word, "running")
    await worked_on(database, word, ends=False)
    ended = await admit(database, word, "ended")
    await worked_on(database, word, ends=True)
    broken = await admit(database, word, "unreadable")
    await queue.execute(
        database,
        "UPDATE work SET unreadable = :word, suspend = true WHERE investigation = :broken",
        word=word,
        broken=broken,
    )
    await move(database, namespace, uid, word)
    token = await accounts.create(admin, side, namespace=namespace, may=accounts.EDITOR)
    user = reviews.User(name=f"system:serviceaccount:{namespace}:{side}")
    await accounts.grant(admin, user.name, may={"agentchains": ["list"]})
    for plural, where in (("alertinvestigations", namespace), ("agentchains", admin.served.own)):
        action = reviews.Action(verb="list", plural=plural, namespace=where)
        async with patience.limit():
            while not await reviews.may(admin, user, action):
                pass  # the API server's own cache does not know it yet
    return Team(namespace=namespace, uid=uid, word=word, token=token, running=running, ended=ended)


@pytest.fixture
async def api(plane: Administrator, admin: client.Cluster, database: databases.Database) -> AsyncIterator[API]:
    names = {side: f"{side}-{secrets.token_hex(4)}" for side in ("alpha", "beta")}
    alpha, beta = [await team(plane, admin, database, side, name) for side, name in names.items()]
    cluster = replace(admin, served=namespaces.Served.from_names(admin.served.own, names.values()))
    platform = queue.PLATFORM.model_copy(
        update={
            "llm_providers": {
                name: provider.model_copy(update={"allowed_namespaces": ["*"]})
                for name, provider in queue.PLATFORM.llm_providers.items()
            },
            "budgets": {
                "all": calls(scope="all"),
                "provider": calls(scope="provider"),
                "namespaces": calls(scope="namespace"),
                "chains": calls(scope="chain"),
                "investigations": calls(scope="all", per="investigation"),
                "calls": calls(scope="provider", per="investigation"),
                f"of-{beta.namespace}": calls(scope="namespace", of=beta.namespace),
                f"of-chain-of-{beta.namespace}": calls(scope="chain", of=f"{beta.namespace}/any"),
            },
        }
    )
    for side in (alpha, beta):
        await spend(database, platform.budgets, side)
    parts = replace(
        apis.parts(cluster=cluster, database=database, token="the webhook's"),
        platform=lambda: platform,
        index=functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={}),
    )
    application = app.build(parts)
    site.add(application)
    async with apis.listening(parts, application=application) as url, aiohttp.ClientSession() as session:
        yield API(url=url, session=session, application=application, alpha=alpha, beta=beta)


def calls(**settings: Any) -> budgets.Budget:
    """A budget that has room for all."""
    return budgets.Budget.model_validate({"per": "month", "model_calls": 1000, **settings})


async def spend(database: databases.Database, known_budgets: Mapping[str, budgets.Budget], side: Team) -> None:
    """Ask a model for a team's investigation."""
    chain = f"{side.namespace}/{side.word}-chain"
    subject = budgets.Subject(investigation=str(side.running), namespace=side.namespace, chain=chain)
    charges = budgets.charges(known_budgets, subject, provider="google-default", settings=None, request_bytes=1)
    owner, token = side.running, uuid.uuid4()
    assert await ledgers.reserve(database, charges, request=token, investigation=owner, token=token) is None


def paths(application: fastapi.FastAPI) -> Iterator[tuple[str, str, bool]]:
    """All operations and all pages, new ones too, with their methods, and whether they have a body."""
    for path, operations in apis.description()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, "requestBody" in operation
    described = apis.description()["paths"]
    for context in routing.iter_route_contexts(application.routes):
        path = context.path_format
        if path and "GET" in (context.methods or ()) and path not in (*described, *LEFT_OUT):
            yield "GET", path, False


def filled(path: str, identity: UUID | str) -> str:
    return re.sub(r"{(\w+)}", lambda match: str(identity) if match[1] == "identity" else "1", path)


async def test_paths_show_nothing_of_another_team(api: API, database: databases.Database) -> None:
    alpha, beta = api.alpha, api.beta
    before = await queue.rows(database, "SELECT investigation, state, cancel, revision FROM work ORDER BY 1")
    seen = set()
    for method, path, has_body in paths(api.application):
        options: dict[str, Any] = {"json": {}} if has_body else {}
        if "{identity}" in path:
            unknown = uuid.uuid4()
            expected = await api.ask(method, filled(path, unknown), alpha.token, **options)
            for identity in (beta.running, beta.ended):
                status, text = await api.ask(method, filled(path, identity), alpha.token, **options)
                assert (status, text.replace(str(identity), "")) == (404, expected[1].replace(str(unknown), ""))
            continue
        queries = [""] if method == "GET" else []
        if method == "GET" and path in LISTS:
            queries += [f"?{name}={beta.word}{suffix}" for name, suffix in LISTS[path].items()]
        for query in queries:
            status, text = await api.ask(method, path + query, alpha.token)
            assert status in (200, 307, 404, 422, 426, 503), (path, text)
            echoed = query.partition("=")[2] or query
            assert not has_part_of(text.replace(echoed, "") if echoed else text, beta), (path, text)
            seen |= {path for _ in [1] if alpha.word in text}
        status, text = await api.ask(method, f"{path}?namespace={beta.namespace}", alpha.token, **options)
        assert status in (403, 422, 426) or path == "/submit", (path, status, text)
        assert not has_part_of(text, beta) or "may not" in text or "unknown parameter" in text, (path, text)
    links = [
        await api.ask("GET", f"/inv/{beta.namespace}/{beta.word}-{end}", alpha.token, allow_redirects=False)
        for end in ("ended", "none")
    ]
    assert [(status, str(beta.ended) in text) for status, text in links] == [(403, False)] * 2, "whether it exists"
    assert await queue.rows(database, "SELECT investigation, state, cancel, revision FROM work ORDER BY 1") == before
    assert seen >= {"/api/v1/investigations", "/api/v1/history/sessions", "/api/v1/system/chains", "/", "/system"}


def has_part_of(text: str, team: Team) -> bool:
    return any(part in text for part in (team.word, team.namespace, str(team.running), str(team.ended)))


async def test_lists_counts_and_searches_are_of_the_namespaces_that_the_caller_may_read(api: API, editor: str) -> None:
    alpha, beta = api.alpha, api.beta
    for token, readable in ((alpha.token, [alpha]), (beta.token, [beta]), (editor, [alpha, beta])):
        listing = await api.get("/api/v1/investigations", token)
        names = {f"{team.word}-{name}" for team in readable for name in ("running", "ended", "unreadable")}
        assert {row["name"] for row in listing["items"]} == names
        assert set(listing["namespaces"]) >= {team.namespace for team in readable}
        assert listing["unchecked_namespaces"] == []
        assert listing["counts"]["Completed"] == len(readable)
        searched = await api.get("/api/v1/investigations?q=short", token)
        assert len(searched["items"]) == len(readable)
        sessions = await api.get("/api/v1/history/sessions", token)
        assert sessions["pagination"]["total_items"] == 3 * len(readable)
        warnings = await api.get("/api/v1/system/warnings", token)
        unreadable = {warning["name"] for warning in warnings["items"] if warning["kind"] == "log"}
        assert unreadable == {f"{team.namespace}/{team.word}-unreadable" for team in readable}
        listed = await api.get("/api/v1/system/chains", token)
        assert {chain["namespace"] for chain in listed["items"]} == {team.namespace for team in readable}
    of_both = f"?namespace={alpha.namespace}&namespace={beta.namespace}&limit=2&sort=name"
    first = await api.get(f"/api/v1/investigations{of_both}", editor)
    second = await api.get(f"/api/v1/investigations{of_both}&cursor={first['next']}", editor)
    both = [row["name"] for page in (first, second) for row in page["items"]]
    assert both == sorted(both)
    assert len(set(both)) == 4
    status, text = await api.ask("GET", f"/api/v1/investigations{of_both}", alpha.token)
    assert (status, f"in namespace {beta.namespace}" in text) == (403, True)
    page = (await api.ask("GET", "/", editor))[1]
    assert all(f"<option>{team.namespace}</option>" in page for team in (alpha, beta)), "to choose from"


async def test_budgets_show_the_ledgers_of_what_the_caller_may_read(
    api: API, admin: client.Cluster, editor: str
) -> None:
    """Each team may see the setup; a third caller sees one namespace's chains alone."""

    async def ledgers_seen(token: str) -> dict[str, list[str]]:
        view = await api.get("/api/v1/budgets", token)
        assert view["unchecked_namespaces"] == []
        return {budget["name"]: sorted(ledger["subject"] for ledger in budget["ledgers"]) for budget in view["budgets"]}

    def own(side: Team) -> dict[str, list[str]]:
        return {
            "namespaces": [side.namespace],
            "chains": [f"{side.namespace}/{side.word}-chain"],
            "investigations": [str(side.running)],
            "calls": [f"{side.running} google-default"],
        }

    alpha, beta = api.alpha, api.beta
    common = {"all": [""], "provider": ["google-default"]}
    of_beta = {
        f"of-{beta.namespace}": [beta.namespace],
        f"of-chain-of-{beta.namespace}": [],
    }
    assert await ledgers_seen(alpha.token) == {**common, **own(alpha)}
    assert await ledgers_seen(beta.token) == {**common, **own(beta), **of_beta}
    both = {name: sorted([*subjects, *own(beta)[name]]) for name, subjects in own(alpha).items()}
    assert await ledgers_seen(editor) == {**common, **both, **of_beta}
    token = await accounts.create(admin, "viewer", namespace=alpha.namespace, may={"agentchains": ["list"]})
    async with patience.limit():
        while (await api.ask("GET", "/api/v1/budgets", token))[0] == 403:
            pass  # the API server's own cache does not know it yet
    assert await ledgers_seen(token) == {**own(alpha), "investigations": [], "calls": []}


async def test_live_lists_have_the_events_of_the_namespaces_that_the_caller_may_list(
    api: API, database: databases.Database
) -> None:
    alpha, beta = api.alpha, api.beta
    url = f"{api.url}/api/v1/events"
    async with (
        api.session.get(url, headers=apis.bearer(alpha.token)) as response,
        watching.watching(api.url, headers=apis.bearer(alpha.token)) as watcher,
    ):
        for channel in ("investigations", "sessions"):
            assert (await watcher.answer(action="subscribe", channel=channel))["type"] == "subscription.confirmed"
        await watcher.ask(action="subscribe", channel=f"investigation:{beta.running}")
        assert (await watcher.next())["status"] == 404
        await watcher.ask(action="unsubscribe", channel="sessions")
        await watcher.until_type("unsubscription.confirmed")
        await watcher.ask(action="subscribe", channel="sessions", namespace=[alpha.namespace, beta.namespace])
        (refusal,) = await watcher.until_type("subscription.error")
        assert (refusal["status"], beta.namespace in refusal["reason"]) == (403, True)
        theirs, ours = await admit(database, beta.word, "later"), await admit(database, alpha.word, "later")
        for team in (beta, alpha):
            await move(database, team.namespace, team.uid, team.word)
        await queue.execute(database, "UPDATE work SET revision = revision + 1")
        stream = watching.Reader(response)
        for events in (watcher.next, stream.next):
            event: dict[str, Any] = {}
            while event.get("investigation") != str(ours):
                event = await events()
                assert event["investigation"] != str(theirs)
                assert (event["namespace"], event["name"].startswith(alpha.word)) == (alpha.namespace, True)


async def test_an_alert_is_submitted_into_a_namespace_of_its_sender(api: API, editor: str) -> None:
    alpha, beta = api.alpha, api.beta
    alert = {"alert_type": alpha.word, "data": "web-0 restarts"}
    posts = [
        (alpha.token, alpha.namespace, 202, "queued"),
        (alpha.token, beta.namespace, 403, f"may not create alertinvestigations in namespace {beta.namespace}"),
        (alpha.token, None, 403, "may not create alertinvestigations"),
        (editor, beta.namespace, 400, "No chain found for alert type"),
        (editor, "default", 403, "namespace default is not served"),
        (editor, "A b", 422, "no namespace has such a name"),
        ("the webhook's", alpha.namespace, 403, f"the token may not send alerts to namespace {alpha.namespace}"),
    ]
    for path in ("/api/v1/alerts", "/alerts"):
        for token, namespace, status, expected_text in posts:
            query = {"params": {"namespace": namespace}} if namespace else {}
            answered, text = await api.ask("POST", path, token, json=alert, **query)
            assert (answered, expected_text in text) == (status, True), text
    matched = await api.get(f"/api/v1/chain-match?alert_type={alpha.word}&namespace={alpha.namespace}", alpha.token)
    assert matched["chain_name"] == f"{alpha.word}-chain"
    form = (await api.ask("GET", f"/submit?alert_type={alpha.word}", alpha.token))[1]
    assert f'name="namespace" value="{alpha.namespace}"' in form
    assert f"{alpha.word}-chain" in form
    status, text = await api.ask("POST", f"/api/v1/investigations/{alpha.ended}/retry", alpha.token, json={})
    assert (status, json.loads(text)["namespace"]) == (202, alpha.namespace)

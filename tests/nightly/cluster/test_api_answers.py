"""Answers of an API server that come only at its worst, or by a clock that is not ours: here a fake one answers as a
test sets it.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support import answers
from tarsy.api.alerts import intake
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.controller import duties, investigations
from tarsy.kube import client, objects
from tarsy.resources import chains
from tarsy.resources import investigations as kind
from tarsy.store.base import databases
from tarsy.store.reads import summaries
from tarsy_dev import patience

PAGE = "<html>Sign in to the network.</html>"
NAMESPACE = "/api/v1/namespaces/tarsy"
EXPIRED = "The provided continue parameter is too old to display a consistent list result."


class Pages:
    """Lists of two pages, the second of which has expired in the first `expired` lists."""

    def __init__(self, *, expired: int) -> None:
        self.begun = 0
        self._expired = expired

    def __call__(self, request: web.Request) -> tuple[int, dict[str, Any]]:
        second = request.query.get("continue") == "second"
        self.begun += not second
        if second and self.begun <= self._expired:
            return answers.refusal(410, EXPIRED)
        manifest = {"metadata": {"name": "two" if second else "one", "uid": "2" if second else "1"}}
        return 200, {"metadata": {} if second else {"continue": "second"}, "items": [manifest]}


async def test_a_list_whose_pages_have_expired_is_begun_anew(tmp_path: Path) -> None:
    pages = Pages(expired=2)
    async with answers.answering(pages, folder=tmp_path) as cluster:
        listed = await objects.list_investigations(cluster, namespace="tarsy")
    assert ([metadata.name for metadata in listed], pages.begun) == (["one", "two"], 3)


async def test_a_list_whose_pages_always_expire_is_given_up(tmp_path: Path) -> None:
    pages = Pages(expired=100)
    async with answers.answering(pages, folder=tmp_path) as cluster:
        with pytest.raises(objects.RefusedError, match=f"410: {EXPIRED}"):
            await objects.list_investigations(cluster, namespace="tarsy")
    assert pages.begun == 3


async def test_a_duty_that_is_refused_is_logged_once_and_tried_again(
    tmp_path: Path, database: databases.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duties, "EVERY_SECONDS", 0.0)
    pages = Pages(expired=100)
    kube_system = {"metadata": {"name": "kube-system", "uid": "1"}}
    async with (
        patience.limit(),
        answers.answering(
            lambda asked: (200, kube_system) if "investig" not in asked.path else pages(asked), folder=tmp_path
        ) as cluster,
    ):
        index = functools.partial(chain_index.ChainIndex, platform=platforms.Platform(), unusable_providers={})
        reconciler = investigations.Reconciler(cluster=cluster, database=database, index=index, mask=str, workers=1)
        due = duties.Duties(
            cluster=cluster,
            database=database,
            reconciler=reconciler,
            owner=uuid.UUID(int=1),
            platform=platforms.Platform,
        )
        running = asyncio.create_task(due.run())
        while pages.begun <= 6:  # two passes have given up, and a third one has begun
            assert not running.done()
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert sum(EXPIRED in message for message in caplog.messages) == 1


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
async def test_an_api_server_that_does_not_serve_is_told_in_its_own_words(tmp_path: Path, code: int) -> None:
    async with answers.answering(lambda _: answers.refusal(code, "etcdserver: no leader"), folder=tmp_path) as cluster:
        with pytest.raises(client.ClusterDownError, match=f"answers {code}: etcdserver: no leader"):
            await objects.list_chains(cluster, namespace="tarsy")


async def test_an_answer_that_is_no_json_may_be_another_one_later(tmp_path: Path) -> None:
    async with answers.answering(lambda _: (200, PAGE), folder=tmp_path) as cluster:
        with pytest.raises(client.ClusterDownError, match=r"the answer to GET /apis/tarsy.dev/v1alpha1/.* is no JSON"):
            await objects.list_chains(cluster, namespace="tarsy")


async def test_chains_are_listed_once_for_all_who_ask_at_that_moment_and_indexed_when_they_have_changed(
    tmp_path: Path, database: databases.Database
) -> None:
    asked, indexed = 0, 0
    version = "1"

    def answer(request: web.Request) -> tuple[int, dict[str, Any]]:
        nonlocal asked
        if request.path == NAMESPACE:
            return 200, {"metadata": {"uid": "1"}}
        asked += 1
        stage = {"name": "a", "agent": "KubernetesAgent"}
        metadata = {"name": "one", "namespace": "tarsy", "uid": "1", "resourceVersion": version, "generation": 1}
        return 200, {"items": [{"metadata": metadata, "spec": {"alertTypes": [f"v{version}"], "stages": [stage]}}]}

    def index(
        all_chains: Iterable[chains.AgentChain], /, *, unusable_providers: Mapping[str, str], namespace: str, own: str
    ) -> chain_index.ChainIndex:
        nonlocal indexed
        indexed += 1
        return chain_index.ChainIndex(
            all_chains,
            platform=platforms.Platform(),
            unusable_providers=unusable_providers,
            namespace=namespace,
            own=own,
        )

    async with answers.answering(answer, folder=tmp_path) as cluster:
        chains = intake.ChainLister(cluster, database, index=index)
        first = await asyncio.gather(*(chains.list_for((), namespace="tarsy") for _ in range(20)))
        assert (asked, indexed, len({id(served.index) for served in first})) == (1, 1, 1)
        assert (await chains.list_for((), namespace="tarsy")).index is first[0].index, (
            "who asks later gets a list of his own"
        )
        assert (asked, indexed) == (2, 1)
        version = "2"
        changed = await chains.list_for((), namespace="tarsy")
        assert (asked, indexed) == (3, 2)
        assert changed.index is not first[0].index
        await chains.list_for({"nobody's"}, namespace="tarsy")
        assert asked == 5, "what the cache lacks is asked for again"
        waiting = [asyncio.create_task(chains.list_for((), namespace="tarsy")) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert (await waiting[1]).index is changed.index, "who gives up takes the list from nobody else"


async def test_the_wait_for_a_chain_does_not_depend_on_whose_clock_is_right(
    tmp_path: Path, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is an hour from the future, by our clock."""
    monkeypatch.setattr(investigations, "CHAIN_GRACE", 0.1)
    identity = uuid.uuid4()
    created = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    manifest = {
        "metadata": {"name": "web-crash", "namespace": "tarsy", "uid": str(identity), "creationTimestamp": created},
        "spec": {"alertType": "X", "alertData": "web-0 restarts"},
    }

    def answer(request: web.Request) -> tuple[int, dict[str, Any]]:
        if request.path == NAMESPACE:
            return 200, {"metadata": {"uid": "1"}}
        return 200, manifest if f"/{kind.PLURAL}/" in request.path else {"metadata": {}, "items": []}

    index = functools.partial(chain_index.ChainIndex, platform=platforms.Platform(), unusable_providers={})
    async with answers.answering(answer, folder=tmp_path) as cluster, patience.limit():
        reconciler = investigations.Reconciler(cluster=cluster, database=database, index=index, mask=str, workers=1)
        running = asyncio.create_task(reconciler.run())
        reconciler.add(investigations.Key(namespace="tarsy", name="web-crash", uid=str(identity)))
        while (ended := await summaries.load(database, identity)) is None:
            pass  # the read itself gives way to the others
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert ended.reason == "ChainNotFound"

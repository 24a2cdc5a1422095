"""`GET /api/v1/investigations`, asked from outside: a page, the next one, and parameters that are mistakes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support import apis, queue
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.intake import queueing

NAMES = ["a", "b", "c"]
Parameters = list[tuple[str, str]]


class API:
    """The API, asked for lists."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def list(self, *parameters: tuple[str, str]) -> Any:
        """A page, which there is."""
        status, page = await self.ask(parameters)
        assert status == 200, page
        return page

    async def ask(self, parameters: Any) -> tuple[int, Any]:
        async with self._session.get("/api/v1/investigations", params=parameters) as response:
            return response.status, await response.json(content_type=None)


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[API]:
    """An API whose namespace has three investigations, and one that a namespace of the same name had before."""
    for name in (*NAMES, "old"):
        made = queue.admission(queue.subject(name, alertType="kubernetes", author="ann"))
        assert await queueing.admit(database, made)
    moved = "UPDATE investigations SET namespace = :namespace, namespace_uid = CASE WHEN name = 'old' THEN 'old' END"
    await queue.execute(database, moved, namespace=cluster.served.own)
    async with apis.served(apis.parts(cluster=cluster, database=database)) as session:
        yield API(session)


REFUSED: list[tuple[Parameters, str]] = [
    ([("phase", "Done")], "query.phase.0: give 'Queued', 'Running', 'Waiting', 'Suspended', 'Cancelling'"),
    ([("sort", "age")], "query.sort: give '-admitted_at', 'admitted_at', '-ended_at'"),
    ([("limit", "0")], "query.limit: give 1 or more"),
    ([("limit", "101")], "query.limit: give 100 or less"),
    ([("limit", "ten")], "query.limit: give a whole number"),
    ([("limit", "9" * 5000)], "query.limit: give a smaller number"),
    ([("since", "yesterday")], "query.since: give a time of RFC 3339 with its zone, such as 2"),
    ([("since", "2026-01-01T00:00:00")], "query.since: give a time of RFC 3339 with its zone"),
    ([("until", "0001-01-01T00:00:00+14:00")], "query.until: give a time between the years 1 and 9999"),
    *(
        ([("q", nothing)], "query.q: give a word to search for, of letters or digits")
        for nothing in ("...", '"-"', "²")
    ),
    ([("q", "x" * 257)], "query.q: give 256 characters at most"),
    ([("grounded", "yes")], "query.grounded: give true or false"),
    ([("grounded", "1")], "query.grounded: give true or false"),
    ([("cursor", "x")], "query.cursor: this is not a cursor"),
    ([("cursor", "x" * 8193)], "query.cursor: give 8192 characters at most"),
    *(
        ([(name, value)], f"query.{name}: give ")
        for name in ("alert_type", "chain", "author", "fingerprint", "q", "cursor")
        for value in ("", "a\0b")
    ),
]


async def test_lists_are_paged_and_bad_parameters_are_refused_with_allowed_values(api: API) -> None:
    first = await api.list(("limit", "2"))
    assert [listed["name"] for listed in first["items"]] == ["c", "b"]
    assert first["counts"]["Queued"] == 3
    assert (first["items"][0]["phase"], first["items"][0]["seconds"]) == ("Queued", None)
    second = await api.list(("limit", "5"), ("cursor", first["next"]))
    assert ([listed["name"] for listed in second["items"]], second["next"]) == (["a"], None)
    fits = [
        *(("phase", "Queued"), ("phase", "Running"), ("alert_type", "kubernetes"), ("author", "ann"), ("sort", "name")),
        *(("chain", "pod-crash"), ("since", first["items"][1]["admitted_at"]), ("q", 'web "0 restarts"')),
    ]
    assert [listed["name"] for listed in (await api.list(*fits))["items"]] == ["b", "c"]
    assert (await api.list(("phase", "Failed")))["items"] == []
    for grounded in ("true", "false"):
        assert (await api.list(("grounded", grounded)))["items"] == [], "they have no result"
    assert {listed["grounded"] for listed in first["items"]} == {None}
    status, problem = await api.ask([("cursor", first["next"]), ("author", "ann")])
    assert (status, "it belongs to another query" in problem["detail"]) == (422, True)
    for parameters, detail in REFUSED:
        status, problem = await api.ask(parameters)
        assert (status, problem["detail"].startswith(detail)) == (422, True), (parameters, problem)
    for odd in ("\ufffd", "\U0001f4a5", "' OR 1=1 --", "%00", "\\"):
        for name in ("alert_type", "chain", "author", "fingerprint"):
            assert (await api.list((name, odd)))["items"] == []

"""Answers of the API to questions, with a cluster and a database, and without either."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import apis, kubeconfigs, manifests, queue, stories
from support.masking import NO_SECRETS
from tarsy.api.investigations import questions
from tarsy.config.model import platforms
from tarsy.ingest import question as payloads
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.transcript import admission, entries
from tarsy_dev.controlplane import Administrator

JSON = {"Content-Type": "application/json"}
NOBODY = "postgresql://postgres@127.0.0.1:1/postgres"
FULL = 3


class API:
    """The API, asked from outside."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(
        self, method: str, path: str, body: bytes | None = None, *, token: str | None = None
    ) -> tuple[int, Any]:
        headers = JSON | ({"Authorization": f"Bearer {token}"} if token else {})
        async with self._session.request(
            method, f"/api/v1/investigations/{path}", data=io.BytesIO(body or b""), headers=headers
        ) as response:
            kind = "application/problem+json" if response.status >= 400 else "application/json"
            assert response.content_type == kind
            return response.status, await response.json(content_type=None)

    async def ask(self, identity: UUID | str, question: str = "Why?") -> tuple[int, Any]:
        return await self.send("POST", f"{identity}/chat", json.dumps({"question": question}).encode())

    async def refused(self, identity: UUID | str) -> tuple[int, str]:
        status, problem = await self.ask(identity)
        return status, problem["detail"]

    async def cancel(self, identity: UUID | str) -> tuple[int, Any]:
        return await self.send("POST", f"{identity}/chat/cancel")


Serve = Callable[[client.Cluster, databases.Database], Awaitable[API]]


@pytest.fixture
async def serve(editor: str) -> AsyncIterator[Serve]:
    """Serve the API on a cluster and a database, to a caller with all rights."""
    async with contextlib.AsyncExitStack() as stack:

        async def serving(cluster: client.Cluster, database: databases.Database) -> API:
            parts = apis.parts(
                cluster=cluster,
                database=database,
                token="the token",
                max_queued=FULL,
                mask=lambda text: platforms.AlertMasking().masker(NO_SECRETS).text(text),
            )
            return API(await stack.enter_async_context(apis.served(parts, headers=apis.bearer(editor))))

        yield serving


@pytest.fixture
async def api(serve: Serve, cluster: client.Cluster, database: databases.Database) -> API:
    return await serve(cluster, database)


class World:
    """Investigations of the test's namespace, in cluster and store."""

    def __init__(self, plane: Administrator, cluster: client.Cluster, database: databases.Database) -> None:
        self._plane = plane
        self._namespace = cluster.served.own
        self._database = database

    async def ended(self, name: str = "web-crash", ending: entries.Ending = "Completed") -> UUID:
        identity = await self.admitted(name)
        writing = await queue.opened(self._database, await queue.claimed(self._database))
        await writing.commit(stories.run_ended(ending, final_analysis="root cause"))
        return identity

    async def admitted(self, name: str = "web-crash", chain: Any = queue.CHAIN) -> UUID:
        made = await asyncio.to_thread(self._plane.create, manifests.investigation(name), namespace=self._namespace)
        metadata = {"namespace": self._namespace, "name": name, "uid": made["metadata"]["uid"]}
        subject = queue.subject(name)
        changed_subject = subject.model_copy(update={"metadata": subject.metadata.model_copy(update=metadata)})
        return await queue.admit(self._database, changed_subject, chain=chain)

    async def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        return await asyncio.to_thread(self._plane.kubectl, *args, input=input, namespace=self._namespace)


@pytest.fixture
def world(plane: Administrator, cluster: client.Cluster, database: databases.Database) -> World:
    return World(plane, cluster, database)


async def test_question_is_masked_queued_and_listed_with_the_runs(
    api: API, world: World, cluster: client.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    identity = await world.ended()
    with caplog.at_level("INFO"):
        status, asked = await api.ask(identity, "Is password=hunter2-Xy9 wrong? \x00\ud83d")
    named = {"id": str(identity), "namespace": cluster.served.own, "name": "web-crash"}
    assert (status, asked) == (202, named | {"run": 1})
    (line,) = [record for record in caplog.records if record.__dict__.get("action") == "asked"]
    assert (line.__dict__["uid"], line.__dict__["run"]) == (str(identity), 1)
    _, investigation = await api.send("GET", str(identity))
    first, question = investigation["runs"]
    assert (first["number"], first["kind"], first["question"], first["ending"]) == (0, "investigation", "", "Completed")
    assert first["final_analysis"] == "root cause"
    assert (question["number"], question["kind"], question["ending"], question["ended_at"]) == (1, "chat", None, None)
    assert "hunter2" not in question["question"]
    assert question["question"].startswith("Is password=")
    assert question["question"].endswith("\ufffd\ufffd")
    assert (investigation["phase"], investigation["state"]) == ("Completed", "ended")


async def test_only_one_of_several_concurrent_questions_is_accepted(api: API, world: World) -> None:
    identity = await world.ended()
    answers = await asyncio.gather(*(api.ask(identity) for _ in range(12)))
    assert sorted(status for status, _ in answers) == [202, *[409] * 11]
    assert await api.refused(identity) == (409, "another question about it is open: wait for its answer")


async def test_reasons_for_refusing_a_question_are_distinguished(
    api: API, world: World, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = uuid.uuid4()
    unknown = (404, f"there is no investigation with id {nobody}")
    assert await api.refused(nobody) == unknown
    assert (await api.ask("x"))[0] == 404
    open_one = await world.admitted("open")
    assert await api.refused(open_one) == (409, "it has not ended yet: ask after its end")
    await work.cancel(database, open_one, why="user")
    assert (await api.ask(open_one))[0] == 202, "whatever its end was"
    refused = await world.admitted("refused", admission.Refusal(reason="ChainNotFound", message="No chain"))
    assert await api.refused(refused) == (409, "it was refused and never ran: see its message")
    monkeypatch.setattr(type(queue.CHAIN.spec), "takes_questions", False)
    closed = (403, "chain 'pod-crash' takes no questions (spec.chat.enabled: false)")
    assert await api.refused(open_one) == closed


async def test_invalid_question_is_refused(api: API, world: World, database: databases.Database) -> None:
    identity = await world.ended()
    bodies: list[tuple[int, bytes, str]] = [
        (400, b"{", "the body is not JSON"),
        (422, b"[]", "the body: "),
        (422, b"{}", "question: it is missing"),
        (422, b'{"question": ""}', "question: give 1 character(s) or more"),
        (422, b'{"question": " \\n"}', "question: it is blank: say what you want to know"),
        (422, b'{"question": 1}', "question: give a text"),
        (422, b'{"question": "Why?", "agent": "x"}', "agent: unknown field; the fields are question"),
        (422, json.dumps({"question": "a" * 100_001}).encode(), "question: give 100000 characters at most"),
        (413, b" " * (questions.BODY_MAX + 1), "a question has at most 100000 characters"),
    ]
    for expected, body, refusal in bodies:
        status, problem = await api.send("POST", f"{identity}/chat", body)
        assert (status, problem["detail"][: len(refusal)]) == (expected, refusal)
    assert await queue.rows(database, "SELECT count(*) FROM runs") == [(1,)]
    longest = json.dumps({"question": "\U0001f525" * payloads.CHARACTERS_MAX}).encode()
    assert (await api.send("POST", f"{identity}/chat", longest))[0] == 202


async def test_a_question_is_cancelled_while_it_is_open_and_not_before_or_after(api: API, world: World) -> None:
    nobody = uuid.uuid4()
    assert (await api.cancel(nobody))[0] == 404
    identity = await world.ended()
    status, problem = await api.cancel(identity)
    assert (status, problem["detail"]) == (409, "no question about it is open")
    _, asked = await api.ask(identity)
    assert await api.cancel(identity) == (202, asked | {"phase": "Cancelled"})
    assert (await api.cancel(identity))[0] == 409
    _, investigation = await api.send("GET", str(identity))
    question = investigation["runs"][1]
    assert (question["ending"], question["reason"], question["message"]) == (
        "Cancelled",
        "CancelledByUser",
        "cancelled by request",
    )
    assert (investigation["phase"], investigation["cancel"]) == ("Completed", None)


async def test_question_about_a_deleted_or_recreated_object_is_refused(
    api: API, world: World, database: databases.Database
) -> None:
    gone = (410, "its object was deleted: no question about it is possible")
    identity = await world.ended()
    await world.kubectl("delete", "inv", "web-crash")
    assert await api.refused(identity) == gone, "asked of the cluster: nobody has told the store"
    assert await queue.rows(database, "SELECT gone_at IS NOT NULL FROM investigations") == [(True,)]
    again = await world.ended()
    assert await api.refused(identity) == gone
    assert (await api.ask(again))[0] == 202


async def test_a_full_queue_takes_no_question(api: API, world: World) -> None:
    identity = await world.ended()
    for number in range(FULL):
        await world.admitted(f"waits-{number}")
    assert await api.refused(identity) == (503, f"{FULL} investigations are queued already; try again")


async def test_question_without_the_cluster_or_the_database_is_to_be_asked_again(
    serve: Serve, world: World, database: databases.Database, cluster: client.Cluster, tmp_path: Path
) -> None:
    identity = await world.ended()
    nowhere = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    down = databases.Database(NOBODY)
    try:
        for api, refusal in (
            (await serve(nowhere, database), "the owner of the token cannot be looked up now: try again. "),
            (await serve(cluster, down), "cannot connect to the database"),
        ):
            status, detail = await api.refused(identity)
            assert (status, detail[: len(refusal)], "try again" in detail) == (503, refusal, True)
        assert (await api.cancel(identity))[0] == 503
    finally:
        await nowhere.close()
        await down.close()
    assert await queue.rows(database, "SELECT count(*) FROM runs") == [(1,)]

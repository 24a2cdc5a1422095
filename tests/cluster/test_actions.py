"""Cancel and purge over HTTP, on a real API server and Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import accounts, apis, kubeconfigs, manifests, queue, stories
from tarsy.config.check import chain_index
from tarsy.controller import duties, investigations
from tarsy.kube import client, objects
from tarsy.masking import masker
from tarsy.store.base import audit, databases
from tarsy.store.operations import purge
from tarsy.store.queue import questions, work
from tarsy_dev.controlplane import Administrator

WEBHOOK = "the token"
FINGERPRINT = "6eb8c03418906421"
START = datetime(2026, 11, 21, 20, 26, 18, tzinfo=UTC)


class API:
    """The API, asked from outside."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, body: Any = None
    ) -> tuple[int, Any]:
        """Status, and the answer's JSON or the problem's detail."""
        url = f"/api/v1/investigations{'' if path.startswith('?') else '/'}{path}".removesuffix("/")
        async with self._session.request(method, url, headers=headers, json=body) as response:
            if response.status == 204:
                assert await response.read() == b""
                return 204, None
            answer = await response.json(content_type=None)
            problem = response.content_type == "application/problem+json"
            assert problem == (response.status >= 400)
            return response.status, answer["detail"] if problem else answer

    async def cancel(self, identity: UUID | str) -> tuple[int, Any]:
        return await self.send("POST", f"{identity}/cancel")

    async def purge(self, identity: UUID | str) -> tuple[int, Any]:
        return await self.send("DELETE", f"{identity}?purge=true")


Serve = Callable[..., Awaitable[API]]


@pytest.fixture
async def serve(editor: str) -> AsyncIterator[Serve]:
    """Serve the API on a cluster and a database, to a caller with all rights."""
    async with contextlib.AsyncExitStack() as stack:

        async def serving(
            cluster: client.Cluster,
            database: databases.Database,
            *,
            token: str | None = WEBHOOK,
            mask: Callable[[str], str] = str,
        ) -> API:
            parts = apis.parts(cluster=cluster, database=database, token=token, mask=mask)
            headers = {**apis.bearer(editor), "Content-Type": "application/json"}
            return API(await stack.enter_async_context(apis.served(parts, headers=headers)))

        yield serving


@pytest.fixture
async def api(serve: Serve, cluster: client.Cluster, database: databases.Database) -> API:
    return await serve(cluster, database)


class World:
    """Investigations of the test's namespace, in cluster and store."""

    def __init__(self, plane: Administrator, cluster: client.Cluster, database: databases.Database) -> None:
        self._plane = plane
        self._cluster = cluster
        self._database = database
        self._reconciler = investigations.Reconciler(
            cluster=cluster,
            database=database,
            index=lambda _, unusable_providers, **_arguments: chain_index.ChainIndex(
                [queue.CHAIN],
                platform=queue.PLATFORM,
                unusable_providers=unusable_providers,
                namespace="tarsy",
                own="tarsy",
            ),
            mask=str,
            workers=1,
        )

    async def admitted(self, name: str = "web-crash", **spec: Any) -> UUID:
        """An object as intake makes it, which waits."""
        subject = queue.subject(name, fingerprint=FINGERPRINT, startsAt=START, **spec)
        metadata = {"namespace": self._cluster.served.own, "name": name}
        subject = subject.model_copy(update={"metadata": subject.metadata.model_copy(update=metadata)})
        received = await queue.received(self._database, subject)
        made = received.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        uid = await self.made(name, **made)
        at_last = received.metadata.model_copy(update={"uid": uid})
        return await queue.admit(self._database, received.model_copy(update={"metadata": at_last}))

    async def ended(self, name: str = "web-crash") -> UUID:
        identity = await self.admitted(name)
        writing = await queue.opened(self._database, await queue.claimed(self._database))
        await writing.commit(stories.run_ended(final_analysis="root cause"))
        return identity

    async def made(self, name: str = "web-crash", **spec: Any) -> str:
        """An object of that name; its uid."""
        manifest, namespace = manifests.investigation(name, **spec), self._cluster.served.own
        made = await asyncio.to_thread(self._plane.create, manifest, namespace=namespace)
        return str(made["metadata"]["uid"])

    async def uid(self, name: str = "web-crash") -> str | None:
        """That of the object of that name."""
        return await objects.get_investigation_uid(self._cluster, namespace=self._cluster.served.own, name=name)

    async def watched(self, identity: UUID, name: str = "web-crash") -> None:
        """Reconcile the object, as the watch does after any event of it."""
        await self._reconciler.reconcile(
            investigations.Key(namespace=self._cluster.served.own, name=name, uid=str(identity))
        )

    async def kept_up(self) -> None:
        """One pass of who has the duties."""
        await duties.Duties(
            cluster=self._cluster,
            database=self._database,
            reconciler=self._reconciler,
            owner=uuid.uuid4(),
            platform=lambda: queue.PLATFORM,
        )._expire()

    async def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        return await asyncio.to_thread(self._plane.kubectl, *args, input=input, namespace=self._cluster.served.own)

    async def audited(self) -> list[tuple[str, str, str, str]]:
        """Return the audited requests to the API, except creations, in order."""
        query = "SELECT action, who, address, name FROM audit WHERE action <> 'create' ORDER BY at"
        return [(action, who, address, name) for action, who, address, name in await queue.rows(self._database, query)]


@pytest.fixture
def world(plane: Administrator, cluster: client.Cluster, database: databases.Database) -> World:
    return World(plane, cluster, database)


def done(action: str, name: str = "web-crash") -> tuple[str, str, str, str]:
    return action, accounts.EDITORS_NAME, "127.0.0.1", name


async def test_a_cancel_is_answered_by_what_it_finds(
    api: API, world: World, database: databases.Database, cluster: client.Cluster
) -> None:
    running = await world.admitted()
    assert (await queue.claimed(database)).investigation == running
    for _ in range(2):
        named = {"id": str(running), "namespace": cluster.served.own, "name": "web-crash"}
        assert await api.cancel(running) == (202, named | {"phase": "Cancelling"})
    waiting = UUID(str(await world.made("waiting")))
    await world.watched(waiting, "waiting")
    named = {"id": str(waiting), "namespace": cluster.served.own, "name": "waiting"}
    assert await api.cancel(waiting) == (202, named | {"phase": "Cancelled"})
    ended = (409, "it has ended already: Cancelled")
    assert await api.cancel(waiting) == ended
    assert await questions.ask(database, waiting, "Why?", max_queued=9, by=queue.CALLER) == 1
    assert await api.cancel(waiting) == ended
    assert (await queue.rows(database, "SELECT run, state FROM work WHERE cancel IS NULL")) == [(1, "queued")]
    nobody = uuid.uuid4()
    assert await api.cancel(nobody) == (404, f"there is no investigation with id {nobody}")
    assert (await api.cancel("x"))[0] == 404
    audit_rows = await world.audited()
    assert audit_rows[:2] == [done("cancel"), done("cancel", "waiting")]
    assert [action for action, *_ in audit_rows[2:]] == ["chat"]


async def test_purge_deletes_the_object_and_the_transcript(
    api: API, world: World, database: databases.Database, cluster: client.Cluster
) -> None:
    identity = await world.ended()
    assert await api.send("DELETE", f"{identity}?purge=maybe") == (422, "query.purge: give true or false")
    assert (await api.send("GET", str(identity)))[1]["final_analysis"] == "root cause"
    assert await world.uid() == str(identity)

    assert await api.purge(identity) == (204, None)
    assert await world.uid() is None
    unknown = (404, f"there is no investigation with id {identity}")
    for path in (str(identity), f"{identity}/timeline"):
        assert await api.send("GET", path) == unknown
    for path in ("cancel", "chat", "chat/cancel"):
        assert await api.send("POST", f"{identity}/{path}") == unknown
    assert await api.purge(identity) == unknown
    await world.watched(identity)
    assert await world.audited() == [done("purge")]
    again = await queue.repeat(database, namespace=cluster.served.own, fingerprint=FINGERPRINT, starts_at=START)
    assert again == identity
    assert await work.stale(database, limit=9) == []


async def test_deleted_investigation_is_restored_without_object_and_holds_prevent_deletion(
    api: API, world: World, cluster: client.Cluster
) -> None:
    identity = await world.ended()
    unknown = (404, f"there is no investigation with id {identity}")
    for _ in range(2):
        assert await api.send("DELETE", str(identity)) == (204, None)
    assert await world.uid() is None
    for method, path in (("GET", ""), ("GET", "/timeline"), ("POST", "/cancel"), ("POST", "/chat")):
        assert await api.send(method, f"{identity}{path}") == unknown
    assert (await api.send("GET", ""))[1]["items"] == []
    state: dict[str, str | None] = {"id": str(identity), "namespace": cluster.served.own, "name": "web-crash"}
    state |= {"deleted_at": None, "purge_at": None, "hold": None}
    for _ in range(2):
        assert await api.send("POST", f"{identity}/restore") == (200, state)
    assert (await api.send("GET", str(identity)))[1]["final_analysis"] == "root cause"
    assert await world.uid() is None
    assert (await api.send("POST", f"{identity}/chat", body={"question": "Why?"}))[0] == 410

    hold = f"{identity}/hold"
    for body, problem in (({}, "reason"), ({"reason": " "}, "reason"), ({"reason": "x", "until": "y"}, "until")):
        status, detail = await api.send("POST", hold, body=body)
        assert (status, problem in detail) == (422, True)
    assert await api.send("POST", hold, body={"reason": "incident 4711"}) == (200, state | {"hold": "incident 4711"})
    assert (await api.send("GET", str(identity)))[1]["hold"] == "incident 4711"
    for query in ("", "?purge=true"):
        status, detail = await api.send("DELETE", f"{identity}{query}")
        assert (status, detail) == (409, "it is held: incident 4711 (DELETE .../hold ends the hold)")
    assert await api.send("DELETE", hold) == (200, state)
    assert await api.purge(identity) == (204, None)
    for method, path in (("DELETE", ""), ("POST", "/restore"), ("DELETE", "/hold")):
        assert await api.send(method, f"{identity}{path}") == unknown
    actions = ["delete", "restore", "hold", "release", "purge"]
    assert [action for action, *_ in await world.audited()] == actions


async def test_people_with_the_right_say_whether_an_investigation_was_right_each_in_their_own_name(
    serve: Serve, world: World, cluster: client.Cluster, admin: client.Cluster, database: databases.Database
) -> None:
    api = await serve(cluster, database, mask=masker.Masker(groups=["security"]).text)
    identity = await world.ended()
    running = await world.made("running")
    await world.watched(UUID(running), "running")
    too_early = (409, "it has not ended yet: give feedback after its end")
    assert await api.send("POST", f"{running}/feedback", body={"verdict": "wrong"}) == too_early
    path = f"{identity}/feedback"
    for body, field in (
        ({}, "verdict"),
        ({"verdict": "perhaps"}, "verdict"),
        ({"verdict": "wrong", "cause": "x" * 1001}, "cause"),
        ({"verdict": "wrong", "note": "x" * 4001}, "note"),
        ({"verdict": "wrong", "author": "somebody"}, "author"),
    ):
        status, detail = await api.send("POST", path, body=body)
        assert (status, field in detail) == (422, True), detail

    secret = "sk-ant-api03-" + "Ab1-" * 24
    escaped = {"verdict": "wrong", "cause": "\u00e9" * 1000, "note": f"disk\x00 {secret}"}
    status, feedback = await api.send("POST", path, body=escaped)
    assert (status, feedback["author"], feedback["cause"]) == (200, accounts.EDITORS_NAME, "\u00e9" * 1000)
    assert feedback["note"].startswith("disk\ufffd [MASKED:")
    may = {"alertinvestigations": ["get"], "alertinvestigations/feedback": ["create"]}
    judge = apis.bearer(await accounts.create(admin, "judge", may=may))
    assert (await api.send("POST", path, headers=judge, body={"verdict": "correct"}))[0] == 200
    reader = apis.bearer(await accounts.create(admin, "reader", may={"alertinvestigations": accounts.EVERYTHING}))
    missing = f"may not create alertinvestigations/feedback in namespace {cluster.served.own}"
    for method, verdict in (("POST", {"verdict": "wrong"}), ("DELETE", None)):
        status, detail = await api.send(method, path, headers=reader, body=verdict)
        assert (status, detail.endswith(missing)) == (403, True)

    row = (await api.send("GET", "?feedback=wrong"))[1]["items"][0]
    detail_view = (await api.send("GET", str(identity), headers=reader))[1]
    assert row["feedback"] == detail_view["feedback"] == {"correct": 1, "partly": 0, "wrong": 1}
    names = [f"system:serviceaccount:{cluster.served.own}:judge", accounts.EDITORS_NAME]
    assert [feedback_entry["author"] for feedback_entry in detail_view["feedback_by_person"]] == names
    assert [listed["name"] for listed in (await api.send("GET", "?feedback=none"))[1]["items"]] == ["running"]
    for _ in range(2):
        assert await api.send("DELETE", path) == (204, None)
    assert (await api.send("GET", "?feedback=wrong"))[1]["items"] == []
    exported = (await api.send("GET", f"{identity}/export?format=json"))[1]
    assert [feedback_entry["verdict"] for feedback_entry in exported["feedback_by_person"]] == ["correct"]
    assert secret not in str(await queue.rows(database, "SELECT CAST(audit AS text) FROM audit"))
    actions = [(action, who) for action, who, *_ in await world.audited() if action.startswith("feedback")]
    assert actions == [("feedback", names[1]), ("feedback", names[0]), ("feedback/withdraw", names[1])]


async def test_a_purge_leaves_another_object_of_the_name_alone_and_needs_none(api: API, world: World) -> None:
    identity = await world.ended()
    await world.kubectl("delete", "inv", "web-crash")
    other = await world.made()
    assert (await api.purge(identity))[0] == 204
    assert await world.uid() == other


async def test_purged_object_kept_by_a_finalizer_is_not_admitted_again(
    api: API, world: World, database: databases.Database
) -> None:
    identity = await world.ended()
    finalizer = '{"metadata": {"finalizers": ["example.com/kept"]}}'
    await world.kubectl("patch", "inv", "web-crash", "--type=merge", "--patch", finalizer)
    assert (await api.purge(identity))[0] == 204
    assert await world.uid() == str(identity)
    await world.watched(identity)
    assert await work.stale(database, limit=9) == []
    assert (await api.send("GET", str(identity)))[0] == 404
    await world.kubectl("patch", "inv", "web-crash", "--type=merge", '--patch={"metadata": {"finalizers": []}}')
    assert await world.uid() is None


@pytest.mark.parametrize("is_left", [True, False], ids=["with its object", "without"])
@pytest.mark.parametrize("finishes", ["a repeat", "retention"])
async def test_interrupted_purge_is_finished_by_repeated_request_or_duty_process(
    api: API, world: World, database: databases.Database, finishes: str, *, is_left: bool
) -> None:
    identity = await world.ended()
    by = audit.Caller(who=accounts.EDITORS_NAME, address="127.0.0.1")
    assert await purge.purge(database, identity, by=by) is None
    if not is_left:
        await world.kubectl("delete", "inv", "web-crash")
    unknown = (404, f"there is no investigation with id {identity}")
    for path in ("", "/timeline"):
        assert await api.send("GET", f"{identity}{path}") == unknown
    for path in ("cancel", "chat", "chat/cancel"):
        assert await api.send("POST", f"{identity}/{path}") == unknown
    await world.watched(identity)
    if finishes == "retention":
        await world.kept_up()
    elif is_left:
        assert await api.purge(identity) == (204, None)
    assert await world.uid() is None
    assert await api.purge(identity) == unknown
    assert await world.audited() == [done("purge")]


async def test_purge_without_the_api_server_is_to_be_finished_later(
    serve: Serve, world: World, database: databases.Database, cluster: client.Cluster, tmp_path: Path
) -> None:
    identity = await world.ended()
    nowhere = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    try:
        status, detail = await (await serve(nowhere, database, token=None)).purge(identity)
        assert (status, detail[:31], detail[-11:]) == (503, "the API server cannot be reache", "; try again")
    finally:
        await nowhere.close()
    assert await world.uid() == str(identity)
    assert (await (await serve(cluster, database)).purge(identity))[0] == 204
    assert await world.uid() is None
    assert [action for action, *_ in await world.audited()] == ["purge"]

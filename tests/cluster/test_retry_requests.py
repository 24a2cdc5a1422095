"""Requests to run an investigation again, with a real API server: what is created, and what is refused."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import accounts, apis, manifests, queue, stories
from tarsy.config.check import chain_index
from tarsy.controller import investigations
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.transcript import entries
from tarsy_dev.controlplane import Administrator

STAGES = ("collect", "analysis")
FULL = 3


class World:
    """The API, and investigations of the test's namespace in cluster and store."""

    def __init__(
        self,
        plane: Administrator,
        cluster: client.Cluster,
        database: databases.Database,
        session: aiohttp.ClientSession,
    ) -> None:
        self._plane = plane
        self.namespace = cluster.served.own
        self.database = database
        self._cluster = cluster
        self._session = session

    async def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        return await asyncio.to_thread(self._plane.kubectl, *args, input=input, namespace=self.namespace)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self._plane.create, manifest, namespace=self.namespace)

    async def chain(self) -> None:
        await self.create(manifests.chain(name="pod-crash", stages=[manifests.stage(name) for name in STAGES]))

    async def admitted(self, name: str = "web-crash", **spec: Any) -> UUID:
        made = await self.create(manifests.investigation(name, **spec))
        metadata = {"namespace": self.namespace, "name": name, "uid": made["metadata"]["uid"]}
        subject = queue.subject(name, **spec)
        subject = subject.model_copy(update={"metadata": subject.metadata.model_copy(update=metadata)})
        chain = queue.chain(stages=[manifests.stage(name) for name in STAGES])
        return await queue.admit(self.database, subject, chain=chain)

    async def ended(
        self, name: str = "web-crash", *, ending: entries.Ending = "CompletedWithErrors", **spec: Any
    ) -> UUID:
        identity = await self.admitted(name, **spec)
        journal = await queue.opened(self.database, await queue.claimed(self.database))
        for stage, outcome in zip(STAGES, ("Completed", "Failed"), strict=True):
            execution = f"{identity} {stage}"
            await journal.commit(
                stories.stage_started(stage),
                stories.started(execution, stage=stage),
                stories.answers(f"{stage} done", execution=execution),
                stories.ended(execution, outcome),  # type: ignore[arg-type]
                stories.stage_ended(stage, outcome),  # type: ignore[arg-type]
            )
        await journal.commit(stories.run_ended(ending, "StagesFailed"))
        return identity

    async def retry(
        self, identity: UUID | str, body: Any = None, *, key: str | None = None, token: str | None = None
    ) -> tuple[int, Any]:
        """Status, and the answer's JSON or the problem's detail."""
        headers = {"Idempotency-Key": key} if key else {}
        headers |= apis.bearer(token) if token else {}
        sent = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        path = f"/api/v1/investigations/{identity}/retry"
        async with self._session.post(path, data=sent, headers=headers) as response:
            answer = await response.json(content_type=None)
            return response.status, answer["detail"] if response.status >= 400 else answer

    async def read(self, identity: UUID | str) -> Any:
        async with self._session.get(f"/api/v1/investigations/{identity}") as response:
            assert response.status == 200
            return await response.json()

    async def object(self, name: str) -> Any:
        return json.loads(await self.kubectl("get", "inv", name, "-o", "json"))

    async def names(self) -> set[str]:
        return {
            listed["metadata"]["name"] for listed in json.loads(await self.kubectl("get", "inv", "-o", "json"))["items"]
        }


@pytest.fixture
async def world(
    plane: Administrator, cluster: client.Cluster, database: databases.Database, editor: str
) -> AsyncIterator[World]:
    parts = apis.parts(cluster=cluster, database=database, token="the token", max_queued=FULL)
    headers = {**apis.bearer(editor), "Content-Type": "application/json"}
    async with apis.served(parts, headers=headers) as session:
        yield World(plane, cluster, database, session)


async def test_retry_creates_an_object_with_the_alert_of_the_original(world: World) -> None:
    alert: dict[str, Any] = {
        "severity": "critical",
        "labels": {"alertname": "DiskFull", "namespace": "shop", "pod": "web-0"},
        "runbookURL": "https://wiki.example/disk",
        "mcp": {"servers": []},
    }
    first = await world.ended(**alert)
    status, answer = await world.retry(first, {"fromStage": "analysis"})
    assert status == 202
    assert answer["retry_of"] == {"id": str(first), "name": "web-crash", "from_stage": "analysis"}
    assert answer["name"].startswith("web-crash-retry-")
    made = await world.object(answer["name"])
    assert made["metadata"]["uid"] == answer["id"]
    assert {name: made["spec"][name] for name in ("severity", "runbookURL", "mcp", "labels")} == alert
    assert made["spec"]["alertData"] == "web-0 restarts"
    assert made["spec"]["author"] == accounts.EDITORS_NAME
    assert made["spec"]["retryOf"] == {"name": "web-crash", "uid": str(first), "fromStage": "analysis"}
    assert made["metadata"]["labels"]["tarsy.dev/severity"] == "critical"
    retry = await world.read(answer["id"])
    assert (retry["phase"], retry["progress"], retry["total_tokens"]) == ("Queued", "1/2", 0)
    assert [stage["copied"] for stage in retry["stage_progress"]] == [True, False]


async def test_retry_of_large_alert_data_has_all_of_it(world: World) -> None:
    large = "web-0 restarts " * 4000
    first = await world.ended(alertData=large)
    status, answer = await world.retry(first)
    assert status == 202
    assert "alertDataRef" in (await world.object(answer["name"]))["spec"]
    assert (await world.read(answer["id"]))["alert_data"] == large


async def test_present_chain_is_taken_by_its_name(world: World) -> None:
    first = await world.ended()
    status, problem = await world.retry(first, {"chain": "current"})
    assert (status, problem) == (409, "No chain is named 'pod-crash'. Available chains: none")
    await world.chain()
    status, answer = await world.retry(first, {"chain": "current"})
    assert status == 202, answer
    made = (await world.object(answer["name"]))["spec"]
    assert (made["chainRef"], made["retryOf"]["chain"]) == ({"name": "pod-crash"}, "Current")
    retry = await world.read(answer["id"])
    assert (retry["chain_name"], retry["chain_generation"]) == ("pod-crash", 1)


async def test_retry_that_is_impossible_is_refused_with_its_field(world: World) -> None:
    first = await world.ended()
    open_one = await world.admitted("open")
    before = await world.names()
    stages = "Stages to retry from: collect, analysis"
    for identity, body, refusal in (
        (open_one, {}, (409, "it has not ended yet: cancel it first, or wait for its end")),
        (first, {"fromStage": "analyse"}, (422, f"fromStage: stage 'analyse' is not in its chain. {stages}")),
        (first, {"from_stage": "analysis"}, (422, "from_stage: unknown field; the fields are fromStage, chain")),
        (first, b"again", (400, "the body is not JSON: Expecting value: line 1 column 1 (char 0)")),
        (uuid.UUID(int=1), {}, (404, f"there is no investigation with id {uuid.UUID(int=1)}")),
        ("x", {}, (404, "there is no investigation with id x")),
    ):
        status, problem = await world.retry(identity, body)
        assert (status, problem) == refusal
    assert await world.names() == before


async def test_investigation_of_a_namespace_that_is_not_served_is_not_retried(world: World) -> None:
    first = await world.ended()
    moved = "UPDATE investigations SET namespace = 'default', namespace_uid = NULL WHERE id = :id"
    await queue.execute(world.database, moved, id=first)
    assert await world.retry(first) == (409, "it is of namespace default, which is not served any more")


async def test_idempotency_key_makes_one_retry_and_is_refused_for_another_request(world: World) -> None:
    first = await world.ended()
    answers = await asyncio.gather(*(world.retry(first, {"fromStage": "analysis"}, key="mine") for _ in range(3)))
    assert [status for status, _ in answers] == [202, 202, 202]
    assert len({answer["id"] for _, answer in answers}) == 1
    status, problem = await world.retry(first, {}, key="mine")
    assert (status, problem.startswith("header.Idempotency-Key: it was used for another retry")) == (422, True)
    assert len(await world.names()) == 2


async def test_full_queue_takes_no_retry(world: World) -> None:
    first = await world.ended()
    for number in range(FULL):
        await world.admitted(f"waits-{number}")
    assert await world.retry(first) == (503, f"{FULL} investigations are queued already; send it again")


@pytest.mark.parametrize(
    ("rights", "status", "missing"),
    [
        ([], 403, "may not get alertinvestigations"),
        (["create"], 403, "may not get alertinvestigations"),
        (["get"], 403, "may not create alertinvestigations"),
        (["get", "create"], 202, ""),
    ],
    ids=["none", "create", "get", "both"],
)
async def test_caller_needs_both_rights(
    world: World, admin: client.Cluster, rights: list[str], status: int, missing: str
) -> None:
    token = await accounts.create(
        admin, "caller", namespace=world.namespace, may={"alertinvestigations": rights} if rights else None
    )
    first = await world.ended()
    code, answer = await world.retry(first, token=token)
    assert code == status
    assert missing in str(answer)
    assert await world.retry(first, token="the token") == (
        403,
        "the webhook's token only sends alerts: `kubectl create token` makes one for other requests",
    )


async def test_object_that_a_person_writes_is_refused(world: World, cluster: client.Cluster) -> None:
    first = await world.ended()
    retry_of = {"name": "web-crash", "uid": str(first), "fromStage": "analysis"}
    made = await world.create(manifests.investigation("theirs", retryOf=retry_of))
    reconciler = investigations.Reconciler(
        cluster=cluster,
        database=world.database,
        index=lambda listed, unusable_providers, **_arguments: chain_index.ChainIndex(
            listed, platform=queue.PLATFORM, unusable_providers=unusable_providers, namespace="tarsy", own="tarsy"
        ),
        mask=str,
        workers=1,
    )
    key = investigations.Key(namespace=world.namespace, name="theirs", uid=made["metadata"]["uid"])
    await reconciler.reconcile(key)
    investigation = await world.read(made["metadata"]["uid"])
    assert (investigation["phase"], investigation["reason"], investigation["retry_of"]) == (
        "Failed",
        "RetryNotProven",
        None,
    )
    assert (await world.read(first))["retried_by"] is None

"""The paths of earlier clients, asked from outside: what they tell is what is in the log, in the documents' shapes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import apis, examples, manifests, queue, stories
from tarsy.api.compat import live_updates, stages, statuses, timeline
from tarsy.config import resolve
from tarsy.config.model import webhooks
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.queue import work
from tarsy.store.reads import log_entries, stage_rows, transcript_pages
from tarsy.telemetry import component_states
from tarsy.transcript import entries
from tarsy_dev.controlplane import Administrator

WEBHOOK = "the token"
AT = datetime(2026, 11, 21, 3, 17, 40, tzinfo=UTC)
DOCUMENTS = Path(__file__).resolve().parents[1] / "captures/compat"
CHAIN = queue.chain(
    stages=[
        manifests.stage("collection"),
        {"name": "analysis", "agents": [{"name": "KubernetesAgent"}, {"name": "KubernetesAgent"}]},
        manifests.stage("remediation", timeoutSeconds=1),
    ]
)
SYNTHESIS = resolve.ResolvedAgent(
    name="SynthesisAgent",
    provider="google-default",
    strategy="synthesis",
    max_iterations=1,
    servers=(),
    custom_instructions="",
    server_instructions=(),
)


def document(name: str) -> Any:
    return json.loads((DOCUMENTS / f"{name}.json").read_text())


def collected() -> list[entries.Entry]:
    """The first stage: a call of each kind, and its conclusion."""
    asked = stories.asks("k8s.pods_log", execution="one", thinking="Hm.")
    return [
        stories.stage_started("collection"),
        stories.started(stage="collection"),
        asked,
        stories.ran(asked, text="no such host"),
        stories.unanswered(call_number=1),
        stories.answers("it has no database", call_number=2),
        stories.ended(),
        stories.stage_ended("collection"),
    ]


def analysed() -> list[entries.Entry]:
    """The second one: two agents, of which one fails, and what joins their results."""
    joins = replace(stories.started("joins", agent=SYNTHESIS), kind="synthesis", name="SynthesisAgent")
    return [
        stories.stage_started(),
        stories.started("a"),
        stories.started("b", index=1),
        stories.answers("of a", execution="a"),
        stories.ended("a"),
        stories.unanswered(execution="b"),
        stories.ended("b", "Failed", "no answer"),
        joins,
        stories.answers("of both", execution="joins"),
        stories.ended("joins"),
        stories.stage_ended(message="KubernetesAgent-2: no answer"),
    ]


def finished() -> list[entries.Entry]:
    """All of them; the last one has no time."""
    late = "Stage remediation timed out after 1 s"
    return [
        *collected(),
        *analysed(),
        stories.stage_started("remediation"),
        stories.started("late", stage="remediation"),
        stories.ended("late", "TimedOut", late),
        stories.stage_ended("remediation", "TimedOut", late),
        stories.run_ended("CompletedWithErrors", "StagesFailed", message=late, final_analysis="root cause"),
    ]


class API:
    """The API, asked for paths of earlier clients by a caller with all rights."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, path: str, *, method: str = "GET", **options: Any) -> tuple[int, Any]:
        async with self._session.request(method, path, **options) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str, **options: Any) -> Any:
        status, answer = await self.ask(path, **options)
        assert status == 200, answer
        return answer


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database, editor: str) -> AsyncIterator[API]:
    headers = {**apis.bearer(editor), "Content-Type": "application/json"}
    parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK)
    async with apis.served(parts, headers=headers) as session:
        yield API(session)


class World:
    """Investigations of the test's namespace."""

    def __init__(self, cluster: client.Cluster, database: databases.Database) -> None:
        self._cluster = cluster
        self._database = database

    async def queued(self, name: str = "web-crash", **spec: Any) -> UUID:
        subject = queue.subject(name, **spec)
        metadata = subject.metadata.model_copy(update={"namespace": self._cluster.served.own})
        return await queue.admit(self._database, subject.model_copy(update={"metadata": metadata}), chain=CHAIN)

    async def worked(self, log: Sequence[entries.Entry], **spec: Any) -> UUID:
        """One that is worked on so far."""
        identity = await self.queued(**spec)
        writing = await queue.opened(self._database, await queue.claimed(self._database))
        for entry in log:
            await writing.commit(entry)
        return identity


@pytest.fixture
def world(cluster: client.Cluster, database: databases.Database) -> World:
    return World(cluster, database)


async def test_investigation_is_served_as_session_in_the_documented_format(
    api: API, world: World, database: databases.Database
) -> None:
    identity = await world.worked(finished(), alertData='{"pod": "web-0", "n": 1}')
    detail = await api.get(f"/api/v1/history/sessions/{identity}")
    examples.like(document("session-detail"), detail)
    examples.like(document("chain-with-errors")["chain"], detail["chain"])
    summary = await queue.summary(database, identity)
    assert summary.started_at
    assert summary.ended_at
    assert (detail["status"], detail["alert_data"], detail["final_analysis"], detail["error_message"]) == (
        "completed",
        {"pod": "web-0", "n": 1},
        "root cause",
        None,
    )
    assert (detail["started_at_us"], detail["completed_at_us"], detail["duration_ms"]) == (
        statuses.to_us(summary.started_at),
        statuses.to_us(summary.ended_at),
        (summary.ended_at - summary.started_at) // timedelta(milliseconds=1),
    )
    agents = ("KubernetesAgent", "KubernetesAgent-1, KubernetesAgent-2", "KubernetesAgent")
    assert [tuple(node.values()) for node in detail["chain"]["nodes"]] == [
        ("collection", agents[0], "completed", False),
        ("analysis", agents[1], "completed", False),
        ("remediation", agents[2], "failed", True),
    ]
    first, two, three = detail["stage_executions"]
    outputs = document("stage-outputs")
    examples.like(outputs["success"], first["stage_output"])
    examples.like(outputs["success"], two["stage_output"])
    examples.like(outputs["timeout"], three["stage_output"])
    assert (first["stage_output"]["analysis"], two["stage_output"]["analysis"]) == ("it has no database", "of both")
    assert [result["agent"] for result in two["parallel_results"]] == ["KubernetesAgent-1", "KubernetesAgent-2"]
    examples.like(outputs["success"], two["parallel_results"][0]["result"])
    examples.like(outputs["agent_error"], two["parallel_results"][1]["result"])
    assert (first["agent"], first["agents"], two["agent"], len(two["agents"])) == ("KubernetesAgent", None, None, 2)
    assert (three["status"], three["error_message"]) == ("failed", "Stage remediation timed out after 1 s")
    for execution, stage in zip(detail["stage_executions"], summary.stages, strict=True):
        assert stage.started_at
        assert stage.ended_at
        assert (execution["started_at_us"], execution["completed_at_us"]) == (
            statuses.to_us(stage.started_at),
            statuses.to_us(stage.ended_at),
        )
        assert (execution["llm_interaction_count"], execution["mcp_communication_count"]) == (
            stage.iterations,
            stage.tool_calls,
        )
        assert (execution["routing_decision"], execution["execution_path"]) == (None, None)


async def test_the_timeline_of_a_session_is_its_log(
    api: API, world: World, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = await world.worked(finished())
    log = {numbered.seq: numbered for numbered in await queue.log(database, identity)}
    detail = await api.get(f"/api/v1/history/sessions/{identity}")
    events = detail["chronological_timeline"]
    for event in events:
        logged = log[int(event["event_id"].partition(".")[0])]
        assert event["timestamp_us"] == statuses.to_us(logged.at)
        assert event["stage_context"]["stage_id"] == logged.stage
    kinds = Counter(event["type"] for event in events)
    entry_kinds = Counter(type(numbered.entry).__name__ for numbered in log.values())
    assert kinds == {
        "llm_interaction": entry_kinds["Answered"] + entry_kinds["Unanswered"],
        "mcp_communication": entry_kinds["ToolsAnswered"],
        "stage_start": 3,
        "stage_complete": 3,
        "parallel_start": 1,
        "parallel_complete": 1,
    }
    assert detail["timeline_truncated"] is False
    monkeypatch.setattr(transcript_pages, "BATCH_ENTRIES", 3)
    assert (await api.get(f"/api/v1/history/sessions/{identity}"))["chronological_timeline"] == events
    monkeypatch.setattr(timeline.TimelineBuilder.__init__, "__kwdefaults__", {"limit": 5})
    cut = await api.get(f"/api/v1/history/sessions/{identity}")
    assert (cut["chronological_timeline"], cut["timeline_truncated"]) == (events[:5], True)
    assert cut["stage_executions"] == detail["stage_executions"]


async def test_its_status_updates_can_be_replayed_from_the_log_whenever(
    world: World, database: databases.Database
) -> None:
    identity = await world.worked([])
    writing = await queue.opened(database, await reclaimed(database))
    updates: list[live_updates.AlertStatusUpdate] = []
    listed: list[live_updates.AlertStatusUpdate] = []
    for entry in finished():
        await writing.commit(entry)
        summary = await queue.summary(database, identity)
        chain = stages.chain_stages((await stage_rows.stage_progress(database, [identity]))[identity])
        updates += live_updates.entry_updates(entry, summary, chain)
        new, count = live_updates.updates_since(len(listed), summary, chain)
        listed += new
        assert count == len(listed)
    assert listed == updates, "the channel of all sessions is sent the same"
    page = await log_entries.log_page(database, identity, after=0, limit=500)
    assert page
    later = await queue.summary(database, identity)
    replayed = [update for logged in page.log for update in live_updates.entry_updates(logged.entry, later, chain)]
    assert replayed == updates
    assert [update.current_step for update in updates][:3] == [
        "Starting chain execution",
        "Starting collection",
        "Completed collection",
    ]
    assert (updates[-1].result, updates[-1].current_step) == ("root cause", "Chain execution finished")
    assert len(updates) == 8


async def reclaimed(database: databases.Database) -> work.Claim:
    await queue.let_leases_pass(database)
    return await queue.claimed(database)


async def test_a_session_has_its_stages_and_what_their_agents_did(
    api: API, world: World, database: databases.Database
) -> None:
    identity = await world.worked([*collected(), *analysed()[:5]], runbookURL="https://example.com/rb.md", author="ann")
    worker = component_states.ComponentState(
        kind="process", name="tarsy-worker-5d9f-x2x7q", state="running", since=AT, detail=component_states.Process()
    )
    await catalogue.write(database, queue.OWNER, [worker])
    session = await api.get(f"/api/v1/sessions/{identity}")
    fields = document("fields")
    assert set(fields["AlertSession"]) <= session.keys()
    assert (session["status"], session["chain_id"], session["agent_type"]) == (
        "in_progress",
        "pod-crash",
        "chain:pod-crash",
    )
    assert (session["pod_id"], session["author"], session["runbook_url"]) == (
        "tarsy-worker-5d9f-x2x7q",
        "ann",
        "https://example.com/rb.md",
    )
    calls = [logged for logged in await queue.log(database, identity) if isinstance(logged.entry, entries.Answered)]
    assert session["last_interaction_at"] == calls[-1].at.isoformat().replace("+00:00", "Z")
    assert [stage["status"] for stage in session["stages"]] == ["completed", "active", "pending"]
    assert [stage["expected_agent_count"] for stage in session["stages"]] == [1, 2, 1]
    assert [stage["parallel_type"] for stage in session["stages"]] == [None, "multi_agent", None]
    for stage in session["stages"]:
        assert set(fields["Stage"]) <= stage.keys()
        for execution in stage["executions"]:
            assert set(fields["AgentExecution"]) <= execution.keys()
            assert (execution["stage_id"], execution["session_id"]) == (stage["id"], session["id"])
    assert [
        (agent["agent_name"], agent["agent_index"], agent["status"]) for agent in session["stages"][1]["executions"]
    ] == [
        ("KubernetesAgent-1", 1, "completed"),
        ("KubernetesAgent-2", 2, "active"),
    ]
    assert (session["mcp_selection"], session["executive_summary"]) == (None, None)
    running = await api.get("/api/v1/history/sessions")
    examples.like(document("sessions-list"), running)

    status, cancelled = await api.ask(f"/api/v1/sessions/{identity}/cancel", method="POST")
    assert (status, cancelled["session_id"], cancelled["status"]) == (202, str(identity), "cancelling")
    assert (await api.get(f"/api/v1/sessions/{identity}"))["status"] == "cancelling"
    waiting = await world.queued("waiting")
    assert (await api.ask(f"/api/v1/sessions/{waiting}/cancel", method="POST"))[1]["status"] == "cancelled"
    assert (await api.ask(f"/api/v1/sessions/{waiting}/cancel", method="POST"))[0] == 409
    assert (await work.cancel(database, waiting, why="user")) is None


async def test_interrupted_execution_shows_its_cause_and_its_stage_is_failed(api: API, world: World) -> None:
    cancelled: list[entries.Entry] = [
        stories.stage_started(),
        stories.started("a"),
        stories.started("b", index=1),
        stories.unanswered(execution="a"),
        stories.ended("a", "Failed", "no answer"),
        stories.ended("b", "Cancelled", "by request"),
        stories.stage_ended("analysis", "Cancelled", "by request"),
    ]
    ended = stories.run_ended("Cancelled", "CancelledByUser", message="by request")
    identity = await world.worked([*collected(), *cancelled, ended])
    session = await api.get(f"/api/v1/sessions/{identity}")
    assert [[execution["status"] for execution in stage["executions"]] for stage in session["stages"]] == [
        ["completed"],
        ["failed", "cancelled"],
        [],
    ]
    assert [stage["status"] for stage in session["stages"]] == ["completed", "failed", "failed"]
    assert (session["status"], session["pod_id"]) == ("cancelled", None)
    late = await api.get(f"/api/v1/sessions/{await world.worked(finished(), name='late')}")
    stage = late["stages"][-1]
    assert (stage["status"], [execution["status"] for execution in stage["executions"]]) == ("failed", ["timed_out"])


async def test_a_session_has_its_selection_of_tools_and_its_summary(api: API, world: World) -> None:
    selected: dict[str, Any] = {"servers": [], "tools": {"deny": ["*.pods_exec"]}}
    native = {"google_search": False}
    ended = stories.run_ended(final_analysis="It is out of memory. Because ...", summary="It is out of memory.")
    identity = await world.worked([*collected(), ended], mcp=selected | {"nativeTools": native})
    session = await api.get(f"/api/v1/sessions/{identity}")
    assert session["mcp_selection"] == selected | {"native_tools": native}
    assert (session["final_analysis"], session["executive_summary"]) == (ended.final_analysis, ended.summary)
    without = await api.get(f"/api/v1/sessions/{await world.worked([stories.run_ended()], name='without')}")
    assert (without["mcp_selection"], without["executive_summary"]) == (None, None)


async def test_session_cancelled_or_without_a_chain_is_failed_with_the_reason(
    api: API, world: World, database: databases.Database
) -> None:
    identity = await world.worked([*collected(), *analysed()[:3]])
    await api.ask(f"/api/v1/sessions/{identity}/cancel", method="POST")
    await queue.let_leases_pass(database)
    await work.sweep(database)
    detail = await api.get(f"/api/v1/history/sessions/{identity}")
    assert (detail["status"], detail["error_message"]) == ("cancelled", "cancelled by request")
    assert [node["status"] for node in detail["chain"]["nodes"]] == ["completed", "failed", "failed"]
    assert detail["stage_executions"][1]["stage_output"]["error_type"] == "fatal"
    assert detail["stage_executions"][2]["stage_output"] is None
    progress = await api.get(f"/processing-status/{identity}")
    assert (progress["status"], progress["progress"], progress["message"]) == (
        "failed",
        100,
        "Error: cancelled by request",
    )


async def test_a_posted_alert_is_followed_to_its_end(
    api: API, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain("kubernetes"), namespace=cluster.served.own)
    submission = document("submission")
    body = json.dumps(submission["body"])
    status, posted = await api.ask("/alerts", method="POST", data=body, headers={"Idempotency-Key": "one"})
    assert status == 202
    examples.like(submission["answer"], posted)
    examples.same(submission["answer"], posted, "status", "message")
    again = await api.ask("/alerts", method="POST", data=body, headers={"Idempotency-Key": "one"})
    native = await api.ask("/api/v1/alerts", method="POST", data=body, headers={"Idempotency-Key": "one"})
    assert again == native == (202, posted)

    path = f"/processing-status/{posted['alert_id']}"
    queued = await api.get(path)
    examples.like(document("processing-status"), queued)
    assert (queued["alert_id"], queued["status"], queued["progress"]) == (posted["alert_id"], "queued", 0)
    writing = await queue.opened(database, await queue.claimed(database))
    assert (await api.get(path))["progress"] == 20
    await writing.commit(stories.stage_started(), stories.stage_ended("analysis"))
    await writing.commit(stories.run_ended(final_analysis="root cause"))
    assert [(await api.get(path))[field] for field in ("status", "progress", "message")] == [
        "completed",
        100,
        "Processing completed",
    ]
    detail = await api.get(f"/api/v1/history/sessions/{posted['alert_id']}")
    assert detail["alert_data"] == submission["body"]["data"]
    for unknown in (
        "/processing-status/123",
        "/api/v1/sessions/123",
        "/api/v1/history/sessions/123",
        f"/processing-status/{UUID(int=7)}",
    ):
        status, problem = await api.ask(unknown)
        assert (status, problem["detail"].startswith("there is no investigation with id")) == (404, True)


async def test_a_posted_alert_that_no_chain_takes_goes_to_the_default_chain(
    plane: Administrator, cluster: client.Cluster, database: databases.Database, editor: str
) -> None:
    def create_chain(alert_type: str) -> None:
        plane.create(manifests.chain(alert_type, name=alert_type.lower()), namespace=cluster.served.own)

    base_parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK)
    ingest = webhooks.Ingest(default_alert_type="kubernetes")
    settings = base_parts.platform().model_copy(update={"ingest": ingest})
    headers = {**apis.bearer(editor), "Content-Type": "application/json"}
    body = json.dumps({"alert_type": "Rare", "data": {"pod": "web-0", "runbook": "https://github.com/a/b/blob/main/c"}})
    async with apis.served(replace(base_parts, platform=lambda: settings), headers=headers) as session:
        api = API(session)
        status, problem = await api.ask("/alerts", method="POST", data=body)
        assert (status, "No chain found for alert type 'Rare'" in problem["detail"]) == (400, True)
        create_chain("kubernetes")
        status, posted = await api.ask("/alerts", method="POST", data=body, headers={"Idempotency-Key": "one"})
        assert (status, posted["status"], posted["message"]) == (
            202,
            "queued",
            "Alert queued for processing as 'kubernetes': no chain takes 'Rare'",
        )
        create_chain("Rare")
        again = await api.ask("/api/v1/alerts", method="POST", data=body, headers={"Idempotency-Key": "one"})
        assert again == (202, posted), "a chain for it has come since"
        session_detail = await api.get(f"/api/v1/sessions/{posted['alert_id']}")
        assert (session_detail["alert_type"], session_detail["chain_id"], session_detail["runbook_url"]) == (
            "kubernetes",
            "kubernetes",
            "https://github.com/a/b/blob/main/c",
        )
        _, own = await api.ask("/alerts", method="POST", data=body)
        assert own["message"] == "Alert queued for processing"
    made = plane.kubectl("get", "inv", posted["name"], "-o", "json", namespace=cluster.served.own)
    assert json.loads(made)["spec"]["labels"] == {"alertname": "Rare"}


async def test_the_history_is_paged_by_numbers_as_far_as_that_is_cheap(
    api: API, world: World, database: databases.Database, cluster: client.Cluster
) -> None:
    names = [f"web-{number}" for number in range(7)]
    ids = [str(await world.queued(name, alertData=f"{name} restarts")) for name in names][::-1]
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.run_ended("Failed", "StagesFailed", message="x"))
    for size in (1, 3, 7, 10):
        pages = [
            await api.get("/api/v1/history/sessions", params={"page": page, "page_size": size})
            for page in range(1, 9 // size + 2)
        ]
        session_ids = [session["session_id"] for page in pages for session in page["sessions"]]
        assert session_ids == ids[: len(session_ids)] == ids
        assert {page["pagination"]["total_items"] for page in pages} == {7}
        assert {page["pagination"]["total_pages"] for page in pages} == {-(-7 // size)}

    async def listed(**parameters: Any) -> list[str]:
        page = await api.get("/api/v1/history/sessions", params=parameters)
        assert len(page["sessions"]) == page["pagination"]["total_items"]
        return [session["session_id"] for session in page["sessions"]]

    (failed,) = await listed(status="failed")
    assert failed == ids[-1]
    assert await listed(status="pending") == ids[:-1]
    assert await listed(status="completed") == []
    assert await listed(search="web 3") == [ids[3]]
    assert await listed(alert_type="kubernetes") == ids
    assert await listed(alert_type="other") == []
    page = await api.get("/api/v1/history/sessions", params=[("status", "pending"), ("status", "failed")])
    assert page["pagination"]["total_items"] == 7
    admitted = {
        str(identity): statuses.to_us(at)
        for identity, at in await queue.rows(database, "SELECT id, admitted_at FROM investigations")
    }
    assert await listed(start_date_us=admitted[ids[2]]) == ids[:3]
    assert await listed(end_date_us=admitted[ids[2]]) == ids[2:]
    assert await listed(start_date_us=admitted[ids[2]], end_date_us=admitted[ids[2]]) == [ids[2]]
    assert await listed(end_date_us=statuses.LATEST_US) == ids

    for parameters, field in (
        ({"page": "0"}, "query.page"),
        ({"page_size": "101"}, "query.page_size"),
        ({"page": "101", "page_size": "100"}, "query.page"),
        ({"page": "10000", "page_size": "2"}, "query.page"),
        ({"status": "done"}, "query.status.0"),
        ({"search": "..."}, "query.search"),
        ({"start_date_us": str(statuses.LATEST_US + 1)}, "query.start_date_us"),
        ({"limit": "1"}, "query.limit"),
    ):
        status, problem = await api.ask("/api/v1/history/sessions", params=parameters)
        assert (status, problem["errors"][0]["place"]) == (422, field)
    assert (await api.get("/api/v1/history/sessions", params={"page": 100, "page_size": 100}))["sessions"] == []

"""Statuses: what the store knows, as the API server has it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import accounts, manifests, queue, stories
from support.masking import NO_SECRETS
from tarsy.controller import investigation_statuses, projector
from tarsy.engine import outcomes
from tarsy.kube import client, objects, rights
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import summaries
from tarsy.transcript import admission, entries
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

CHAIN = queue.chain(stages=[manifests.stage("collect"), manifests.stage("analysis")])
REFUSAL = admission.Refusal(
    reason="ChainNotFound", message="No chain found for alert type 'x'. Available alert types: none"
)


@contextlib.asynccontextmanager
async def projecting(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[projector.Projector]:
    running = projector.Projector(cluster=cluster, database=database)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def create(cluster: client.Cluster, name: str = "web-crash") -> investigations.AlertInvestigation:
    manifest = manifests.investigation(name, namespace=cluster.served.own)
    return (await objects.create_investigation(cluster, manifest)).investigation


async def projected(database: databases.Database) -> None:
    """Wait until the cluster shows what the store knows."""
    async with patience.limit():
        while await work.stale(database, limit=1):
            pass


def read_status(plane: Administrator, subject: investigations.AlertInvestigation) -> Any:
    """The object's status as the API server has it."""
    got = plane.kubectl("get", "inv", subject.metadata.name, "-o", "json", namespace=subject.metadata.namespace)
    return json.loads(got)["status"]


def on_the_wire(summary: summaries.Summary) -> Any:
    return investigation_statuses.build(summary, secrets=NO_SECRETS).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )


def conditions(status: Any) -> dict[str, tuple[str, str]]:
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in status["conditions"]}


def run_of(stage: str, *log_entries: entries.Entry, outcome: entries.Outcome = "Completed") -> list[entries.Entry]:
    """A stage from its start to its end, around what its agent, called as the stage, did."""
    why = "no answer" if outcome == "Failed" else ""
    return [
        stories.stage_started(stage),
        stories.started(stage, stage=stage),
        *log_entries,
        stories.ended(stage, outcome, why),
        stories.stage_ended(stage, outcome, why),
    ]


def story() -> list[entries.Entry]:
    """An investigation with calls, results, a failed stage and a long analysis."""
    asked = stories.asks("k8s.pods_list", execution="collect")
    return [
        *run_of(
            "collect",
            asked,
            stories.ran(asked),
            stories.unanswered(execution="collect", call_number=1),
            outcome="Failed",
        ),
        *run_of("analysis", stories.answers(execution="analysis")),
        stories.run_ended(
            "CompletedWithErrors",
            "StagesFailed",
            message="stage 'collect' failed: " + "ü" * 2000,
            final_analysis="🧯" * 9000,
        ),
    ]


async def test_status_shows_each_state_of_a_run_as_stored(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    subject = await create(cluster)
    async with projecting(cluster, database) as running:

        async def now() -> Any:
            """The status, once it shows what the store knows; the two are compared whole."""
            running.hint()
            await projected(database)
            status = await asyncio.to_thread(read_status, plane, subject)
            assert status == on_the_wire(await queue.summary(database, subject.metadata.uid))
            return status

        await queue.admit(database, subject, chain=CHAIN)
        status = await now()
        assert (status["phase"], status["progress"], status["attempts"]) == ("Queued", "0/2", 0)
        assert [stage["phase"] for stage in status["stages"]] == ["Pending", "Pending"]
        assert conditions(status) == {"Accepted": ("True", "Admitted"), "Reconciling": ("True", "Queued")}

        writing = await queue.opened(database, await queue.claimed(database))
        first, *middle, last = story()
        await writing.commit(first)
        status = await now()
        assert (status["phase"], status["currentStage"], status["attempts"]) == ("Running", "collect", 1)
        assert conditions(status)["Reconciling"] == ("True", "Running")

        for entry in middle:
            await writing.commit(entry)
        status = await now()
        assert status["progress"] == "2/2"
        assert [stage["phase"] for stage in status["stages"]] == ["Failed", "Completed"]
        assert [(s["iterations"], s["toolCalls"], s["tokens"]) for s in status["stages"]] == [(2, 1, 246), (1, 0, 123)]

        await writing.commit(last)
        status = await now()
        assert status["phase"] == "CompletedWithErrors"
        assert set(conditions(status)) == {"Accepted", "Finished", "Complete"}
        assert conditions(status)["Complete"] == ("True", "StagesFailed")
        assert status["usage"] == {
            "inputTokens": 300,
            "outputTokens": 60,
            "thinkingTokens": 9,
            "totalTokens": 369,
            "llmCalls": 3,
            "toolCalls": 1,
        }
        assert status["finalAnalysis"] == "🧯" * 2048  # 8 KiB
        assert status["finalAnalysisTruncated"]


async def test_refusal_is_shown_as_failure_to_users_and_to_kstatus(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    subject = await create(cluster)
    await queue.admit(database, subject, chain=REFUSAL)
    async with projecting(cluster, database):
        await projected(database)
    status = read_status(plane, subject)
    assert status == on_the_wire(await queue.summary(database, subject.metadata.uid))
    assert status["phase"] == "Failed"
    assert status["message"] == REFUSAL.message
    assert conditions(status) == {
        "Accepted": ("False", "ChainNotFound"),
        "Finished": ("True", "ChainNotFound"),
        "Failed": ("True", "ChainNotFound"),
        "Stalled": ("True", "ChainNotFound"),
    }
    waited = plane.kubectl(
        "wait", "inv/web-crash", "--for=condition=Failed", "--timeout=60s", namespace=cluster.served.own
    )
    assert "condition met" in waited


async def test_status_of_a_run_that_was_given_up_shows_no_running_stage(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    subject = await create(cluster)
    await queue.admit(database, subject, chain=CHAIN)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.stage_started("collect"))
    await writing.commit(
        *outcomes.ends_of_open(writing.record.runs[entries.INVESTIGATION], "Failed", message="given up"),
        stories.run_ended("Failed", "AttemptsExhausted", message="given up"),
    )
    async with projecting(cluster, database):
        await projected(database)
    status = read_status(plane, subject)
    assert (status["phase"], status["progress"]) == ("Failed", "0/2")
    assert "currentStage" not in status
    assert "Running" not in [stage["phase"] for stage in status["stages"]]


async def test_status_write_for_a_deleted_or_replaced_object_is_not_retried_forever(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    deleted, replaced = await create(cluster, "deleted"), await create(cluster, "replaced")
    for subject in (deleted, replaced):
        await queue.admit(database, subject, chain=CHAIN)
        plane.kubectl("delete", "inv", subject.metadata.name, namespace=cluster.served.own)
    replacement = await create(cluster, "replaced")
    async with projecting(cluster, database):
        await projected(database)
    assert "sequence" not in read_status(plane, replacement)


async def test_replicas_that_project_at_once_leave_the_newest_status(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    subject = await create(cluster)
    await queue.admit(database, subject, chain=CHAIN)
    writing = await queue.opened(database, await queue.claimed(database))
    async with projecting(cluster, database) as first_projector, projecting(cluster, database) as two:
        for entry in story():
            await writing.commit(entry)
            first_projector.hint()
            two.hint()
        await projected(database)
    assert read_status(plane, subject) == on_the_wire(await queue.summary(database, subject.metadata.uid))


async def test_refused_events_are_logged_once_in_a_namespace_and_statuses_go_on(
    plane: Administrator, admin: client.Cluster, database: databases.Database, caplog: pytest.LogCaptureFixture
) -> None:
    token = await accounts.create(admin, "operator")
    without = [right for right in rights.ALL if right.resource != "events"]
    await accounts.empower(admin, "operator", without)
    own = admin.served.own
    cluster = await client.connect(plane.kubeconfig(namespace=own, user="operator", token=token))
    async with patience.limit():
        while await rights.missing(cluster, without):
            pass
    subjects = [await create(cluster, name) for name in ("one", "two")]

    def refusals() -> list[str]:
        return [
            record.__dict__["namespace"]
            for record in caplog.records
            if record.__dict__.get("action") == "events_refused"
        ]

    async with projecting(cluster, database) as running:
        for subject in subjects:
            await queue.admit(database, subject, chain=CHAIN)
            await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
            running.hint()
            await projected(database)
        for subject in subjects:
            assert read_status(plane, subject)["phase"] == "Completed"
        assert refusals() == [own], "of four events"
        await accounts.empower(admin, "operator", rights.ALL)
        async with patience.limit():
            while await rights.missing(cluster, rights.ALL):
                pass
        third = await create(cluster, "three")
        await queue.admit(database, third, chain=CHAIN)
        await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
        running.hint()
        await projected(database)
    assert refusals() == [own]
    listed = plane.kubectl("get", "events", "-o", "jsonpath={.items[*].involvedObject.name}", namespace=own)
    assert set(listed.split()) == {"three"}
    await cluster.close()

"""Investigations of a site's namespace, with an object and a log, for tests of their pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from support import manifests, queue, stories
from tarsy.kube import client
from tarsy.resources import chains
from tarsy.store.base import databases
from tarsy.store.queue import journal
from tarsy.transcript import entries
from tarsy_dev.controlplane import Administrator

CHAIN = queue.chain(
    stages=[
        {"name": "data-collection", "agent": "KubernetesAgent", "replicas": 3},
        {"name": "analysis", "agent": "KubernetesAgent"},
    ]
)


class World:
    """Investigations in the namespace that the site serves."""

    def __init__(self, plane: Administrator, cluster: client.Cluster, database: databases.Database) -> None:
        self.plane = plane
        self.namespace = cluster.served.own
        self.database = database

    async def begin(
        self, name: str = "web-crash", *, chain: chains.AgentChain = CHAIN, **spec: Any
    ) -> tuple[UUID, journal.PgJournal]:
        """Admit an investigation and claim it; its id and its journal."""
        manifest = manifests.investigation(name)
        created = await asyncio.to_thread(self.plane.create, manifest, namespace=self.namespace)
        subject = queue.subject(name, **spec)
        uid = created["metadata"]["uid"]
        metadata = subject.metadata.model_copy(update={"namespace": self.namespace, "uid": uid})
        identity = await queue.admit(self.database, subject.model_copy(update={"metadata": metadata}), chain=chain)
        claim = await queue.claimed(self.database, lease=timedelta(hours=1))  # no page is looked at for longer
        return identity, await queue.opened(self.database, claim)


@pytest.fixture
def world(plane: Administrator, cluster: client.Cluster, database: databases.Database) -> World:
    return World(plane, cluster, database)


def collection(*, text: str = "web-0 restarts: OOMKilled") -> list[entries.Entry]:
    """The first stage: three agents that each call two tools, one of which fails, and a synthesis."""
    log: list[entries.Entry] = [stories.stage_started("data-collection")]
    for index in range(3):
        name = f"agent{index}"
        asked = stories.asks("k8s.pods_log", "k8s.pods_list", execution=name, text="I look.", thinking="Which pod?")
        log += [
            stories.started(name, stage="data-collection", index=index),
            asked,
            stories.ran(asked, 0, text=text),
            stories.ran(asked, 1, text="forbidden", failed=True, in_doubt=True),
            stories.answers(f"Pod web-0 is out of memory [tool 0.0]. {text}", execution=name, call_number=1),
            stories.ended(name),
        ]
    return log


def joined(text: str, *, index: int = 3) -> list[entries.Entry]:
    """The synthesis of the first stage behind `index` agents, and the stage's end."""
    synthesis = entries.ExecutionStarted(
        stage="data-collection",
        execution="join",
        kind="synthesis",
        index=index,
        name="SynthesisAgent",
        agent=stories.AGENT,
        messages=stories.PROMPT,
    )
    return [
        synthesis,
        stories.answers(text, execution="join"),
        stories.ended("join"),
        stories.stage_ended("data-collection"),
    ]


def analysis(text: str) -> list[entries.Entry]:
    """The second stage, and the end."""
    return [
        stories.stage_started("analysis"),
        stories.started("last", stage="analysis"),
        stories.answers(text, execution="last"),
        stories.ended("last"),
        stories.stage_ended("analysis"),
        stories.run_ended(final_analysis=text, summary="Too little **memory**."),
    ]


async def commit(writing: journal.PgJournal, log: Sequence[entries.Entry]) -> None:
    for entry in log:
        await writing.commit(entry)

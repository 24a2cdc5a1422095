"""Investigations with stages, for the pages of the list."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from support import queue, stories
from tarsy.kube import client
from tarsy.resources import chains
from tarsy.store.base import databases
from tarsy.store.queue import journal

THREE: list[dict[str, Any]] = [
    {"name": name, "agent": "KubernetesAgent"} for name in ("data-collection", "analysis", "verdict")
]

THREE[1] |= {"replicas": 3}


async def admit(
    database: databases.Database,
    cluster: client.Cluster,
    name: str = "web-crash",
    *,
    summary: str = "",
    labels: dict[str, str] | None = None,
    chain: chains.AgentChain | None = None,
    **spec: Any,
) -> None:
    """Admit an investigation in the namespace of the site."""
    spec = {"alertData": json.dumps({"annotations": {"summary": summary}}), "labels": labels or {}} | spec
    await queue.admit(database, queue.subject(name, **spec), chain=chain or queue.chain(stages=THREE))
    own = {"namespace": cluster.served.own}
    await queue.execute(database, "UPDATE investigations SET namespace = :namespace, namespace_uid = NULL", **own)


async def run_first_stage(database: databases.Database) -> journal.PgJournal:
    """Claim the next investigation and end its first stage; its second one runs."""
    opened = await queue.opened(database, await queue.claimed(database))
    first = "data-collection"
    await opened.commit(stories.stage_started(first), stories.started("one", stage=first))
    await opened.commit(stories.answers("seen", execution="one"), stories.ended("one"))
    await opened.commit(replace(stories.stage_ended(), stage=first))
    await opened.commit(stories.stage_started(), stories.started("two"))
    return opened

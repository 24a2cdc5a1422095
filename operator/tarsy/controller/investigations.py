"""Admits the investigations that appear in the cluster: each once, with its chain as it is at that moment.

Webhooks admit what they create; what is made by kubectl, or was left by an API process that died in between, comes in
here. Both do the same, and the store takes the first.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tarsy.config import resolve
from tarsy.controller import workqueue
from tarsy.kube import client, objects, watch
from tarsy.resources import chain as chains
from tarsy.resources import investigation
from tarsy.store import database as databases
from tarsy.store import work

CHAIN_GRACE = 10.0
"""Seconds that an investigation waits for its chain: `kubectl apply -f` may bring both, in any order."""


class Admission:
    """Handles investigations that the watch has seen."""

    def __init__(self, *, cluster: client.Cluster, database: databases.Database) -> None:
        self._cluster = cluster
        self._database = database
        self._admitted: set[str] = set()

    async def handle(self, seen: watch.Seen) -> None:
        """Admit the object; a LaterError while its chain may still come."""
        if seen.uid in self._admitted:
            return
        found = await objects.get_investigation(self._cluster, namespace=seen.namespace, name=seen.name)
        if found is None or found.metadata.uid != seen.uid:
            return
        candidates = await objects.list_chains(self._cluster, namespace=seen.namespace)
        verdict: chains.AgentChain | work.Refusal
        try:
            verdict = resolve.chain_for(found.spec.alert_type, candidates)
        except resolve.UnresolvedError as error:
            if (left := CHAIN_GRACE - _age(found)) > 0:
                raise workqueue.LaterError(min(left, 1.0)) from error
            verdict = work.Refusal(reason="ChainNotFound", message=str(error))
        await work.admit(self._database, found, verdict)
        self._admitted.add(seen.uid)


def _age(found: investigation.AlertInvestigation) -> float:
    created = datetime.fromisoformat(found.metadata.creation_timestamp or "1970-01-01T00:00:00Z")
    return (datetime.now(UTC) - created).total_seconds()

"""Reconciles the investigations of the cluster: admits what is new, stops what is cancelled or gone.

Webhooks admit what they create; what is made by kubectl, or was left by an API process that died in between, comes in
here. Both do the same, and the store takes the first. Nothing is concluded from an event alone: the object is read
live, because a watch may be late and a selector may make an object look deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from tarsy.config.check import chain_index
from tarsy.controller import unreadable, workqueue
from tarsy.ingest import decision
from tarsy.kube import client, objects, watch
from tarsy.resources import base, investigations
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.intake import queueing
from tarsy.store.queue import work
from tarsy.transcript import admission as admitted

CHAIN_GRACE = 10.0
"""Seconds that an investigation waits for its chain: `kubectl apply -f` may bring both, in any order.

They begin when its chain is first missed, and anew in another process: its own time is told by another machine's clock.
"""

RECONCILED_MAX = 20_000
"""So many are remembered, twice as many as webhooks queue by default: one that is forgotten is only read once more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One object."""

    namespace: str
    name: str
    uid: str


class Reconciler:
    """Reconciles the investigations that the watch has seen."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        index: chain_index.Indexer,
        mask: Callable[[str], str],
        workers: int,
    ) -> None:
        self._cluster = cluster
        self._database = database
        self._index = index
        self._mask = mask
        self._queue = workqueue.WorkQueue(self.reconcile, workers=workers)
        self._reconciled: OrderedDict[str, int] = OrderedDict()
        """uid to the generation that was reconciled: our own status writes come back as events. The latest only."""
        self._missed: dict[str, float] = {}
        """uid to the monotonic time at which its chain was first missed."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await self._queue.run()

    def seen(self, seen: watch.Seen) -> None:
        """Have the object reconciled, unless this generation of it was."""
        if seen.deleted or self._reconciled.get(seen.uid) != seen.generation:
            self.add(Key(namespace=seen.namespace, name=seen.name, uid=seen.uid))

    def made(self, created: base.ObjectMeta) -> None:
        """Take note that this process has made the object and admitted it: its first generation asks for no more."""
        self._note(created)

    def add(self, key: Key) -> None:
        """Have the object reconciled in any case."""
        self._queue.add(key)

    async def reconcile(self, key: Key) -> None:
        """Bring store and object together; a LaterError while its chain may still come."""
        try:
            fetched = await objects.get_investigation(self._cluster, namespace=key.namespace, name=key.name)
        except objects.UnreadableError as error:
            if error.found.metadata.uid == key.uid:
                await self._refuse(error.found)
                return
            fetched = None
        if fetched is None or fetched.metadata.uid != key.uid:
            await work.gone(self._database, UUID(key.uid))
            self._reconciled.pop(key.uid, None)
            self._missed.pop(key.uid, None)
            return
        if not await queueing.is_known(self._database, UUID(key.uid)):
            await queueing.admit(self._database, await self._admission(fetched))
        await work.observe(self._database, fetched)
        if fetched.spec.cancel:
            await work.cancel(self._database, UUID(key.uid), why="user")
        self._note(fetched.metadata)
        self._missed.pop(key.uid, None)

    async def _refuse(self, unreadable_object: objects.Unreadable) -> None:
        """Write on the object that it cannot be read, once for its generation; what is in the store already goes on."""
        metadata, identity = unreadable_object.metadata, UUID(unreadable_object.metadata.uid)
        log_fields = {"investigation": f"{metadata.namespace}/{metadata.name}", "uid": identity}
        if await queueing.is_known(self._database, identity):
            log.warning("%s", unreadable_object.message, extra={"action": "investigation_unreadable", **log_fields})
            if unreadable_object.cancel:
                await work.cancel(self._database, identity, why="user")
        elif not unreadable.messages(unreadable_object):
            log.warning("%s", unreadable_object.message, extra={"action": "investigation_unreadable", **log_fields})
            now = datetime.now(UTC).replace(microsecond=0)
            where = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
            event = objects.Event(reason="Failed", message=unreadable_object.message, at=now, warning=True)
            if (
                await objects.apply_status(self._cluster, **where, status=unreadable_status(unreadable_object, now=now))
                == "written"
            ):
                await objects.post_event(self._cluster, event, **where)
        self._note(metadata)

    def _note(self, reconciled: base.ObjectMeta) -> None:
        self._reconciled[reconciled.uid] = reconciled.generation
        if len(self._reconciled) > RECONCILED_MAX:
            self._reconciled.popitem(last=False)

    async def _admission(self, fetched: investigations.AlertInvestigation) -> admitted.Admission:
        """Its admission; a LaterError while its chain may still come."""
        namespace = fetched.metadata.namespace
        chains, uid, workers = await asyncio.gather(
            objects.list_chains(self._cluster, namespace=namespace),
            objects.namespace_uid(self._cluster, namespace),
            catalogue.workers(self._database),
        )
        if uid is None:  # its end takes the object along
            raise workqueue.LaterError(1.0)
        offered = await catalogue.offered(self._database) if fetched.spec.mcp else {}
        index = self._index(chains, unusable_providers=workers.unusable)
        admission = await asyncio.to_thread(
            decision.decide, fetched, index, mask=self._mask, namespace_uid=uid, catalogue=offered
        )
        refused = admission.chain.reason if isinstance(admission.chain, admitted.Refusal) else chain_index.SELECTION
        if refused != chain_index.SELECTION and not fetched.spec.cancel:
            now = time.monotonic()
            left = self._missed.setdefault(fetched.metadata.uid, now) + CHAIN_GRACE - now
            if left > 0:
                raise workqueue.LaterError(min(left, 1.0))
        return admission


def unreadable_status(unreadable_object: objects.Unreadable, *, now: datetime) -> investigations.Status:
    """The status of an investigation whose object cannot be read: Failed, until another generation of it can be."""
    conditions = [
        unreadable.condition(unreadable_object, kind, true=kind != "Accepted", now=now)
        for kind in ("Accepted", "Finished", "Failed", "Stalled")
    ]
    return investigations.Status(
        sequence=0,  # that of the store, should it come to be admitted, is no lower
        observed_generation=unreadable_object.metadata.generation,
        phase="Failed",
        conditions=conditions,
        message=unreadable_object.message[: base.MESSAGE_MAX],
        completion_time=now,
    )

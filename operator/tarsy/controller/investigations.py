"""Reconciles the investigations of the cluster: admits new ones, stops those that are cancelled or deleted.

Webhooks admit the objects that they create. Objects that kubectl created, or that an API process did not admit before
it died, are admitted here, in the same way; the store takes the first admission. Each object is read live, because an
event of the watch may be late, and a selector may make an object look deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from tarsy.config.check import chain_index
from tarsy.config.model import budgets, platforms
from tarsy.controller import investigation_statuses, unreadable_objects, workqueue
from tarsy.ingest import decision
from tarsy.kube import client, discovery, events, objects, watch
from tarsy.resources import base, investigations
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.intake import originals, queueing
from tarsy.store.operations import restored
from tarsy.store.queue import ledgers, work
from tarsy.transcript import admission as admitted

CHAIN_GRACE = 10.0
"""Seconds that an investigation waits for its chain: `kubectl apply -f` may bring both, in any order.

They count from the moment when this process first missed the chain, because the object's time is of another clock.
"""

RECONCILED_MAX = 20_000
"""The number of reconciled objects that are remembered: twice the default queue. A forgotten one is read once more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Key:
    """The identity of an object."""

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
        platform: Callable[[], platforms.Platform] = platforms.Platform,
    ) -> None:
        """`platform` returns the platform file in force, whose budgets refuse new objects of people."""
        self._cluster = cluster
        self._database = database
        self._index = index
        self._mask = mask
        self._platform = platform
        self._queue = workqueue.WorkQueue(self.reconcile, workers=workers)
        self._reconciled: OrderedDict[str, int] = OrderedDict()
        """The last reconciled generation of each uid: the watch reports our own status writes too."""
        self._missed: dict[str, float] = {}
        """The monotonic time at which the chain of each uid was first missed."""

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await self._queue.run()

    def seen(self, seen: watch.Seen) -> None:
        """Queue the object, unless this generation of it was reconciled."""
        if seen.deleted or self._reconciled.get(seen.uid) != seen.generation:
            self.add(Key(namespace=seen.namespace, name=seen.name, uid=seen.uid))

    def mark_admitted(self, created: base.ObjectMeta) -> None:
        """Skip the first generation of an object that this process has created and admitted."""
        self._note(created)

    def add(self, key: Key) -> None:
        """Queue the object in any case."""
        self._queue.add(key)

    async def reconcile(self, key: Key) -> None:
        """Bring the store up to date with the object. Raises LaterError while its chain may still be created."""
        try:
            fetched = await objects.get_investigation(self._cluster, namespace=key.namespace, name=key.name)
        except objects.UnreadableError as error:
            if error.unreadable.metadata.uid == key.uid:
                await self._refuse(error.unreadable)
                return
            fetched = None
        if fetched is None or fetched.metadata.uid != key.uid:
            await work.gone(self._database, UUID(key.uid))
            self._reconciled.pop(key.uid, None)
            self._missed.pop(key.uid, None)
            return
        if await queueing.is_known(self._database, UUID(key.uid)):
            await self._align(fetched)
        elif fetched.written.sequence:
            await self._report_lost(fetched)
            return
        else:
            await queueing.admit(self._database, await self._admission(fetched))
        await work.observe(self._database, fetched)
        if fetched.spec.cancel:
            await work.cancel(self._database, UUID(key.uid), why="user")
        self._note(fetched.metadata)
        self._missed.pop(key.uid, None)

    async def _align(self, fetched: investigations.AlertInvestigation) -> None:
        """Notice that the database, or the cluster, was restored, and have the status written again."""
        metadata, identity = fetched.metadata, UUID(fetched.metadata.uid)
        if not fetched.written.sequence:
            return
        misfit = await restored.align(self._database, identity, sequence=fetched.written.sequence)
        if misfit and misfit.older == "cluster":  # or a status was written since the object was read: read it again
            again = await objects.get_investigation(self._cluster, namespace=metadata.namespace, name=metadata.name)
            if again is None or again.metadata.uid != metadata.uid:
                return
            misfit = await restored.align(
                self._database, identity, sequence=again.written.sequence, recorded=misfit.revision
            )
        if misfit:
            log_fields = {"investigation": f"{metadata.namespace}/{metadata.name}", "uid": metadata.uid}
            log.warning(
                "the %s was restored to an earlier time: the status is written again",
                misfit.older,
                extra={"action": "status_aligned", "older": misfit.older, **log_fields},
            )

    async def _report_lost(self, fetched: investigations.AlertInvestigation) -> None:
        """Report an investigation that another database has known, once: it is not run again by itself.

        What it has done since cannot be known, and a tool call that writes must not be repeated. The status of an ended
        one stays, with its result.
        """
        metadata = fetched.metadata
        log_fields = {"investigation": f"{metadata.namespace}/{metadata.name}", "uid": metadata.uid}
        log.warning("the database has no transcript of it", extra={"action": "transcript_lost", **log_fields})
        if not fetched.written.has_ended:
            now = datetime.now(UTC).replace(microsecond=0)
            where = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
            event = events.Event(reason="Failed", message=investigation_statuses.LOST, at=now, warning=True)
            status = investigation_statuses.build_lost(fetched, now=now)
            if await objects.apply_status(self._cluster, **where, status=status) == "written":
                await events.post(self._cluster, event, **where)
        self._note(metadata)
        self._missed.pop(metadata.uid, None)

    async def _refuse(self, unreadable: objects.Unreadable) -> None:
        """Report in the status, once for each generation, that the object cannot be read; an admitted one goes on."""
        metadata, identity = unreadable.metadata, UUID(unreadable.metadata.uid)
        log_fields = {"investigation": f"{metadata.namespace}/{metadata.name}", "uid": identity}
        if await queueing.is_known(self._database, identity):
            log.warning("%s", unreadable.message, extra={"action": "investigation_unreadable", **log_fields})
            if unreadable.cancel:
                await work.cancel(self._database, identity, why="user")
        elif not unreadable_objects.reported_messages(unreadable):
            log.warning("%s", unreadable.message, extra={"action": "investigation_unreadable", **log_fields})
            now = datetime.now(UTC).replace(microsecond=0)
            where = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
            event = events.Event(reason="Failed", message=unreadable.message, at=now, warning=True)
            status = investigation_statuses.build_unreadable(unreadable, now=now)
            if await objects.apply_status(self._cluster, **where, status=status) == "written":
                await events.post(self._cluster, event, **where)
        self._note(metadata)

    def _note(self, reconciled: base.ObjectMeta) -> None:
        self._reconciled[reconciled.uid] = reconciled.generation
        if len(self._reconciled) > RECONCILED_MAX:
            self._reconciled.popitem(last=False)

    async def _admission(self, fetched: investigations.AlertInvestigation) -> admitted.Admission:
        """Decide the admission. Raises LaterError while the chain may still be created."""
        namespace = fetched.metadata.namespace
        chains, uid, workers = await asyncio.gather(
            objects.list_usable_chains(self._cluster, namespace=namespace),
            discovery.namespace_uid(self._cluster, namespace),
            catalogue.workers(self._database),
        )
        if uid is None:  # the object is deleted with its namespace
            raise workqueue.LaterError(1.0)
        original = None
        if fetched.spec.retry_of:
            original = await originals.load(self._database, UUID(fetched.spec.retry_of.uid))
        offered = await catalogue.tools_by_server(self._database) if fetched.spec.mcp else {}
        index = self._index(
            chains, unusable_providers=workers.unusable, namespace=namespace, own=self._cluster.served.own
        )
        admission = await asyncio.to_thread(
            decision.decide,
            fetched,
            index,
            mask=self._mask,
            secrets=self._cluster.secrets,
            namespace_uid=uid,
            catalogue=offered,
            original=original,
        )
        refused = admission.chain.reason if isinstance(admission.chain, admitted.Refusal) else chain_index.SELECTION
        if refused not in (chain_index.SELECTION, decision.NOT_RETRIABLE) and not fetched.spec.cancel:
            now = time.monotonic()
            left = self._missed.setdefault(fetched.metadata.uid, now) + CHAIN_GRACE - now
            if left > 0:
                raise workqueue.LaterError(min(left, 1.0))
        return await self._within_budgets(admission)

    async def _within_budgets(self, admission: admitted.Admission) -> admitted.Admission:
        """Return the admission, or its refusal by a budget. Budgets were asked before intake created an object."""
        chain = admission.chain
        if isinstance(chain, admitted.Refusal) or admission.receipt is not None:
            return admission
        subject = budgets.Subject(
            namespace=admission.namespace,
            chain=f"{chain.namespace}/{chain.name}",
            severity=admission.severity or "",
        )
        used_up = await ledgers.refuse_alert(self._database, self._platform(), subject)
        if used_up is None:
            return admission
        return replace(admission, chain=admitted.Refusal(reason=budgets.SPENT, message=used_up.text))

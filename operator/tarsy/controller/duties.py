"""Duties of one replica for all: resync of store and cluster, deletion of expired objects, retention, deliveries.

Every replica sweeps, so that a cancelled run ends soon after its worker has died, even if that process was the leader.

A watch that was interrupted has missed deletions, and the API server does not report them again. The resync lists the
metadata of open investigations and reconciles the new ones. It also reconciles those that are missing from the list, by
a live read, because a list is a snapshot and an absence from it proves nothing. Investigations with an open question
have ended, so the list does not have them; they are always reconciled. If many are missing at once, or the cluster is
another one, the likely cause is a mistake, such as a wrong kubeconfig or a restored database. Then no investigation is
stopped, and an alarm is logged. Absences count by namespace. If a namespace itself is gone, or another one has its
name, its investigations end, however many they are: a live read of the namespace is the proof.

A right that is missing in one namespace holds up no duty in another.

Ended investigations stay for days, and there are many more of them than open ones. A watch that resumes has missed none
of their changes; one that starts anew lists open investigations only. So the resync lists all investigations once after
each start of the watch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

from tarsy import errors
from tarsy.config.model import budgets, platforms
from tarsy.controller import database_gauges, delivery_queues, investigations, retention
from tarsy.kube import client, discovery, objects, watch
from tarsy.store.base import databases
from tarsy.store.fleet import leader, passed_over
from tarsy.store.intake import queueing, receipts, unserved
from tarsy.store.operations import expiry, open_investigations
from tarsy.store.queue import ledgers, work
from tarsy.telemetry import metrics

EVERY_SECONDS = 5.0
RESYNC_PASSES = 3
"""The number of passes from one resync to the next; expired objects are deleted in each pass."""
SWEEP_SECONDS = 2.0
"""The interval of sweeps: a cancelled run without a worker must end within 5 s after its lease, also under load."""
EXPIRED_AT_ONCE = 100
RESIGN_SECONDS = 2.0
ALARMING_SHARE = 0.2
HARMLESS_ABSENCES = 5
"""Number of missing objects that raises no alarm, whatever their share."""

log = logging.getLogger(__name__)


class Duties:
    """The duties of the controller role; the replica that holds the leader's lease does them."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        reconciler: investigations.Reconciler,
        owner: UUID,
        platform: Callable[[], platforms.Platform],
        watch_lists: Callable[[str], int] = lambda _: 0,
        post_unserved: Callable[[], Awaitable[None]] | None = None,
        post_budgets: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`platform` returns the platform file in force.

        `watch_lists` returns how often this process's watch of a namespace began anew (`watch.Watcher.lists`).

        `post_unserved` and `post_budgets` are called in each pass (`unserved_events.UnservedEvents.post`,
        `budget_events.BudgetEvents.post`).
        """
        self._post_unserved = post_unserved
        self._post_budgets = post_budgets
        self._cluster = cluster
        self._database = database
        self._reconciler = reconciler
        self._owner = owner
        self._platform = platform
        self._watch_lists = watch_lists
        self._complete_after: dict[str, int] = {}
        """The value of `watch_lists` at the last resync that listed all investigations of a namespace."""
        self._refused: dict[tuple[str, str], str] = {}
        """The refusals that were logged, by namespace and duty."""
        self._leads_until = 0.0
        """The monotonic time until which this process holds the leader's lease."""
        self._gauges = database_gauges.DatabaseGauges(
            database, platform=platform, leads_until=lambda: self._leads_until
        )
        self._retention = retention.Retention(database, platform=platform, leads_until=lambda: self._leads_until)
        self._deliveries = delivery_queues.DeliveryQueues(
            cluster=cluster, database=database, platform=platform, leads_until=lambda: self._leads_until
        )

    async def run(self) -> None:
        """Do the duties until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            group.create_task(self._lead())
            group.create_task(self._gauges.run())
            group.create_task(self._retention.run())
            group.create_task(self._deliveries.run())

    async def _sweep(self) -> None:
        while True:
            with _waiting():
                if stranded := await work.sweep(self._database):
                    log.info("ended cancelled runs without a worker", extra={"action": "swept", "count": stranded})
                if passed := await passed_over.sweep(self._database):
                    log.warning(
                        "ended investigations that no worker could run",
                        extra={"action": "passed_over", "count": passed},
                    )
            await asyncio.sleep(SWEEP_SECONDS)

    async def _lead(self) -> None:
        passes = 0
        budgets_known: Mapping[str, budgets.Budget] | None = None  # limits may have changed before this process came
        try:
            while True:
                with _waiting():
                    if await self._leads():
                        await queueing.drop_unused_large(self._database)
                        await receipts.drop_expired(self._database, window=self._platform().ingest.dedup_window)
                        await unserved.drop_old(self._database)
                        await ledgers.drop_old(self._database)
                        if budgets_known != (in_force := self._platform().budgets):
                            await ledgers.wake_waiting(self._database)
                            budgets_known = in_force
                        await self._expire()
                        if passes % RESYNC_PASSES == 0:
                            await self.resync()
                        passes += 1
                        for post in filter(None, (self._post_unserved, self._post_budgets)):
                            with _waiting():  # the other duties go on without it
                                await post()
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            await self._resign()

    async def _leads(self) -> bool:
        """Acquire or renew the leader's lease; return whether this process holds it."""
        sent = time.monotonic()
        leads = await leader.lead(self._database, leader.CONTROLLER, owner=self._owner, lease=leader.LEASE)
        self._leads_until = sent + leader.LEASE.total_seconds() if leads else 0.0
        return leads

    async def _resign(self) -> None:
        """Release the leader's lease, so that another replica leads at once: it may have a newer platform file."""
        self._leads_until = 0.0
        metrics.DUTIES.end()
        try:
            async with asyncio.timeout(RESIGN_SECONDS):
                await leader.resign(self._database, leader.CONTROLLER, owner=self._owner)
        except (databases.StoreDownError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            log.warning("leader's lease not released, it will expire: %s", reason, extra={"action": "duties_kept"})

    async def _expire(self) -> None:
        """Delete the objects whose time to live is over; their rows in the store stay."""
        for namespace in self._cluster.served:
            with self._unless_refused(namespace, duty="expiry"):
                await self._expire_in(namespace)

    async def _expire_in(self, namespace: str) -> None:
        for expired in await expiry.expired(self._database, namespace=namespace, limit=EXPIRED_AT_ONCE):
            outcome = await objects.delete_investigation(
                self._cluster,
                namespace=namespace,
                name=expired.name,
                uid=str(expired.id),
                generation=expired.generation,
            )
            if outcome == "gone":
                await work.gone(self._database, expired.id)
                log_fields = {"investigation": f"{namespace}/{expired.name}", "uid": expired.id}
                log.info("expired", extra={"action": "expired", **log_fields})

    async def resync(self) -> None:
        """Reconcile the investigations that differ between the served namespaces and the store."""
        uid = await discovery.cluster_uid(self._cluster)
        if not await leader.remember_cluster(self._database, uid):
            log.critical("the database belongs to another cluster", extra={"action": "other_cluster", "cluster": uid})
            return
        for namespace in self._cluster.served:
            with self._unless_refused(namespace, duty="resync"):
                await self._resync_in(namespace)

    @contextmanager
    def _unless_refused(self, namespace: str, *, duty: str) -> Iterator[None]:
        """Log the refusal of a duty in a namespace, once while it lasts; the next pass tries again."""
        try:
            yield
        except (objects.ForbiddenError, objects.RefusedError) as error:
            if self._refused.get((namespace, duty)) != str(error):
                self._refused[namespace, duty] = str(error)
                log_fields = {"action": "duty_refused", "namespace": namespace, "duty": duty}
                log.warning("a duty waits in one namespace: %s", error, extra=log_fields)
        else:
            self._refused.pop((namespace, duty), None)

    async def _resync_in(self, namespace: str) -> None:
        if not await self._end_gone(namespace):
            return
        lists = self._watch_lists(namespace)
        everything = lists != self._complete_after.get(namespace, 0)
        open_count, absent = await self._compare(namespace, everything=everything)
        if _alarming(open_count, absent):  # the list selects by status, which other clients can write
            open_count, absent = await self._compare(namespace, everything=True)
        self._complete_after[namespace] = lists
        if _alarming(open_count, absent):
            log.critical(
                "too many investigations have no object: none is stopped",
                extra={
                    "action": "resync_alarm",
                    "namespace": namespace,
                    "absent": len(absent),
                    "known": open_count,
                },
            )
            return
        for investigation in (
            *absent,
            *await open_investigations.list_with_question(self._database, namespace=namespace),
        ):
            self._reconciler.add(
                investigations.Key(namespace=namespace, name=investigation.name, uid=str(investigation.id))
            )

    async def _end_gone(self, namespace: str) -> bool:
        """End the investigations of former namespaces of this name; return whether a namespace has the name now.

        The namespace goes with its objects, and with the rights to ask for them.
        """
        # The store is read first: what is admitted after that may belong to a namespace that was created after that.
        references = (
            *await open_investigations.list_open(self._database, namespace=namespace),
            *await open_investigations.list_with_question(self._database, namespace=namespace),
        )
        uid = await discovery.namespace_uid(self._cluster, namespace)
        for reference in references:
            if uid is None or reference.namespace_uid not in (None, uid):
                await work.gone(self._database, reference.id)
                log_fields = {"investigation": f"{namespace}/{reference.name}", "uid": reference.id}
                log.warning("the namespace is gone", extra={"action": "namespace_gone", **log_fields})
        return uid is not None

    async def _compare(self, namespace: str, *, everything: bool) -> tuple[int, list[open_investigations.Reference]]:
        """Reconcile new investigations; return the number that are open in the store, and those that are not listed."""
        # The store is read first, so that an investigation that is admitted between the two reads counts as new.
        open_in_store = await open_investigations.list_open(self._database, namespace=namespace)
        listed = await objects.list_investigations(self._cluster, namespace=namespace, unfinished=not everything)
        generations = {metadata.uid: metadata.generation for metadata in listed}
        settled = await open_investigations.ended_uids(self._database, generations) if everything else set()
        for metadata in listed:
            if metadata.uid not in settled:
                self._reconciler.seen(
                    watch.Seen(
                        namespace=namespace, name=metadata.name, uid=metadata.uid, generation=metadata.generation
                    )
                )
        return len(open_in_store), [
            investigation for investigation in open_in_store if str(investigation.id) not in generations
        ]


@contextmanager
def _waiting() -> Iterator[None]:
    """Log temporary errors; a later pass tries again."""
    try:
        yield
    except (errors.TemporaryError, objects.RefusedError) as error:
        log.warning("duties wait: %s", error, extra={"action": "duties_wait"})


def _alarming(open_count: int, absent: Sequence[open_investigations.Reference]) -> bool:
    return len(absent) > max(HARMLESS_ABSENCES, ALARMING_SHARE * open_count)

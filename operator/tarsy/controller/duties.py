"""Duties of one replica for all: the resync of store and cluster, and the deletion of expired objects.

Every replica sweeps: a cancelled run ends soon after its worker has died, even if that process was the leader.

A watch that was away has missed deletes, and they are not reported again. The resync lists the metadata of open
investigations, has everything new reconciled, and has everything missing checked by a live read: an absence from a list
proves nothing, because a list is a snapshot. Investigations with an open question are checked in any case: they have
ended, and are in no such list. If much is missing at once, or the cluster is another one, the mistake is more likely
ours (a wrong kubeconfig, a restored database) than the cluster's. Then nothing is stopped and an alarm is raised.

Ended investigations stay for days, and are many times the open ones. A watch that resumes has missed nothing of them;
one that starts anew lists only open ones. So after each such list, the first one included, the resync lists everything
once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from tarsy import errors
from tarsy.controller import investigations
from tarsy.kube import client, objects, watch
from tarsy.store.base import databases
from tarsy.store.fleet import leader, passed_over
from tarsy.store.intake import queueing, receipts, unserved
from tarsy.store.operations import open_investigations, retention
from tarsy.store.queue import work

EVERY_SECONDS = 5.0
RESYNC_PASSES = 3
"""Expiry is done in each pass, the resync in every third: every 15 s."""
SWEEP_SECONDS = 2.0
"""Runs without a worker must end within 5 s after their lease, on a busy machine as well."""
EXPIRED_AT_ONCE = 100
GIVE_UP_SECONDS = 2.0
ALARMING_SHARE = 0.2
HARMLESS_ABSENCES = 5
"""So few may be missing whatever their share."""

log = logging.getLogger(__name__)


class Duties:
    """The duties of the controller role; whichever replica holds the lease does them."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        reconciler: investigations.Reconciler,
        owner: UUID,
        dedup_window: Callable[[], timedelta],
        watch_lists: Callable[[], int] = lambda: 0,
        tell: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`watch_lists` says how often this process's watch has begun anew (`watch.Watcher.lists`).

        `tell` is asked often to tell people what one replica is to tell (`notices.Notices.tell`).
        """
        self._tell = tell
        self._cluster = cluster
        self._database = database
        self._reconciler = reconciler
        self._owner = owner
        self._dedup_window = dedup_window
        self._watch_lists = watch_lists
        self._looked_at_all = 0
        """After how many of them everything was listed."""

    async def run(self) -> None:
        """Do what is due until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            group.create_task(self._lead())

    async def _sweep(self) -> None:
        while True:
            with _waiting():
                if stranded := await work.sweep(self._database):
                    log.info("ended what was cancelled without a worker", extra={"action": "swept", "count": stranded})
                if passed := await passed_over.sweep(self._database):
                    log.warning(
                        "ended investigations that no worker could run",
                        extra={"action": "passed_over", "count": passed},
                    )
            await asyncio.sleep(SWEEP_SECONDS)

    async def _lead(self) -> None:
        passes = 0
        try:
            while True:
                with _waiting():
                    if await leader.lead(self._database, leader.CONTROLLER, owner=self._owner, lease=leader.LEASE):
                        await self._clean()
                        await self._expire()
                        if passes % RESYNC_PASSES == 0:
                            await self.resync()
                        passes += 1
                        await self._tell_people()
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            await self._give_up()

    async def _tell_people(self) -> None:
        """Tell what is to be told; where that cannot be done, the other duties go on."""
        if self._tell is not None:
            with _waiting():
                await self._tell()

    async def _give_up(self) -> None:
        """Leave the duties to another replica at once: a new one may have a new platform file."""
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await leader.resign(self._database, leader.CONTROLLER, owner=self._owner)
        except (databases.StoreDownError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            log.warning("the duties are not given up, their lease will pass: %s", why, extra={"action": "duties_kept"})

    async def _clean(self) -> None:
        await queueing.drop_unused_large(self._database)
        await receipts.drop_expired(self._database, window=self._dedup_window())
        await unserved.drop_old(self._database)

    async def _expire(self) -> None:
        """Delete the objects that have had their time; what the store knows of them stays."""
        for namespace in self._cluster.served:
            await self._expire_in(namespace)

    async def _expire_in(self, namespace: str) -> None:
        for expired in await retention.expired(self._database, namespace=namespace, limit=EXPIRED_AT_ONCE):
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
        """Have reconciled what differs between the served namespaces and the store."""
        uid = await objects.cluster_uid(self._cluster)
        if not await leader.remember_cluster(self._database, uid):
            log.critical("the database belongs to another cluster", extra={"action": "other_cluster", "cluster": uid})
            return
        lists = self._watch_lists()
        everything = lists != self._looked_at_all
        for namespace in self._cluster.served:
            await self._resync_in(namespace, everything=everything)
        self._looked_at_all = lists

    async def _resync_in(self, namespace: str, *, everything: bool) -> None:
        open_count, absent = await self._compare(namespace, everything=everything)
        if _alarming(open_count, absent):  # by what their objects' statuses say, which anybody may have written
            open_count, absent = await self._compare(namespace, everything=True)
        if _alarming(open_count, absent):
            log.critical(
                "too many investigations have no object: none is stopped",
                extra={"action": "resync_alarm", "absent": len(absent), "known": open_count},
            )
            return
        for investigation in (
            *absent,
            *await open_investigations.list_with_question(self._database, namespace=namespace),
        ):
            self._reconciler.add(
                investigations.Key(namespace=namespace, name=investigation.name, uid=str(investigation.id))
            )

    async def _compare(self, namespace: str, *, everything: bool) -> tuple[int, list[open_investigations.Reference]]:
        """Have reconciled what is new; how many are open in the store, and which of them are not listed."""
        # The store first: what is admitted between the two reads is then new in the list, not absent from it.
        known = await open_investigations.list_open(self._database, namespace=namespace)
        listed = await objects.list_metadata(self._cluster, namespace=namespace, unfinished=not everything)
        generations = {metadata.uid: metadata.generation for metadata in listed}
        settled = await open_investigations.ended_uids(self._database, generations) if everything else set()
        for metadata in listed:
            if metadata.uid not in settled:
                self._reconciler.seen(
                    watch.Seen(
                        namespace=namespace, name=metadata.name, uid=metadata.uid, generation=metadata.generation
                    )
                )
        return len(known), [investigation for investigation in known if str(investigation.id) not in generations]


@contextmanager
def _waiting() -> Iterator[None]:
    """Leave work that fails for now to a later pass."""
    try:
        yield
    except (errors.TemporaryError, objects.RefusedError) as error:
        log.warning("duties wait: %s", error, extra={"action": "duties_wait"})


def _alarming(open_count: int, absent: Sequence[open_investigations.Reference]) -> bool:
    return len(absent) > max(HARMLESS_ABSENCES, ALARMING_SHARE * open_count)

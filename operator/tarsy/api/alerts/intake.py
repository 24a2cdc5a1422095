"""Creation of investigations: an object in the cluster and its row in the store, before the request is answered.

After 2xx Alertmanager is done, after 5xx it sends the same notification again, and after 4xx it waits until its group
changes. So an alert that TARSy decides not to investigate is answered 2xx with the reason, and an alert that cannot be
stored now is answered 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tarsy import errors, failpoints
from tarsy.api.alerts import concurrency, owners
from tarsy.auth import identities
from tarsy.config.check import chain_index
from tarsy.config.model import budgets, platforms, webhooks
from tarsy.ingest import decision, manifest
from tarsy.kube import client, discovery, objects
from tarsy.resources import base
from tarsy.resources.chains import AgentChain
from tarsy.serve import bodies, problems
from tarsy.store.base import databases, notify
from tarsy.store.fleet import catalogue
from tarsy.store.intake import queueing, receipts
from tarsy.store.queue import ledgers, work
from tarsy.transcript import admission

NAMES_TRIED = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServedChains:
    """The chains that investigations of a namespace may use, as listed when an alert arrived."""

    namespace_uid: str | None
    """None if the namespace does not exist; then no object can be created in it."""
    index: chain_index.ChainIndex


class ChainLister:
    """Lists the chains that investigations of a namespace may use.

    The last index of each namespace is kept, because chains seldom change.
    """

    def __init__(
        self,
        cluster: client.Cluster,
        database: databases.Database,
        *,
        index: chain_index.Indexer,
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        """`generation` returns another number once `index` checks chains against another platform file."""
        self._cluster = cluster
        self._database = database
        self._index = index
        self._generation = generation
        self._cached_lists: dict[str, asyncio.Task[ServedChains]] = {}
        """The latest lists from the API server's cache; all callers share one while it is under way."""
        self._latest: dict[str, tuple[tuple[object, ...], chain_index.ChainIndex]] = {}
        """The last index of each namespace, with the versions of all that it was built from."""

    async def list_for(self, alert_types: Collection[str], *, namespace: str) -> ServedChains:
        """List all chains for the investigations of a namespace, such that no chain of `alert_types` is missing.

        The API server's cache is asked first. If it lacks a ready chain for one of `alert_types`, the chain may have
        been created just now, so the list is read again, bypassing the cache.
        """
        under_way = self._cached_lists.get(namespace)
        if under_way is None or under_way.done():
            under_way = asyncio.create_task(self._list(namespace, cached=True), context=Context())
            self._cached_lists[namespace] = under_way
        listed = await asyncio.shield(under_way)
        try:
            for alert_type in alert_types:
                listed.index.chain_for(alert_type)
        except chain_index.UnservedError:
            return await self._list(namespace, cached=False)
        return listed

    async def _list(self, namespace: str, *, cached: bool) -> ServedChains:
        listed, uid, workers = await asyncio.gather(
            objects.list_usable_chains(self._cluster, namespace=namespace, cached=cached),
            discovery.namespace_uid(self._cluster, namespace),
            catalogue.workers(self._database),
        )
        versions = (
            self._generation(),
            *sorted(workers.unusable.items()),
            *((chain.metadata.uid, chain.metadata.resource_version) for chain in listed),
        )
        former, index = self._latest.get(namespace, (None, None))
        if index is None or former != versions:
            index = self._index(
                listed, unusable_providers=workers.unusable, namespace=namespace, own=self._cluster.served.own
            )
            self._latest[namespace] = versions, index
        return ServedChains(namespace_uid=uid, index=index)


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Creates investigations, each once for its receipt."""

    cluster: client.Cluster
    database: databases.Database
    chains: ChainLister
    platform: Callable[[], platforms.Platform]
    """Returns the platform file in force."""
    owners: owners.Owners
    max_queued: int
    mask: Callable[[str], str]
    bodies: bodies.Bodies
    notification_slots: concurrency.NotificationSlots
    pages: Callable[[], str | None] = lambda: None
    """Returns the public address of the pages, to which objects refer; None if there is none."""
    on_admitted: Callable[[base.ObjectMeta], None] | None = None
    """Called with each object that was created and admitted, so that this process's controller can skip it."""

    @property
    def namespace(self) -> str:
        """The namespace of alerts that come without one."""
        return self.cluster.served.default

    def settings(self) -> webhooks.Ingest:
        """Return the settings in force."""
        return self.platform().ingest

    async def refuse_alert(self, chain: AgentChain, *, namespace: str, severity: str) -> ledgers.UsedUp | None:
        """Return the budgets that refuse a new alert of a chain, or None."""
        subject = budgets.Subject(
            namespace=namespace, chain=f"{chain.metadata.namespace}/{chain.metadata.name}", severity=severity
        )
        return await ledgers.refuse_alert(self.database, self.platform(), subject)

    async def free_slots(self) -> int:
        """Return the number of further investigations that may be queued."""
        return self.max_queued - await work.queued(self.database)

    async def ensure_free_slot(self) -> None:
        """Answer 503 if no more investigations may be queued now."""
        if await self.free_slots() <= 0:
            message = f"{self.max_queued} investigations are queued already; send it again"
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message)

    async def create(
        self,
        draft: manifest.Draft,
        receipt: receipts.Receipt,
        chains: ServedChains,
        caller: identities.Caller,
        *,
        original: admission.Original | None = None,
        hints: list[notify.Hint] | None = None,
    ) -> objects.Created:
        """Create the object of a receipt and its row, under another name if another object has the name.

        Return the existing object if an earlier call with the same receipt created it. `original` is the investigation
        that it retries. `hints` are those of `queueing.admit`.
        """
        for _ in range(NAMES_TRIED):
            name = receipt.name
            try:
                drafted = draft.with_receipt(name=name, word=receipt.word, pages=self.pages())
                created = await self._create_object(drafted)
            except objects.UnreadableError:  # another object has the name: those of intake are readable
                created = None
            if created is None or created.existed:
                receipt = await receipts.read(self.database, receipt)
            if created and (not created.existed or receipt.proves(created.investigation)):
                await self._admit(created, chains, caller, original=original, hints=hints)
                return created
            if receipt.name == name:  # otherwise another process has renamed it already
                full_name = f"{draft.namespace}/{name}"
                log.warning(
                    "object %s does not belong to this receipt: trying another name",
                    full_name,
                    extra={"action": "name_taken", "investigation": full_name},
                )
                receipt = await receipts.rename(self.database, receipt)
        raise errors.TemporaryError(f"{draft.namespace}/{name} is taken by another object, as are the names before it")

    async def _create_object(self, draft: manifest.Draft) -> objects.Created:
        """Store large alert data, which is bound to the object's name, then create the object."""
        if draft.large is not None:
            await queueing.keep_large(
                self.database,
                namespace=draft.namespace,
                object_name=draft.name,
                name=draft.large_name,
                data=draft.large,
                summary=draft.summary,
            )
        failpoints.hit("intake.create.before")
        created = await objects.create_investigation(self.cluster, draft.manifest)
        failpoints.hit("intake.create.after")
        return created

    async def _admit(
        self,
        created: objects.Created,
        chains: ServedChains,
        caller: identities.Caller,
        *,
        original: admission.Original | None,
        hints: list[notify.Hint] | None,
    ) -> None:
        """Admit the object. An existing one is masked again, because a user may have replaced it with its receipt."""
        if created.existed:
            decided = await asyncio.to_thread(
                decision.decide,
                created.investigation,
                chains.index,
                mask=self.mask,
                secrets=self.cluster.secrets,
                namespace_uid=chains.namespace_uid,
                original=original,
            )
        else:
            decided = decision.decide(
                created.investigation,
                chains.index,
                mask=str,
                secrets=self.cluster.secrets,
                namespace_uid=chains.namespace_uid,
                original=original,
            )
        await queueing.admit(
            self.database, decided, just_created=not created.existed, address=caller.address, hints=hints
        )
        if self.on_admitted is not None and not created.existed:
            self.on_admitted(created.investigation.metadata)


def receipt_values(draft: manifest.Draft, caller: identities.Caller) -> dict[str, Any]:
    """Return the arguments with which `receipts` issues the receipt of a draft."""
    fingerprint, starts_ms = draft.episode
    return {
        "namespace": draft.namespace,
        "fingerprint": fingerprint,
        "starts_ms": starts_ms,
        "name": draft.name,
        "digest": draft.digest,
        "address": caller.address,
    }


@asynccontextmanager
async def unavailable_if_temporary() -> AsyncIterator[None]:
    """Answer 503 for a temporary error, so that the sender tries again."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; send it again") from error

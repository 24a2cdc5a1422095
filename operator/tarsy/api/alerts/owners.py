"""Owners of alerts: Pods and Jobs are looked up in the cluster, and their controllers followed (`ingest.owners`).

Only alerts of this cluster are looked up, as the platform file describes them (`ingest.this_cluster`): another cluster
may have a Pod of the same name. Answers are cached for a while, each object's apart, because a storm's Pods have few
ReplicaSets. An owner that is not known in time stays unknown: the sender of the alerts waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from tarsy import errors
from tarsy.api.alerts import concurrency
from tarsy.auth import single_flight
from tarsy.config.model import webhooks
from tarsy.ingest import owners
from tarsy.kube import client, objects
from tarsy.kube import owners as cluster_owners
from tarsy.masking import masker
from tarsy.telemetry import component_states, metrics

SECONDS = 5.0
"""The time limit for the owners of one notification, and for one lookup."""
FOUND_SECONDS = 60.0
NOT_FOUND_SECONDS = 10.0
"""Seconds that an object is cached, and that one is not asked for again if it is absent or the right is missing."""
AT_ONCE = 16
"""Lookups that are under way at once."""
CONTROLLERS_MAX = 5
"""The controllers that are followed from one Pod; a chain of a Pod, a Job and a CronJob has two."""

log = logging.getLogger(__name__)

Found: TypeAlias = "owners.Thing | owners.UnknownError"


class Owners:
    """Finds the owners of alerts."""

    def __init__(
        self,
        cluster: client.Cluster,
        *,
        settings: Callable[[], webhooks.Ingest],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settings` returns those in force; `clock` is monotonic, in seconds: the cache goes by it."""
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._objects = single_flight.Cache[cluster_owners.Owned](within=SECONDS, per_caller=AT_ONCE, clock=clock)
        self._refused_until: dict[str, float] = {}
        """The time until which a kind is not asked for, because the right is missing."""
        self._refusals: dict[str, component_states.StateTracker] = {}
        """The states of the kinds of which the last request was refused."""

    def facts(self) -> Iterator[component_states.ComponentState]:
        """Yield the kinds for which the right is missing, until a request of the kind is answered."""
        for kind, refusal in self._refusals.items():
            yield component_states.ComponentState(
                kind="owners",
                name=kind,
                state=refusal.state,
                since=refusal.since,
                detail=component_states.Owners(),
            )

    async def find_all(
        self, labels: Mapping[str, Mapping[str, str]], *, source: tuple[str, str], mask: Callable[[str], str]
    ) -> dict[str, Found]:
        """Return the owner of each alert, or why it is unknown, within SECONDS; `labels` has the alerts' by some name.

        `source` is the sender, as a kind and a name. `mask` masks what is logged.
        """
        late = owners.UnknownError("unavailable", f"the cluster did not tell its owner in {SECONDS:.0f} s")
        answers: dict[str, Found] = dict.fromkeys(labels, late)

        async def find(name: str) -> None:
            try:
                answers[name] = await self._find(labels[name], source)
            except owners.UnknownError as error:
                answers[name] = error

        try:
            async with asyncio.timeout(SECONDS):
                await concurrency.for_each(labels, find)
        except TimeoutError:
            pass
        _report(answers.values(), mask=mask)
        return answers

    async def _find(self, labels: Mapping[str, str], source: tuple[str, str]) -> owners.Thing:
        """Return the owner of an alert. Raises owners.UnknownError."""
        named = owners.named(labels)
        if (named.group, named.kind) not in cluster_owners.KINDS:
            return named
        try:
            self._ensure_this_cluster(labels, source)
            read = await self._read(named)
        except owners.UnknownError:
            if named.kind == "Pod" and owners.is_like_node_exporter(labels):
                return owners.node(labels, of_exporter=True)
            raise
        if owners.is_exporter(read.programs):
            if not owners.is_node_exporter(read.programs):
                raise owners.UnknownError("unnamed", f"{named} is an exporter, which reports on other things")
            return owners.node(labels, of_exporter=True)
        return await self._follow(named, read)

    def _ensure_this_cluster(self, labels: Mapping[str, str], source: tuple[str, str]) -> None:
        settings = self._settings()
        if (this_cluster := settings.this_cluster) is None:
            raise owners.UnknownError("elsewhere", "ingest.this_cluster does not say which alerts are this cluster's")
        kind, sender = source
        if kind not in ("source", "token") or sender not in this_cluster.senders:
            raise owners.UnknownError("elsewhere", "its sender is not among ingest.this_cluster.senders")
        if labels.get(settings.cluster_label, "") != this_cluster.name:
            label = settings.cluster_label
            raise owners.UnknownError("elsewhere", f"its label {label} is not that of ingest.this_cluster.name")

    async def _follow(self, owner: owners.Thing, read: cluster_owners.Owned) -> owners.Thing:
        """Return the last controller that can be named, from `owner` on, which was read."""
        for _ in range(CONTROLLERS_MAX):
            controller = read.controller
            if controller is None or (controller.group, controller.kind) == ("", "Node"):  # a static Pod is an owner
                break
            owner = owners.Thing(
                group=controller.group,
                kind=controller.kind,
                namespace=owner.namespace,
                name=controller.name,
                uid=controller.uid,
            )
            if (owner.group, owner.kind) not in cluster_owners.KINDS:
                break
            read = await self._read(owner)
        else:
            raise owners.UnknownError("absent", f"{owner} has more than {CONTROLLERS_MAX} controllers above it")
        return owners.Thing(group=owner.group, kind=owner.kind, namespace=owner.namespace, name=owner.name)

    async def _read(self, named: owners.Thing) -> cluster_owners.Owned:
        """Return an object, read at most FOUND_SECONDS ago. Raises owners.UnknownError, also for another uid."""

        async def look_up() -> single_flight.Answer[cluster_owners.Owned]:
            read = await cluster_owners.read(
                self._cluster, group=named.group, kind=named.kind, namespace=named.namespace, name=named.name
            )
            self._refusals.pop(named.kind, None)
            fits = read is not None and named.uid in ("", read.uid)
            return single_flight.Answer(value=read, seconds=FOUND_SECONDS if fits else NOT_FOUND_SECONDS)

        if self._clock() < self._refused_until.get(named.kind, 0.0):
            raise _forbidden(named)
        try:
            read = await self._objects.get(repr(named).encode(), look_up, caller=named.kind)
        except objects.ForbiddenError as error:
            self._refused_until[named.kind] = self._clock() + NOT_FOUND_SECONDS
            self._refusals.setdefault(named.kind, component_states.StateTracker("refused"))
            log.warning("owners of alerts cannot be read: %s", error, extra={"action": "owners_forbidden"})
            raise _forbidden(named) from error
        except (errors.TemporaryError, objects.RefusedError, TimeoutError) as error:
            reason = str(error) or "the API server takes too long"
            raise owners.UnknownError("unavailable", f"{named} cannot be read: {reason}") from error
        if read is None:
            raise owners.UnknownError("absent", f"{named} is not in the cluster")
        if named.uid not in ("", read.uid):
            raise owners.UnknownError("absent", f"{named} of that uid is not in the cluster: another one has its name")
        return read


def _forbidden(named: owners.Thing) -> owners.UnknownError:
    return owners.UnknownError("forbidden", f"TARSy lacks the right to get {named.kind}s: set rbac.owners of the chart")


def _report(answers: Collection[Found], *, mask: Callable[[str], str]) -> None:
    """Count the outcomes, and log an example of each reason why owners are unknown."""
    unknown = [error for error in answers if isinstance(error, owners.UnknownError)]
    examples = {error.kind: str(error) for error in reversed(unknown)}
    for kind, count in Counter(error.kind for error in unknown).items():
        metrics.ALERT_OWNERS.add(kind, amount=count)
        example = masker.or_withheld(mask, examples[kind])
        log.info(
            "%d alerts are investigated alone, such as: %s",
            count,
            example,
            extra={"action": "owners_unknown", "kind": kind},
        )
    if identified := sum(isinstance(owner, owners.Thing) for owner in answers):
        metrics.ALERT_OWNERS.add("found", amount=identified)

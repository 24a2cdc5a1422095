"""Notifications: webhooks that take many alerts at once.

Each alert is investigated, counted on the investigation that it repeats, or ignored with a reason:

1. The body is parsed. Alerts that cannot be read are ignored; the others are grouped by fingerprint.
2. Alerts that are resolved, or that repeat an investigation, are recorded.
3. If alerts are left, their common data are loaded: chains, free slots of the queue, data of the notification.
4. An investigation is created for each of them.

Steps 2 and 4 take eight fingerprints at once, and the alerts of one fingerprint one after another, because the second
may repeat the first. An unexpected exception there is a defect: only its alert is lost, because it would raise the same
exception when it is sent again. Other failures end the notification, which its sender then sends again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from http import HTTPStatus
from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from tarsy import errors
from tarsy.api.alerts import intake
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.ingest import alertmanager, formats, grafana, manifest, payload
from tarsy.kube import objects
from tarsy.masking import masker
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import databases
from tarsy.store.intake import episodes, receipts, unserved
from tarsy.store.queue import work
from tarsy.telemetry import metrics

NOTIFICATION_MAX = 10 * 1024 * 1024
"""Bytes of a request; Alertmanager does not limit its groups."""
AT_ONCE = 8
"""Fingerprints of one notification that are taken at once."""
NEW_MAX = 1000
"""Investigations that are created for one notification; its sender has to send it again for the other alerts."""
LOOKUP_SECONDS = 5.0
"""The time limit for the question to the API server whether an object exists."""
OUTCOMES_MAX = 1000
"""Alerts whose outcome is in the receipt of the notification."""
TEXT_MAX = 1024
"""Characters of a name or a reason in the receipt and in logs."""
DEFECT = "a defect of TARSy prevents this alert from being taken; its log has the traceback"

log = logging.getLogger(__name__)


class Outcome(BaseModel):
    """The outcome of one alert."""

    alertname: str
    """The alert's own label, whichever chain takes it."""
    outcome: Literal["created", "repeated", "resolved", "ignored"]
    id: UUID | None = None
    """The investigation that was created, or that the alert repeats or resolves. None if there is none."""
    namespace: str | None = None
    name: str | None = None
    reason: str = ""
    """The reason why the alert was ignored, with the alert types that chains take, or why the default chain takes it.
    If it repeats an investigation that came to nothing: the time at which the next one may begin."""


class Counts(BaseModel):
    """The number of alerts for each outcome."""

    created: int = 0
    repeated: int = 0
    resolved: int = 0
    ignored: int = 0


class Receipt(BaseModel):
    """The outcome of a notification."""

    alerts: list[Outcome]
    """The first thousand alerts, in the notification's order."""
    counts: Counts
    """The counts of all alerts."""
    truncated: int
    """The number of alerts that the sender left out, as it states."""


def routes(alert_intake: intake.Intake, access: permissions.Access) -> APIRouter:
    """Return the webhooks."""
    router = strict.router(prefix="/api/v1", tag="alerts")

    of_alertmanager, of_grafana = openapi.body(alertmanager.schema()), openapi.body(grafana.schema())

    @router.post("/webhooks/alertmanager", operation_id="notifyOfAlerts", openapi_extra=of_alertmanager)
    async def notify(request: Request, destination: permissions.Destination = Depends(access.notify)) -> Receipt:
        """Take a notification of Alertmanager's webhook receiver, format 4."""
        return await take(alert_intake, request, destination, sent_by="alertmanager")

    @router.post("/webhooks/alertmanager/{namespace}", operation_id="notifyOfAlertsIn", openapi_extra=of_alertmanager)
    async def notify_in(request: Request, destination: permissions.Destination = Depends(access.notify_in)) -> Receipt:
        """Take a notification of Alertmanager for a namespace: its investigations are created there."""
        return await take(alert_intake, request, destination, sent_by="alertmanager")

    @router.post("/webhooks/grafana", operation_id="notifyOfGrafanaAlerts", openapi_extra=of_grafana)
    async def notify_of_grafana(
        request: Request, destination: permissions.Destination = Depends(access.notify)
    ) -> Receipt:
        """Take a notification of Grafana's webhook contact point, format 1."""
        return await take(alert_intake, request, destination, sent_by="grafana")

    @router.put("/webhooks/grafana", operation_id="putGrafanaAlerts", openapi_extra=of_grafana)
    async def put_of_grafana(
        request: Request, destination: permissions.Destination = Depends(access.notify)
    ) -> Receipt:
        """Take the same notification from a contact point that uses PUT."""
        return await take(alert_intake, request, destination, sent_by="grafana")

    @router.post("/webhooks/grafana/{namespace}", operation_id="notifyOfGrafanaAlertsIn", openapi_extra=of_grafana)
    async def notify_of_grafana_in(
        request: Request, destination: permissions.Destination = Depends(access.notify_in)
    ) -> Receipt:
        """Take a notification of Grafana for a namespace: its investigations are created there."""
        return await take(alert_intake, request, destination, sent_by="grafana")

    @router.put("/webhooks/grafana/{namespace}", operation_id="putGrafanaAlertsIn", openapi_extra=of_grafana)
    async def put_of_grafana_in(
        request: Request, destination: permissions.Destination = Depends(access.notify_in)
    ) -> Receipt:
        """Take the same notification for a namespace from a contact point that uses PUT."""
        return await take(alert_intake, request, destination, sent_by="grafana")

    return router


async def take(
    alert_intake: intake.Intake, request: Request, destination: permissions.Destination, *, sent_by: formats.Format
) -> Receipt:
    """Take the alerts of a notification and return their outcomes. Raises a Problem (503) if it must be sent again."""
    body = await alert_intake.bodies.read(request, limit=NOTIFICATION_MAX)
    try:
        notification = await bodies.process(formats.PARSERS[sent_by], body, size=len(body))
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    batch = _Batch(notification, alert_intake=alert_intake, destination=destination, sent_by=sent_by, size=len(body))
    try:
        async with intake.unavailable_if_temporary():
            await batch.take()
    finally:
        batch.log_outcome()
    if batch.waiting:
        taken = f"{batch.counts['created']} new alerts were taken and {batch.waiting} were not"
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{taken}, because {batch.limit}; send it again")
    return batch.receipt()


@dataclass(frozen=True, kw_only=True)
class _Result:
    """The outcome of one alert, as the batch records it."""

    outcome: Literal["created", "repeated", "resolved", "ignored"]
    investigation: episodes.Reference | None = None
    ignored: str = ""
    """The kind of the reason why the alert was ignored; "" if it was not."""
    reason: str = ""


@dataclass(kw_only=True)
class _Shared:
    """The common data of the new alerts of a notification."""

    chains: intake.ServedChains
    notification_data: manifest.NotificationData | None
    """None: it is too large."""
    free_slots: int
    """Investigations that may still be created."""


class _Batch:
    """The alerts of one notification, and their results so far."""

    def __init__(
        self,
        notification: alertmanager.Notification,
        *,
        alert_intake: intake.Intake,
        destination: permissions.Destination,
        sent_by: formats.Format,
        size: int,
    ) -> None:
        """`size` is the notification's, in bytes."""
        self.waiting = 0
        """New alerts for which no slot was free."""
        self.limit = f"{NEW_MAX} are taken of one notification"
        """The limit that these alerts exceed."""
        self._notification = notification
        self._intake = alert_intake
        self._settings = alert_intake.settings()
        self._rule = episodes.Rule(window=self._settings.dedup_window, cooldown=self._settings.cooldown)
        self._caller = destination.caller
        self._namespace = destination.namespace
        self._sent_by = sent_by
        self._size = size
        self._results: dict[int, _Result] = {}
        """The results by the alerts' positions."""
        self._alerts = defaultdict[str, deque[tuple[int, alertmanager.Alert]]](deque)
        """The readable alerts that have no result yet, with their positions, by fingerprint."""
        self._new: dict[str, episodes.Begin] = {}
        """The verdicts on the alerts that are to be investigated, by fingerprint."""
        self._defect_logged = False
        self._cluster_is_down = False

    async def take(self) -> None:
        """Take the alerts, in the steps that the module describes."""
        await bodies.process(self._sort, size=self._size)
        await _for_each(self._alerts, self._record_known)
        if self._new:
            shared = await self._load_shared()
            await _for_each(self._new, lambda fingerprint: self._take_new(fingerprint, shared))
        if any(result.ignored == "unserved" for result in self._results.values()):
            await unserved.count(self._intake.database, await bodies.process(self._unserved_types, size=self._size))

    def _sort(self) -> None:
        for index, alert in enumerate(self._notification.alerts):
            if isinstance(alert, alertmanager.Alert):
                with self._isolated_defect(index):
                    self._alerts[manifest.fingerprint(alert)].append((index, alert))
            else:
                self._results[index] = _ignored("unreadable", alert.problem)

    async def _record_known(self, fingerprint: str) -> None:
        """Record the alerts of a fingerprint up to the first one that is to be investigated."""
        alerts = self._alerts[fingerprint]
        while alerts:
            index, alert = alerts[0]
            with self._isolated_defect(index):
                result = await self._look_up(alert, fingerprint)
                if isinstance(result, episodes.Begin):
                    self._new[fingerprint] = result
                    return
                self._results[index] = result
            alerts.popleft()

    async def _take_new(self, fingerprint: str, shared: _Shared) -> None:
        """Take the alerts of a fingerprint from the first one that is to be investigated."""
        result: _Result | episodes.Begin | None = self._new[fingerprint]
        for index, alert in self._alerts[fingerprint]:
            with self._isolated_defect(index):
                result = result or await self._look_up(alert, fingerprint)
                if isinstance(result, episodes.Begin):
                    result = await self._begin(alert, result.previous, shared)
                if result:
                    self._results[index] = result
            result = None

    @contextmanager
    def _isolated_defect(self, index: int) -> Iterator[None]:
        """Ignore the alert at `index` if an exception is raised that neither the database nor the cluster causes."""
        try:
            yield
        except Exception as error:
            if databases.is_for_all_values(error):
                raise
            self._log_defect(error)
            self._results[index] = _ignored("defect", DEFECT)

    def _log_defect(self, error: Exception) -> None:
        """Log the first defect of a notification, with its traceback."""
        if not self._defect_logged:
            self._defect_logged = True
            log.error("an alert was not taken because of a defect", exc_info=error, extra={"action": "alert_defect"})

    async def _look_up(self, alert: alertmanager.Alert, fingerprint: str) -> _Result | episodes.Begin:
        """Record an alert that is resolved or a repeat; return the verdict on any other."""
        database = self._intake.database
        episode: dict[str, Any] = {
            "namespace": self._namespace,
            "fingerprint": fingerprint,
            "starts_at": alert.starts_at,
        }
        if alert.status == "resolved":
            resolved = await episodes.resolve(database, **episode)
            if resolved is None:
                return _ignored("unknown", "resolved, but it was never investigated")
            return _Result(outcome="resolved", investigation=resolved)
        verdict = await episodes.look_up(database, **episode, rule=self._rule)
        if isinstance(verdict, episodes.Repeat) and verdict.deletable and await self._is_deleted(verdict.investigation):
            await work.gone(database, verdict.investigation.id)
            verdict = await episodes.look_up(database, **episode, rule=self._rule)
        if isinstance(verdict, episodes.Repeat):
            return await self._count_repeat(verdict.investigation, reason=_next_beginning(verdict))
        return verdict

    async def _is_deleted(self, investigation: episodes.Reference) -> bool:
        """Ask the cluster whether the object was deleted, because the watch may be late or miss a deletion.

        If the cluster does not answer, it is not asked again for this notification.
        """
        if self._cluster_is_down:
            return False
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                uid = await objects.get_investigation_uid(
                    self._intake.cluster, namespace=self._namespace, name=investigation.name
                )
        except (errors.TemporaryError, objects.RefusedError, TimeoutError) as error:
            self._cluster_is_down = True
            reason = str(error) or type(error).__name__
            log.warning("cannot look for deleted investigations: %s", reason, extra={"action": "not_looked_for"})
            return False
        return uid != str(investigation.id)

    async def _count_repeat(self, investigation: episodes.Reference, *, reason: str) -> _Result:
        await episodes.count_repeat(self._intake.database, investigation.id)
        return _Result(outcome="repeated", investigation=investigation, reason=reason)

    async def _load_shared(self) -> _Shared:
        alert_types = await bodies.process(self._new_types, size=self._size)
        chains = await self._intake.chains.list_for(alert_types, namespace=self._namespace)
        free_slots = await self._intake.free_slots()
        if free_slots < NEW_MAX:
            self.limit = f"{self._intake.max_queued} investigations are queued already"
        try:
            notification_data = await bodies.process(
                manifest.notification_data, self._notification, size=self._size, mask=self._intake.mask
            )
        except manifest.TooLargeError:
            notification_data = None
        except Exception as error:  # noqa: BLE001 - it is logged, and the alerts are taken without the data
            self._log_defect(error)
            notification_data = manifest.WITHHELD_DATA
        return _Shared(chains=chains, notification_data=notification_data, free_slots=max(0, min(free_slots, NEW_MAX)))

    def _new_types(self) -> set[str]:
        alerts = (alert for fingerprint in self._new for _, alert in self._alerts[fingerprint])
        return {manifest.alert_type(alert, self._settings) for alert in alerts if alert.status == "firing"}

    async def _begin(
        self, alert: alertmanager.Alert, previous: episodes.Reference | None, shared: _Shared
    ) -> _Result | None:
        """Create the investigation of an alert, which follows `previous`. None if no slot is free.

        While no chain is ready for the alert, it is counted on `previous`, because a new investigation would fail too.
        """
        own_type, index = manifest.alert_type(alert, self._settings), shared.chains.index
        try:
            alert_type = index.effective_type(own_type, default=self._settings.default_alert_type)
            if previous:
                index.chain_for(alert_type)
        except chain_index.UnservedError as error:
            if previous:
                return await self._count_repeat(previous, reason=f"not investigated anew: {error}")
            return _ignored("unserved", str(error))
        if shared.free_slots == 0:
            self.waiting += 1
            return None
        if shared.notification_data is None:
            return _ignored("too large", str(manifest.TooLargeError()))
        shared.free_slots -= 1
        result = None
        try:
            draft = await bodies.process(
                manifest.draft_from_alert,
                alert,
                shared.notification_data,
                size=self._size,
                sent_by=self._sent_by,
                alert_type=alert_type,
                namespace=self._namespace,
                author=self._caller.author,
                mask=self._intake.mask,
            )
            result = await self._create(draft, previous, shared.chains)
        except manifest.TooLargeError as error:
            return _ignored("too large", str(error))
        except objects.RefusedError as error:
            return _ignored("refused", str(error))
        finally:
            if not isinstance(result, episodes.Reference):
                shared.free_slots += 1
        reason = "" if alert_type == own_type else f"no chain takes '{own_type}': investigated as '{alert_type}'"
        if isinstance(result, episodes.Repeat):
            return await self._count_repeat(result.investigation, reason=_next_beginning(result) or reason)
        return _Result(outcome="created", investigation=result, reason=reason)

    async def _create(
        self, draft: manifest.Draft, previous: episodes.Reference | None, chains: intake.ServedChains
    ) -> episodes.Reference | episodes.Repeat:
        """Create the object and its row. Return a Repeat if another process was faster."""
        receipt = await receipts.issue_for_alert(
            self._intake.database,
            **intake.receipt_values(draft, self._caller),
            rule=self._rule,
            previous=previous.id if previous else None,
        )
        if isinstance(receipt, episodes.Repeat):
            return receipt
        created = await self._intake.create(draft, receipt, chains, self._caller)
        investigation = episodes.Reference(
            id=UUID(created.investigation.metadata.uid), name=created.investigation.metadata.name
        )
        if created.existed:
            return episodes.Repeat(investigation=investigation)
        if previous:
            name = f"{self._namespace}/{investigation.name}"
            log.info(
                "another investigation begun after %s",
                f"{self._namespace}/{previous.name}",
                extra={"action": "begun_anew", "investigation": name, "uid": investigation.id},
            )
        return investigation

    def _unserved_types(self) -> Counter[str]:
        """Count the alerts that no chain takes by type: the most frequent by their masked types, the others as one."""
        alerts = self._notification.alerts
        types = Counter(
            manifest.alert_type(alerts[index], self._settings)
            for index, result in self._results.items()
            if result.ignored == "unserved"
        )
        counts = Counter[str]()
        for alert_type, count in types.most_common(unserved.TYPES_MAX):  # masked, because a label may hold a token
            counts[self._intake.mask(alert_type[:TEXT_MAX])[: unserved.TYPE_MAX] or unserved.UNTYPED] += count
        if others := types.total() - counts.total():
            counts[unserved.OTHERS] += others
        return counts

    @property
    def counts(self) -> Counter[str]:
        """The number of alerts for each outcome."""
        return Counter(result.outcome for result in self._results.values())

    def log_outcome(self) -> None:
        """Log one line with the counts, and one line for each kind of reason why alerts were ignored."""

        def mask(text: str) -> str:
            return masker.or_withheld(self._intake.mask, text)

        counts = self.counts
        for outcome, count in (*counts.items(), ("waiting", self.waiting)):
            metrics.WEBHOOK_ALERTS.add(outcome, amount=count)
        receiver = manifest.masked_receiver(self._notification, mask=mask)
        log.info(
            "notification of receiver %s",
            receiver,
            extra={
                "action": "notification",
                "new": counts["created"],
                **{outcome: counts[outcome] for outcome in ("repeated", "resolved", "ignored")},
                "waiting": self.waiting,
            },
        )
        ignored = [result for result in self._results.values() if result.ignored]
        examples = {result.ignored: result.reason for result in reversed(ignored)}
        for kind, count in sorted(Counter(result.ignored for result in ignored).items()):
            example = mask(examples[kind][:TEXT_MAX])
            log.info("%d alerts ignored, such as: %s", count, example, extra={"action": "ignored", "kind": kind})
        if truncated := self._notification.truncated_alerts:
            log.warning(
                "the sender left out alerts: raise max_alerts of receiver %s",
                receiver,
                extra={"action": "truncated", "count": truncated},
            )

    def receipt(self) -> Receipt:
        """Return the outcome of the notification."""
        outcomes = []
        for index, alert in enumerate(self._notification.alerts[:OUTCOMES_MAX]):
            result = self._results[index]
            investigation = result.investigation
            outcomes.append(
                Outcome(
                    alertname=alert.alertname[:TEXT_MAX],
                    outcome=result.outcome,
                    id=investigation and investigation.id,
                    namespace=investigation and self._namespace,
                    name=investigation and investigation.name,
                    reason=result.reason[:TEXT_MAX],
                )
            )
        counts = Counts(**{outcome: self.counts[outcome] for outcome in Counts.model_fields})
        return Receipt(alerts=outcomes, counts=counts, truncated=self._notification.truncated_alerts)


def _ignored(kind: str, reason: str) -> _Result:
    return _Result(outcome="ignored", ignored=kind, reason=reason)


async def _for_each(fingerprints: Iterable[str], take: Callable[[str], Awaitable[None]]) -> None:
    """Await `take` for each fingerprint, AT_ONCE at a time.

    After an error, no further one begins. The error is raised once those under way have ended.
    """
    left = deque(fingerprints)

    async def take_until_empty() -> None:
        while left:
            try:
                await take(left.popleft())
            except BaseException:
                left.clear()
                raise

    for error in await asyncio.gather(*(take_until_empty() for _ in range(AT_ONCE)), return_exceptions=True):
        if error is not None:
            raise error


def _next_beginning(verdict: episodes.Repeat) -> str:
    """Return a sentence on when the next investigation may begin, if the alert repeats one that came to nothing."""
    if verdict.until is None:
        return ""
    until = verdict.until.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    begins = f"the first firing notification after {until} begins another one, if the chain is ready"
    return f"its investigation came to nothing: {begins}"

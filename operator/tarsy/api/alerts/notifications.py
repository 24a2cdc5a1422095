"""The alerts of notifications, each taken in, counted on what it repeats, or left with a reason."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from http import HTTPStatus
from typing import Literal
from uuid import UUID

from fastapi import Request
from pydantic import BaseModel

from tarsy import errors
from tarsy.api.alerts import chains
from tarsy.api.alerts import intake as intakes
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.ingest import alertmanager, formats, manifest, payload
from tarsy.kube import objects
from tarsy.masking import masker
from tarsy.serve import bodies, problems
from tarsy.store.base import databases
from tarsy.store.intake import episodes, unserved
from tarsy.store.queue import work

NOTIFICATION_MAX = 10 * 1024 * 1024  # bytes; Alertmanager's groups have no bound of their own
AT_ONCE = 8
"""Alerts of one notification that are taken at the same time."""
NEW_AT_ONCE = 1000
"""New alerts that are taken of one notification; for the others it is to be sent again."""
LOOK_SECONDS = 5.0
"""How long the API server may take to say whether an object is there."""
OUTCOMES_TOLD = 1000
TOLD_MAX = 1024
"""Characters of a name or a reason that are told: both come from outside."""
DEFECT = "a defect of TARSy's keeps this alert from being taken; its log has more"

log = logging.getLogger(__name__)


class Outcome(BaseModel):
    """The outcome of one alert."""

    alertname: str
    """The alert's own label, whichever chain takes it."""
    outcome: Literal["created", "repeated", "resolved", "ignored"]
    id: UUID | None = None
    """The investigation's: that was made, or that the alert repeats or resolves. None where there is none."""
    namespace: str | None = None
    name: str | None = None
    reason: str = ""
    """Why it was ignored, with the alert types that there are, or why another chain than its own takes it. Of one that
    repeats an investigation that came to nothing: when another one begins."""


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
    """All of them."""
    truncated: int
    """Alerts that the sender says it left out."""


async def take(
    intake: intakes.Intake, request: Request, caller: permissions.Caller, *, sent_by: formats.Format
) -> Receipt:
    """Serve `POST /api/v1/webhooks/<format>`."""
    body = await bodies.read(request, limit=NOTIFICATION_MAX)
    try:
        notification = await bodies.aside(formats.PARSERS[sent_by], body, size=len(body))
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    taking = _Taking(notification, intake=intake, sent_by=sent_by, caller=caller, size=len(body))
    try:
        async with intakes.keeping():
            await taking.run()
            await taking.count_unserved()
    finally:
        taking.tell()
    if taking.waiting:
        taken = f"{taking.counts['created']} new alerts were taken and {taking.waiting} were not"
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{taken}, because {taking.why}; send it again")
    return taking.receipt()


class _Taking:
    """The alerts of one notification, taken one by one, a few at the same time.

    What those need that are no repeats is looked up for the first of them: chains, and the room in the queue. Who sends
    nothing new needs neither.
    """

    def __init__(
        self,
        notification: alertmanager.Notification,
        *,
        intake: intakes.Intake,
        sent_by: formats.Format,
        caller: permissions.Caller,
        size: int,
    ) -> None:
        """`size` is the notification's, in bytes."""
        self._size = size
        self._sent_by = sent_by
        self._caller = caller
        self.counts = Counter[str]()
        self.waiting = 0
        """New alerts for which there was no place; `why` says what was full."""
        self.why = f"{NEW_AT_ONCE} are taken of one notification"
        self._notification = notification
        self._intake = intake
        self._outcomes: dict[int, Outcome] = {}
        """The outcomes of the first alerts, by position."""
        self._ignored = Counter[str]()
        self._unserved = Counter[str]()
        """Alerts that no chain takes, by their own types."""
        self._examples: dict[str, str] = {}
        """Why alerts were ignored: a reason of each kind."""
        self._lock = asyncio.Lock()
        self._served: chains.Served | None = None
        self._shared: manifest.Shared | manifest.TooLargeError | None = None
        self._places: int | None = None
        self._receiver = ""
        self._ends: Exception | None = None
        """The failure that no alert has caused."""
        self._defect_told = False
        self._cluster_is_away = False

    async def run(self) -> None:
        """Take the alerts. The first error that is not of an alert's making ends it, when what was begun is through."""
        order = defaultdict[str, asyncio.Lock](asyncio.Lock)  # of one alert's episodes, the second repeats the first
        left = await bodies.aside(self._sort, size=self._size)
        failed = False

        async def take() -> None:
            nonlocal failed
            try:
                while left and not failed:
                    index, alert, fingerprint = left.popleft()
                    async with order[fingerprint]:
                        await self._take(index, alert, fingerprint)
            except BaseException:
                failed = True
                raise

        for ended in await asyncio.gather(*(take() for _ in range(AT_ONCE)), return_exceptions=True):
            if ended is not None:
                raise ended

    def _sort(self) -> deque[tuple[int, alertmanager.Alert, str]]:
        """The alerts that can be read, with their fingerprints; the others have their outcome."""
        try:
            self._receiver = manifest.receiver(self._notification, mask=self._intake.mask)
        except Exception as error:  # noqa: BLE001 - it is told
            self._tell_defect(error)
            self._receiver = manifest.UNSHARED.receiver
        readable = deque[tuple[int, alertmanager.Alert, str]]()
        for index, alert in enumerate(self._notification.alerts):
            if isinstance(alert, alertmanager.Alert):
                with self._alone(index, alert):
                    readable.append((index, alert, manifest.fingerprint(alert)))
            else:
                self._ignore(index, alert.alertname, "unreadable", alert.problem)
        return readable

    @contextmanager
    def _alone(self, index: int, alert: alertmanager.Alert) -> Iterator[None]:
        """A defect of ours that this alert meets costs it alone: sent again, it would be met again, for ever.

        What is of no alert's making goes on: the database, the cluster, and what all alerts need.
        """
        try:
            yield
        except errors.TemporaryError:
            raise
        except Exception as error:
            if error is self._ends or databases.is_everybodys(error):
                raise
            self._tell_defect(error)
            self._ignore(index, alert.labels.get("alertname", ""), "defect", DEFECT)

    @contextmanager
    def _of_all(self) -> Iterator[None]:
        """Record failures in this context as not caused by an alert."""
        try:
            yield
        except Exception as error:
            self._ends = error
            raise

    def _tell_defect(self, error: Exception) -> None:
        """Log the exception with its traceback, the first of a notification."""
        if not self._defect_told:
            self._defect_told = True
            log.error("a defect, which an alert has met", exc_info=error, extra={"action": "alert_defect"})

    async def _take(self, index: int, alert: alertmanager.Alert, fingerprint: str) -> None:
        with self._alone(index, alert):
            await self._take_readable(index, alert, fingerprint)

    async def _take_readable(self, index: int, alert: alertmanager.Alert, fingerprint: str) -> None:
        alertname = alert.labels.get("alertname", "")
        intake = self._intake
        if alert.status == "resolved":
            resolved = await episodes.resolved(
                intake.database,
                namespace=intake.cluster.served.default,
                fingerprint=fingerprint,
                starts_at=alert.starts_at,
            )
            if resolved is None:
                self._ignore(index, alertname, "unknown", "resolved, and it was never investigated")
            else:
                self._done(index, alertname, "resolved", resolved)
            return
        verdict = await intake.look_up(alert, fingerprint)
        if isinstance(verdict, episodes.Repeat) and verdict.deletable and await self._is_deleted(verdict.known):
            await work.gone(intake.database, verdict.known.investigation)
            verdict = await intake.look_up(alert, fingerprint)
        if isinstance(verdict, episodes.Repeat):
            await self._repeat(index, alertname, verdict.known, reason=_later(verdict))
            return
        try:
            await self._investigate(index, alert, previous=verdict.previous)
        except chain_index.UnservedError as error:
            self._unserved[manifest.alert_type(alert, intake.settings)] += 1
            self._ignore(index, alertname, "unserved", str(error))
        except manifest.TooLargeError as error:
            self._ignore(index, alertname, "too large", str(error))
        except objects.RefusedError as error:
            self._ignore(index, alertname, "refused", str(error))

    async def _is_deleted(self, episode: episodes.Known) -> bool:
        """Whether the object has left the cluster: the watch is late, and never tells of a deletion that it missed.

        A cluster that is away is asked once in a notification: repeats are counted without it.
        """
        if self._cluster_is_away:
            return False
        cluster = self._intake.cluster
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                uid = await objects.uid_of_investigation(cluster, namespace=cluster.served.default, name=episode.name)
        except (errors.TemporaryError, objects.RefusedError, TimeoutError) as error:
            self._cluster_is_away = True
            why = str(error) or type(error).__name__
            log.warning("deleted investigations are not looked for: %s", why, extra={"action": "not_looked_for"})
            return False
        return uid != str(episode.investigation)

    async def _repeat(self, index: int, alertname: str, episode: episodes.Known, *, reason: str = "") -> None:
        """Count the alert on the investigation that it repeats."""
        await episodes.count(self._intake.database, episode.investigation)
        self._done(index, alertname, "repeated", episode, reason=reason)

    async def _investigate(self, index: int, alert: alertmanager.Alert, *, previous: episodes.Known | None) -> None:
        """Have the alert investigated, anew if there is a `previous` investigation that came to nothing.

        That is only counted on for as long as the chain is not ready: the new one would come to nothing, too.
        """
        intake = self._intake
        alertname = alert.labels.get("alertname", "")
        served = await self._all_served()
        own_type = manifest.alert_type(alert, intake.settings)
        try:
            alert_type = intake.taken_type(own_type, served.index)
            if previous:
                served.index.taking(alert_type)
        except chain_index.UnservedError as error:
            if previous is None:
                raise
            await self._repeat(index, alertname, previous, reason=f"not investigated anew: {error}")
            return
        if not await self._place():
            return
        try:
            draft = await bodies.aside(
                manifest.of_alert,
                alert,
                await self._what_is_shared(),
                size=self._size,
                sent_by=self._sent_by,
                alert_type=alert_type,
                namespace=intake.cluster.served.default,
                author=self._caller.author,
                mask=intake.mask,
            )
            made = await intake.investigate(draft, served, self._caller, previous=previous)
        except Exception:
            self._give_back()
            raise
        reason = "" if alert_type == own_type else f"no chain takes '{own_type}': investigated as '{alert_type}'"
        if isinstance(made, episodes.Repeat):
            self._give_back()
            await self._repeat(index, alertname, made.known, reason=_later(made) or reason)
        else:
            self._done(index, alertname, "created", made, reason=reason)

    async def count_unserved(self) -> None:
        """Count the alerts that no chain takes, for the warnings and for the event."""
        if self._unserved:
            counted = await bodies.aside(self._masked_types, size=self._size)
            await unserved.count(self._intake.database, counted)

    def _masked_types(self) -> Counter[str]:
        """The types that no chain takes, the most frequent ones by name, masked: a label may hold a token."""
        counted = Counter[str]()
        for alert_type, many in self._unserved.most_common(unserved.TYPES_MAX):
            counted[self._intake.mask(alert_type[:TOLD_MAX])[: unserved.TYPE_MAX] or unserved.UNTYPED] += many
        if rest := self._unserved.total() - counted.total():
            counted[unserved.OTHERS] += rest
        return counted

    async def _all_served(self) -> chains.Served:
        async with self._lock:
            if self._served is None:
                with self._of_all():
                    wanted = await bodies.aside(self._wanted_types, size=self._size)
                    self._served = await self._intake.chains.serving(wanted)
            return self._served

    def _wanted_types(self) -> set[str]:
        firing = [alert for alert in self._notification.readable if alert.status == "firing"]
        return {manifest.alert_type(alert, self._intake.settings) for alert in firing}

    async def _what_is_shared(self) -> manifest.Shared:
        async with self._lock:
            if self._shared is None:
                try:
                    self._shared = await bodies.aside(
                        manifest.shared, self._notification, size=self._size, mask=self._intake.mask
                    )
                except manifest.TooLargeError as error:
                    self._shared = error
                except Exception as error:  # noqa: BLE001 - it is told, and the alerts are taken without
                    self._tell_defect(error)
                    self._shared = manifest.UNSHARED
            if isinstance(self._shared, manifest.TooLargeError):
                raise manifest.TooLargeError(str(self._shared))
            return self._shared

    async def _place(self) -> bool:
        """Take one of the places that there are for new alerts; False where there is none."""
        async with self._lock:
            if self._places is None:
                with self._of_all():
                    room = await self._intake.free()
                self._places = max(0, min(room, NEW_AT_ONCE))
                if room < NEW_AT_ONCE:
                    self.why = f"{self._intake.max_queued} investigations are queued already"
            if self._places == 0:
                self.waiting += 1
                return False
            self._places -= 1
            return True

    def _give_back(self) -> None:
        assert self._places is not None  # noqa: S101 - one was taken
        self._places += 1

    def _ignore(self, index: int, alertname: str, kind: str, reason: str) -> None:
        self._ignored[kind] += 1
        if kind not in self._examples:  # it is logged, and names what the alert says
            self._examples[kind] = masker.or_withheld(self._intake.mask, reason[:TOLD_MAX])
        self._done(index, alertname, "ignored", reason=reason)

    def _done(
        self,
        index: int,
        alertname: str,
        outcome: Literal["created", "repeated", "resolved", "ignored"],
        episode: episodes.Known | None = None,
        *,
        reason: str = "",
    ) -> None:
        self.counts[outcome] += 1
        if index < OUTCOMES_TOLD:
            self._outcomes[index] = Outcome(
                alertname=alertname[:TOLD_MAX],
                outcome=outcome,
                id=episode and episode.investigation,
                namespace=episode and self._intake.cluster.served.default,
                name=episode and episode.name,
                reason=reason[:TOLD_MAX],
            )

    def tell(self) -> None:
        """Log what became of the notification: a line, and one more for each kind of reason why alerts were ignored."""
        log.info(
            "notification of receiver %s",
            self._receiver,
            extra={
                "action": "notification",
                "new": self.counts["created"],
                "repeated": self.counts["repeated"],
                "resolved": self.counts["resolved"],
                "ignored": self.counts["ignored"],
                "waiting": self.waiting,
            },
        )
        for kind, count in sorted(self._ignored.items()):
            example = self._intake.mask(self._examples[kind])
            log.info("%d alerts ignored, such as: %s", count, example, extra={"action": "ignored", "kind": kind})
        if left_out := self._notification.truncated_alerts:
            log.warning(
                "alerts were left out by their sender: raise max_alerts of receiver %s",
                self._receiver,
                extra={"action": "truncated", "count": left_out},
            )

    def receipt(self) -> Receipt:
        """Return the outcome of the notification."""
        outcomes = [outcome for _, outcome in sorted(self._outcomes.items())]
        counts = Counts(**{outcome: self.counts[outcome] for outcome in Counts.model_fields})
        return Receipt(alerts=outcomes, counts=counts, truncated=self._notification.truncated_alerts)


def _later(verdict: episodes.Repeat) -> str:
    """When another investigation begins, if the alert repeats one that came to nothing."""
    if verdict.until is None:
        return ""
    until = verdict.until.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    begins = f"the next firing notification from {until} on begins another one, if the chain is ready"
    return f"its investigation came to nothing: {begins}"

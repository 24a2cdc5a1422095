"""Alerts come in: an object and its row for each, before the answer goes out.

Answers by what Alertmanager does with them: 2xx is the end of it, 5xx is sent again, 4xx is not sent again until its
group changes. So what we choose not to investigate is 2xx, with the reason, and what we cannot keep now is 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

import pydantic
from fastapi import Request
from pydantic import BaseModel

from tarsy import errors, failpoints
from tarsy.api import access, bodies, problems
from tarsy.api import chains as lists
from tarsy.config import check, platform
from tarsy.ingest import admission as ingest
from tarsy.ingest import alertmanager, formats, manifest, payload, plain
from tarsy.kube import client, objects
from tarsy.resources import base
from tarsy.store import admission as admissions
from tarsy.store import database as databases
from tarsy.store import episodes, receipts, work

NOTIFICATION_MAX = 10 * 1024 * 1024  # bytes; Alertmanager's groups have no bound of their own
ALERT_MAX = 6 * manifest.DATA_MAX + 64 * 1024  # bytes; JSON may escape one byte to six, and there is more than data
AT_ONCE = 8
"""Alerts of one notification that are taken at the same time."""
NAMES_TRIED = 5
NEW_AT_ONCE = 1000
"""New alerts that are taken of one notification; for the others it is to be sent again."""
OUTCOMES_TOLD = 1000
TOLD_MAX = 1024
"""Characters of a name or a reason that are told: both come from outside."""
DEFECT = "a defect of TARSy's keeps this alert from being taken; its log has more"

log = logging.getLogger(__name__)


class Outcome(BaseModel):
    """What became of one alert."""

    alertname: str
    outcome: Literal["created", "repeated", "resolved", "ignored"]
    investigation: str | None = None
    """namespace/name."""
    reason: str = ""


class Counts(BaseModel):
    """What became of how many alerts."""

    created: int = 0
    repeated: int = 0
    resolved: int = 0
    ignored: int = 0


class Receipt(BaseModel):
    """What became of a notification."""

    alerts: list[Outcome]
    """The first thousand alerts, in the notification's order."""
    counts: Counts
    """All of them."""
    truncated: int
    """Alerts that the sender says it left out."""


class Queued(BaseModel):
    """What became of a posted alert."""

    alert_id: str
    """The object's uid."""
    investigation: str
    """namespace/name."""
    status: Literal["queued"] = "queued"
    message: str = "Alert queued for processing"


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Takes alerts in."""

    cluster: client.Cluster
    database: databases.Database
    chains: lists.Chains
    settings: platform.Ingest
    max_queued: int
    mask: Callable[[str], str]
    admitted: Callable[[base.ObjectMeta], None] | None = None
    """Told of each object that was made and admitted: who watches in this process need not look at it."""

    async def notification(self, request: Request, caller: access.Caller, *, sent_by: formats.Format) -> Receipt:
        """Serve `POST /api/v1/webhooks/<format>`."""
        body = await bodies.read(request, limit=NOTIFICATION_MAX)
        try:
            notification = await bodies.aside(formats.PARSERS[sent_by], body, size=len(body))
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        taking = _Taking(notification, intake=self, sent_by=sent_by, caller=caller, size=len(body))
        try:
            async with _keeping():
                await taking.run()
        finally:
            taking.tell()
        if taking.waiting:
            taken = f"{taking.counts['created']} new alerts were taken and {taking.waiting} were not"
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{taken}, because {taking.why}; send it again")
        return taking.receipt()

    async def alert(self, request: Request, caller: access.Caller, *, key: str | None) -> Queued:
        """Serve `POST /api/v1/alerts`."""
        too_large = f"alert data exceeds maximum size of {manifest.DATA_MAX} bytes"
        body = await bodies.read(request, limit=ALERT_MAX, message=too_large)
        try:
            alert = await bodies.aside(plain.parse, body, size=len(body))
            draft = await bodies.aside(
                manifest.of_plain,
                alert,
                size=len(body),
                namespace=self.cluster.namespace,
                author=caller.author,
                idempotency_key=key,
                mask=self.mask,
            )
            async with _keeping():
                if await self.free() <= 0:
                    raise problems.Problem(
                        HTTPStatus.SERVICE_UNAVAILABLE,
                        f"{self.max_queued} investigations are queued already; send it again",
                    )
                served = await self.chains.serving({alert.alert_type})
                served.index.taking(alert.alert_type)
                created = await self.create(draft, served, caller)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            raise problems.of_body(error, plain.Alert) from error
        except manifest.TooLargeError as error:
            raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from error
        except (check.UnservedError, objects.RefusedError) as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        if not draft.asks_for(created.found.spec):
            used = "it was used for another alert; give each its own"
            raise problems.invalid([problems.Fault(place="header.Idempotency-Key", message=used)])
        made = created.found.metadata
        return Queued(alert_id=made.uid, investigation=self.named(made.name))

    async def free(self) -> int:
        """How many more investigations may be queued."""
        return self.max_queued - await work.queued(self.database)

    async def create(self, draft: manifest.Draft, served: lists.Served, caller: access.Caller) -> objects.Created:
        """Make the object and its row, once for each episode; under another name where somebody has its own."""
        fingerprint, starts_ms = draft.episode
        receipt = await receipts.issue(
            self.database,
            namespace=draft.namespace,
            fingerprint=fingerprint,
            starts_ms=starts_ms,
            name=draft.name,
            digest=draft.digest,
            window=self.settings.dedup_window,
            address=caller.address,
        )
        for _ in range(NAMES_TRIED):
            name = receipt.name
            try:
                created = await self._make(draft.received(name=name, word=receipt.word))
            except pydantic.ValidationError:  # what has the name cannot be read, and intake makes no such object
                created = None
            if created is None or created.existed:
                receipt = await receipts.read(self.database, receipt)
            if created and (not created.existed or receipt.is_of(created.found)):
                await self._admit(created, served, caller)
                return created
            taken = self.named(name)
            if receipt.name != name:  # somebody else has found that too
                continue
            log.warning("%s is somebody else's", taken, extra={"action": "name_taken", "investigation": taken})
            receipt = await receipts.rename(self.database, receipt)
        raise errors.TemporaryError(f"{taken} is somebody else's, and so are the names before it")

    async def _make(self, draft: manifest.Draft) -> objects.Created:
        """Make the object; its large data first, which is only good for an object of that name."""
        if draft.large is not None:
            await admissions.keep_large(
                self.database,
                namespace=draft.namespace,
                object_name=draft.name,
                name=draft.large_name,
                data=draft.large,
            )
        failpoints.hit("intake.create.before")
        created = await objects.create_investigation(self.cluster, draft.manifest)
        failpoints.hit("intake.create.after")
        return created

    async def _admit(self, created: objects.Created, served: lists.Served, caller: access.Caller) -> None:
        """Make the object's row."""
        if created.existed:  # what it holds is looked at again: somebody may have had the time to read its receipt
            admission = await asyncio.to_thread(
                ingest.of, created.found, served.index, mask=self.mask, namespace_uid=served.uid
            )
        else:
            admission = ingest.of(created.found, served.index, mask=str, namespace_uid=served.uid)
        await admissions.admit(self.database, admission, made=not created.existed, address=caller.address)
        if self.admitted is not None and not created.existed:
            self.admitted(created.found.metadata)

    async def repeat(self, alert: alertmanager.Alert, fingerprint: str) -> episodes.Known | None:
        """Count the alert on what it repeats; None where it is news."""
        return await episodes.repeat(
            self.database,
            namespace=self.cluster.namespace,
            fingerprint=fingerprint,
            starts_at=alert.starts_at,
            window=self.settings.dedup_window,
            cooldown=self.settings.cooldown,
        )

    def taken_type(self, alert_type: str, chains: check.ChainIndex) -> str:
        """The alert's own type where a chain has it, ready or not, else the default type.

        An UnservedError: no chain has either.
        """
        try:
            chains.taking(alert_type)
        except check.UnservedError as error:
            if error.problem.reason == "ChainNotReady":
                return alert_type
            default = self.settings.default_alert_type
            if default is None or default == alert_type:
                raise
            return self.taken_type(default, chains)
        return alert_type

    def named(self, name: str) -> str:
        """`namespace/name`."""
        return f"{self.cluster.namespace}/{name}"


class _Taking:
    """The alerts of one notification, taken one by one, a few at the same time.

    What those need that are no repeats is looked up for the first of them: chains, and the room in the queue. Who sends
    nothing new needs neither.
    """

    def __init__(
        self,
        notification: alertmanager.Notification,
        *,
        intake: Intake,
        sent_by: formats.Format,
        caller: access.Caller,
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
        """What became of the first alerts, by their places."""
        self._ignored = Counter[str]()
        self._examples: dict[str, str] = {}
        """Why alerts were ignored: a reason of each kind."""
        self._lock = asyncio.Lock()
        self._served: lists.Served | None = None
        self._shared: manifest.Shared | manifest.TooLargeError | None = None
        self._places: int | None = None
        self._receiver = ""
        self._ends: Exception | None = None
        """What went wrong and is of no alert's making."""
        self._defect_told = False

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
        """What goes wrong here is of no alert's making."""
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
            found = await episodes.resolved(
                intake.database, namespace=intake.cluster.namespace, fingerprint=fingerprint, starts_at=alert.starts_at
            )
            if found is None:
                self._ignore(index, alertname, "unknown", "resolved, and it was never investigated")
            else:
                self._done(index, alertname, "resolved", found.name)
            return
        if repeated := await intake.repeat(alert, fingerprint):
            self._done(index, alertname, "repeated", repeated.name)
            return
        try:
            await self._investigate(index, alert, fingerprint)
        except check.UnservedError as error:
            self._ignore(index, alertname, "unserved", str(error))
        except manifest.TooLargeError as error:
            self._ignore(index, alertname, "too large", str(error))
        except objects.RefusedError as error:
            self._ignore(index, alertname, "refused", str(error))

    async def _investigate(self, index: int, alert: alertmanager.Alert, fingerprint: str) -> None:
        intake = self._intake
        served = await self._all_served()
        own_type = manifest.alert_type(alert, intake.settings)
        alert_type = intake.taken_type(own_type, served.index)
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
                namespace=intake.cluster.namespace,
                author=self._caller.author,
                mask=intake.mask,
            )
            created = await intake.create(draft, served, self._caller)
        except Exception:
            self._give_back()
            raise
        if created.existed:
            self._give_back()
            await intake.repeat(alert, fingerprint)
        self._done(
            index,
            alert.labels.get("alertname", ""),
            "repeated" if created.existed else "created",
            created.found.metadata.name,
            reason="" if alert_type == own_type else f"no chain takes '{own_type}': investigated as '{alert_type}'",
        )

    async def _all_served(self) -> lists.Served:
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
        self._examples.setdefault(kind, reason[:TOLD_MAX])
        self._done(index, alertname, "ignored", reason=reason)

    def _done(
        self,
        index: int,
        alertname: str,
        outcome: Literal["created", "repeated", "resolved", "ignored"],
        name: str = "",
        *,
        reason: str = "",
    ) -> None:
        self.counts[outcome] += 1
        if index < OUTCOMES_TOLD:
            self._outcomes[index] = Outcome(
                alertname=alertname[:TOLD_MAX],
                outcome=outcome,
                investigation=self._intake.named(name) if name else None,
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
            example = self._examples[kind]
            log.info("%d alerts ignored, such as: %s", count, example, extra={"action": "ignored", "kind": kind})
        if left_out := self._notification.truncated_alerts:
            log.warning(
                "alerts were left out by their sender: raise max_alerts of receiver %s",
                self._receiver,
                extra={"action": "truncated", "count": left_out},
            )

    def receipt(self) -> Receipt:
        """What became of it."""
        told = [outcome for _, outcome in sorted(self._outcomes.items())]
        counts = Counts(**{outcome: self.counts[outcome] for outcome in Counts.model_fields})
        return Receipt(alerts=told, counts=counts, truncated=self._notification.truncated_alerts)


@asynccontextmanager
async def _keeping() -> AsyncIterator[None]:
    """What cannot be kept now is to be sent again."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; send it again") from error

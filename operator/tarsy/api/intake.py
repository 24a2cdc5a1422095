"""Alerts come in: an object and its row for each, before the answer goes out.

Answers by what Alertmanager does with them: 2xx is the end of it, 5xx is sent again, 4xx is not sent again until its
group changes. So what we choose not to investigate is 2xx, with the reason, and what we cannot keep now is 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import pydantic
from fastapi import Request
from pydantic import BaseModel
from starlette import requests

from tarsy import errors, failpoints
from tarsy.api import problems
from tarsy.config import check, platform
from tarsy.ingest import admission as ingest
from tarsy.ingest import alertmanager, manifest, payload, plain
from tarsy.kube import client, objects
from tarsy.store import admission as admissions
from tarsy.store import database as databases
from tarsy.store import episodes, receipts, work

NOTIFICATION_MAX = 10 * 1024 * 1024  # bytes; Alertmanager's groups have no bound of their own
ALERT_MAX = 6 * manifest.DATA_MAX + 64 * 1024  # bytes; JSON may escape one byte to six, and there is more than data
AT_ONCE = 8
"""Alerts of one notification that are taken at the same time."""
NAMES_TRIED = 5

log = logging.getLogger(__name__)


class Outcome(BaseModel):
    """What became of one alert."""

    alertname: str
    outcome: Literal["created", "repeated", "resolved", "ignored"]
    investigation: str | None = None
    """namespace/name."""
    reason: str = ""


class Receipt(BaseModel):
    """What became of a notification, alert by alert, in its order."""

    alerts: list[Outcome]
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
    index: check.Indexer
    settings: platform.Ingest
    max_queued: int
    mask: Callable[[str], str]

    async def notification(self, request: Request) -> Receipt:
        """Serve `POST /api/v1/webhooks/alertmanager`."""
        body = await _body(request, limit=NOTIFICATION_MAX)
        try:
            notification = await asyncio.to_thread(alertmanager.parse, body)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        new = _NewAlerts(notification, intake=self)
        turns = asyncio.Semaphore(AT_ONCE)
        order = defaultdict[str, asyncio.Lock](asyncio.Lock)  # of one alert's episodes, the second repeats the first

        async def take(alert: alertmanager.Alert | alertmanager.Unreadable) -> Outcome:
            if isinstance(alert, alertmanager.Unreadable):
                return Outcome(alertname=alert.alertname, outcome="ignored", reason=alert.problem)
            async with order[manifest.fingerprint(alert)], turns:
                return await self._take(alert, new)

        async with _keeping():
            outcomes = await _all(take(alert) for alert in notification.alerts)
        for outcome in outcomes:
            log.info("alert %s", outcome.outcome, extra={"action": "alert", **outcome.model_dump(exclude_none=True)})
        if left_out := notification.truncated_alerts:
            log.warning(
                "alerts were left out by their sender: raise max_alerts of receiver %s",
                notification.receiver,
                extra={"action": "truncated", "count": left_out},
            )
        return Receipt(alerts=outcomes, truncated=left_out)

    async def alert(self, request: Request) -> Queued:
        """Serve `POST /api/v1/alerts`."""
        too_large = f"alert data exceeds maximum size of {manifest.DATA_MAX} bytes"
        body = await _body(request, limit=ALERT_MAX, message=too_large)
        try:
            alert = await asyncio.to_thread(plain.parse, body)
            draft = await asyncio.to_thread(
                manifest.of_plain,
                alert,
                namespace=self.cluster.namespace,
                idempotency_key=request.headers.get("Idempotency-Key"),
                mask=self.mask,
            )
            async with _keeping():
                await self.room()
                chains = await self.chains({alert.alert_type})
                chains.taking(alert.alert_type)
                created = await self._create(draft, chains)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            raise problems.Problem(HTTPStatus.UNPROCESSABLE_ENTITY, payload.places(error)) from error
        except manifest.TooLargeError as error:
            raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from error
        except (check.UnservedError, objects.RefusedError) as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        if not draft.asks_for(created.found.spec):
            raise problems.Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "Idempotency-Key: it was used for another alert; give each its own"
            )
        made = created.found.metadata
        return Queued(alert_id=made.uid, investigation=self._named(made.name))

    async def room(self) -> int:
        """How many more investigations may be queued, at least one; a Problem where there is no room."""
        if (room := self.max_queued - await work.queued(self.database)) <= 0:
            raise _full(self.max_queued)
        return room

    async def chains(self, wanted: Collection[str]) -> check.ChainIndex:
        """All chains, with those of the `wanted` alert types.

        The API server's cache does where it has a chain for each. What it lacks may have been made just now.
        """
        known = self.index(await objects.list_chains(self.cluster, namespace=self.cluster.namespace, cached=True))
        try:
            for alert_type in wanted:
                known.taking(alert_type)
        except check.UnservedError:
            return self.index(await objects.list_chains(self.cluster, namespace=self.cluster.namespace))
        return known

    async def _take(self, alert: alertmanager.Alert, new: _NewAlerts) -> Outcome:
        alertname = alert.labels.get("alertname", "")
        if alert.status == "resolved":
            return await self._resolve(alert, alertname)
        if repeated := await self._repeat(alert):
            return Outcome(alertname=alertname, outcome="repeated", investigation=self._named(repeated.name))
        try:
            chains = await new.chains()
            own_type = manifest.alert_type(alert, self.settings)
            alert_type = self._taken_type(own_type, chains)
            draft = await asyncio.to_thread(
                manifest.of_alertmanager,
                alert,
                new.notification,
                alert_type=alert_type,
                namespace=self.cluster.namespace,
                mask=self.mask,
            )
            await new.take_place()
            created = await self._create(draft, chains)
        except (check.UnservedError, manifest.TooLargeError, objects.RefusedError) as error:
            return Outcome(alertname=alertname, outcome="ignored", reason=str(error))
        if created.existed:
            await self._repeat(alert)
        return Outcome(
            alertname=alertname,
            outcome="repeated" if created.existed else "created",
            investigation=self._named(created.found.metadata.name),
            reason="" if alert_type == own_type else f"no chain takes '{own_type}': investigated as '{alert_type}'",
        )

    async def _create(self, draft: manifest.Draft, chains: check.ChainIndex) -> objects.Created:
        """Make the object and its row, once for each episode; under another name where somebody has its own."""
        fingerprint, starts_ms = draft.episode
        receipt = await receipts.issue(
            self.database,
            namespace=draft.namespace,
            fingerprint=fingerprint,
            starts_ms=starts_ms,
            name=draft.name,
            window=self.settings.dedup_window,
        )
        for _ in range(NAMES_TRIED):
            created = await self._make(draft.received(name=receipt.name, word=receipt.word))
            if not created.existed or receipt.is_of(created.found):
                await self._admit(created, chains)
                return created
            taken = self._named(receipt.name)
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

    async def _admit(self, created: objects.Created, chains: check.ChainIndex) -> None:
        """Make the object's row."""
        if created.existed:  # what it holds is looked at again: somebody may have had the time to read its receipt
            admission = await asyncio.to_thread(ingest.of, created.found, chains, mask=self.mask)
        else:
            admission = ingest.of(created.found, chains, mask=str)
        await admissions.admit(self.database, admission, made=not created.existed)

    async def _repeat(self, alert: alertmanager.Alert) -> episodes.Known | None:
        return await episodes.repeat(
            self.database,
            namespace=self.cluster.namespace,
            fingerprint=manifest.fingerprint(alert),
            starts_at=alert.starts_at,
            window=self.settings.dedup_window,
            cooldown=self.settings.cooldown,
        )

    async def _resolve(self, alert: alertmanager.Alert, alertname: str) -> Outcome:
        found = await episodes.resolved(
            self.database,
            namespace=self.cluster.namespace,
            fingerprint=manifest.fingerprint(alert),
            starts_at=alert.starts_at,
        )
        if found is None:
            return Outcome(alertname=alertname, outcome="ignored", reason="resolved, and it was never investigated")
        return Outcome(alertname=alertname, outcome="resolved", investigation=self._named(found.name))

    def _taken_type(self, alert_type: str, chains: check.ChainIndex) -> str:
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
            return self._taken_type(default, chains)
        return alert_type

    def _named(self, name: str) -> str:
        return f"{self.cluster.namespace}/{name}"


class _NewAlerts:
    """What those alerts of a notification need that are no repeats: chains, and a place in the queue.

    Both are looked up for the first of them: who sends nothing new needs neither.
    """

    def __init__(self, notification: alertmanager.Notification, *, intake: Intake) -> None:
        self.notification = notification
        self._intake = intake
        self._lock = asyncio.Lock()
        self._chains: check.ChainIndex | None = None
        self._room: int | None = None

    async def chains(self) -> check.ChainIndex:
        """All chains."""
        async with self._lock:
            if self._chains is None:
                firing = [alert for alert in self.notification.readable if alert.status == "firing"]
                wanted = {manifest.alert_type(alert, self._intake.settings) for alert in firing}
                self._chains = await self._intake.chains(wanted)
            return self._chains

    async def take_place(self) -> None:
        """Take one of the places that were free in the queue; a Problem says that there is none left."""
        async with self._lock:
            if self._room is None:
                self._room = await self._intake.room()
            if self._room == 0:
                raise _full(self._intake.max_queued)
            self._room -= 1


def _full(max_queued: int) -> problems.Problem:
    return problems.Problem(
        HTTPStatus.SERVICE_UNAVAILABLE, f"{max_queued} investigations are queued already; send it again"
    )


async def _all(taking: Iterable[Coroutine[Any, Any, Outcome]]) -> list[Outcome]:
    """Their outcomes in order; where some fail, all are waited for and one of the errors is told."""
    outcomes = await asyncio.gather(*taking, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Outcome)]


@asynccontextmanager
async def _keeping() -> AsyncIterator[None]:
    """What cannot be kept now is to be sent again."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; send it again") from error


async def _body(request: Request, *, limit: int, message: str = "") -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise problems.Problem(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message or f"the body is over {limit} bytes"
                )
    except requests.ClientDisconnect as error:  # nobody hears it, and it is no defect
        raise problems.Problem(HTTPStatus.BAD_REQUEST, "the connection was closed before the body was there") from error
    return bytes(body)

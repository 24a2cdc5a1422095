"""Alerts come in: an object and its row for each, before the answer goes out.

Answers by what Alertmanager does with them: 2xx is the end of it, 5xx is sent again, 4xx is not sent again until its
group changes. So what we choose not to investigate is 2xx, with the reason, and what we cannot keep now is 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from uuid import UUID

import pydantic
from fastapi import Request
from pydantic import BaseModel

from tarsy import errors, failpoints
from tarsy.api.alerts import chains as lists
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.ingest import alertmanager, decision, manifest, payload, plain
from tarsy.kube import client, objects
from tarsy.resources import base
from tarsy.serve import bodies, problems
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.intake import episodes, queueing, receipts
from tarsy.store.queue import work

ALERT_MAX = 6 * manifest.DATA_MAX + 64 * 1024  # bytes; JSON may escape one byte to six, and there is more than data
NAMES_TRIED = 5

log = logging.getLogger(__name__)


class Queued(BaseModel):
    """The outcome of a posted alert."""

    alert_id: UUID
    """The investigation's id."""
    namespace: str
    name: str
    status: Literal["queued"] = "queued"
    message: str = "Alert queued for processing"
    """Where the default chain takes the alert, also the types: the one that it has, and the alert's own."""


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Takes alerts in."""

    cluster: client.Cluster
    database: databases.Database
    chains: lists.Chains
    ingest: Callable[[], platforms.Ingest]
    max_queued: int
    mask: Callable[[str], str]
    admitted: Callable[[base.ObjectMeta], None] | None = None
    """Told of each object that was made and admitted: who watches in this process need not look at it."""

    @property
    def settings(self) -> platforms.Ingest:
        """The settings in force."""
        return self.ingest()

    async def alert(self, request: Request, caller: permissions.Caller, *, key: str | None) -> Queued:
        """Serve `POST /api/v1/alerts`."""
        too_large = f"alert data exceeds maximum size of {manifest.DATA_MAX} bytes"
        body = await bodies.read(request, limit=ALERT_MAX, message=too_large)
        try:
            alert = await bodies.aside(plain.parse, body, size=len(body))
            draft = await bodies.aside(
                manifest.of_plain,
                alert,
                size=len(body),
                namespace=self.cluster.served.default,
                author=caller.author,
                idempotency_key=key,
                mask=self.mask,
            )
            async with keeping():
                if await self.free() <= 0:
                    raise problems.Problem(
                        HTTPStatus.SERVICE_UNAVAILABLE,
                        f"{self.max_queued} investigations are queued already; send it again",
                    )
                served = await self.chains.serving({alert.alert_type})
                alert_type = self.taken_type(alert.alert_type, served.index)
                taker = served.index.taking(alert_type)
                draft = draft.taken_as(alert_type)
                if alert.mcp is not None:
                    served.index.check_selection(taker, alert.mcp, await catalogue.offered(self.database))
                created = await self.create(draft, await self._receipt(draft, caller), served, caller)
        except payload.PayloadError as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        except pydantic.ValidationError as error:
            if unknown := plain.unknown_names(error):
                raise problems.Problem(HTTPStatus.BAD_REQUEST, unknown) from error
            raise problems.of_body(error, plain.Alert) from error
        except manifest.TooLargeError as error:
            raise problems.Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from error
        except (chain_index.UnservedError, objects.RefusedError) as error:
            raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
        if not draft.asks_for(created.found.spec):
            used = "it was used for another alert; give each its own"
            raise problems.invalid([problems.Fault(place="header.Idempotency-Key", message=used)])
        made = created.found.metadata
        queued = Queued(alert_id=UUID(made.uid), namespace=made.namespace, name=made.name)
        taken_as = created.found.spec.alert_type
        if taken_as == alert.alert_type:
            return queued
        message = f"{queued.message} as '{taken_as}': no chain takes '{alert.alert_type}'"
        return queued.model_copy(update={"message": message})

    async def free(self) -> int:
        """How many more investigations may be queued."""
        return self.max_queued - await work.queued(self.database)

    async def _receipt(self, draft: manifest.Draft, caller: permissions.Caller) -> receipts.Receipt:
        """The receipt of a posted alert."""
        return await receipts.issue(self.database, **_receipt_values(draft, caller), window=self.settings.dedup_window)

    async def investigate(
        self,
        draft: manifest.Draft,
        served: lists.Served,
        caller: permissions.Caller,
        *,
        previous: episodes.Known | None,
    ) -> episodes.Known | episodes.Repeat:
        """Make the object of a notification's alert and its row, and return the new investigation.

        It follows `previous`. A Repeat: another process was faster.
        """
        issued = await receipts.issue_for_alert(
            self.database,
            **_receipt_values(draft, caller),
            rule=self._rule,
            previous=previous.investigation if previous else None,
        )
        if isinstance(issued, episodes.Repeat):
            return issued
        created = await self.create(draft, issued, served, caller)
        made = created.found.metadata
        episode = episodes.Known(investigation=UUID(made.uid), name=made.name)
        if created.existed:
            return episodes.Repeat(known=episode)
        if previous:
            log.info(
                "begun anew after %s",
                self.named(previous.name),
                extra={"action": "begun_anew", "investigation": self.named(episode.name), "uid": episode.investigation},
            )
        return episode

    async def create(
        self, draft: manifest.Draft, receipt: receipts.Receipt, served: lists.Served, caller: permissions.Caller
    ) -> objects.Created:
        """Create the object and its row, once for each receipt; under another name if the name is taken."""
        for _ in range(NAMES_TRIED):
            name = receipt.name
            try:
                created = await self._make(draft.received(name=name, word=receipt.word))
            except objects.UnreadableError:  # what has the name cannot be read, and intake makes no such object
                created = None
            if created is None or created.existed:
                receipt = await receipts.read(self.database, receipt)
            if created and (not created.existed or receipt.is_of(created.found)):
                await self._admit(created, served, caller)
                return created
            taken = self.named(name)
            if receipt.name != name:  # another process has found that too
                continue
            log.warning("%s is somebody else's", taken, extra={"action": "name_taken", "investigation": taken})
            receipt = await receipts.rename(self.database, receipt)
        raise errors.TemporaryError(f"{taken} is somebody else's, and so are the names before it")

    async def _make(self, draft: manifest.Draft) -> objects.Created:
        """Make the object; its large data first, which is only good for an object of that name."""
        if draft.large is not None:
            await queueing.keep_large(
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

    async def _admit(self, created: objects.Created, served: lists.Served, caller: permissions.Caller) -> None:
        """Make the object's row."""
        if created.existed:  # its content is checked again: there was time for others to read its receipt
            admission = await asyncio.to_thread(
                decision.decide, created.found, served.index, mask=self.mask, namespace_uid=served.uid
            )
        else:
            admission = decision.decide(created.found, served.index, mask=str, namespace_uid=served.uid)
        await queueing.admit(self.database, admission, made=not created.existed, address=caller.address)
        if self.admitted is not None and not created.existed:
            self.admitted(created.found.metadata)

    @property
    def _rule(self) -> episodes.Rule:
        return episodes.Rule(window=self.settings.dedup_window, cooldown=self.settings.cooldown)

    async def look_up(self, alert: alertmanager.Alert, fingerprint: str) -> episodes.Repeat | episodes.Begin:
        """Return the verdict on a firing alert: which investigation it repeats, or that it begins one."""
        return await episodes.look_up(
            self.database,
            namespace=self.cluster.served.default,
            fingerprint=fingerprint,
            starts_at=alert.starts_at,
            rule=self._rule,
        )

    def taken_type(self, alert_type: str, chains: chain_index.ChainIndex) -> str:
        """The alert's own type where a chain has it, ready or not, else the default type.

        An UnservedError about its own type: no chain has either.
        """
        try:
            chains.taking(alert_type)
        except chain_index.UnservedError as error:
            if error.problem.reason == "ChainNotReady":
                return alert_type
            default = self.settings.default_alert_type
            if default is None or default == alert_type:
                raise
            try:
                return self.taken_type(default, chains)
            except chain_index.UnservedError:
                raise error from None
        return alert_type

    def named(self, name: str) -> str:
        """`namespace/name`."""
        return f"{self.cluster.served.default}/{name}"


def _receipt_values(draft: manifest.Draft, caller: permissions.Caller) -> dict[str, Any]:
    """Return the values that a receipt is asked for with."""
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
async def keeping() -> AsyncIterator[None]:
    """Answer 503 for an alert that cannot be stored now, so that its sender retries."""
    try:
        yield
    except errors.TemporaryError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; send it again") from error

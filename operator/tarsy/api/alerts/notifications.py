"""Notifications, which bring many alerts at once (`webhook_routes` receives them).

Each alert is investigated, counted on the investigation that it repeats, or ignored with a reason:

1. The body is parsed. Alerts that cannot be read are ignored; the others are grouped by fingerprint.
2. Alerts that are resolved, or that repeat an investigation, are recorded.
3. If alerts are left, their common data are loaded: chains, free slots of the queue, data of the notification; and
   their owners, if their chains group by them (`owners`).
4. An investigation is created for each of them, or for each group, as their chain says (`store.intake.groups`): the
   other alerts of a group join it.

Steps 2 to 4 take eight fingerprints at once, and the alerts of one fingerprint one after another, because the second
may repeat the first. An unexpected exception there is a defect: only its alert is lost, because it would raise the same
exception when it is sent again. Other failures end the notification, which its sender then sends again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from http import HTTPStatus
from uuid import UUID

from fastapi import Request

from tarsy import errors
from tarsy.api.alerts import concurrency, intake, results
from tarsy.api.alerts import owners as alert_owners
from tarsy.auth import permissions
from tarsy.config.check import chain_index
from tarsy.ingest import alertmanager, formats, grouping, manifest, owners, payload
from tarsy.kube import objects
from tarsy.masking import masker
from tarsy.resources import chains
from tarsy.serve import bodies, problems
from tarsy.store.base import databases, notify
from tarsy.store.intake import episodes, groups, receipts, unserved
from tarsy.store.queue import work
from tarsy.transcript import admission

NOTIFICATION_MAX = 10 * 1024 * 1024
"""Bytes of a request; Alertmanager does not limit its groups."""
NEW_MAX = 1000
"""Investigations that are created for one notification; its sender has to send it again for the other alerts."""
LOOKED_UP_AT_ONCE = 500
"""Alerts that one statement looks up."""
LOOKUP_SECONDS = 5.0
"""The time limit for the question to the API server whether an object exists."""
DEFECT = "a defect of TARSy prevents this alert from being taken; its log has the traceback"

log = logging.getLogger(__name__)


async def take(
    alert_intake: intake.Intake, request: Request, destination: permissions.Destination, *, sent_by: formats.Format
) -> results.Receipt:
    """Take the alerts of a notification and return their outcomes. Raises a Problem (503) if it must be sent again."""
    body = await alert_intake.bodies.read(request, limit=NOTIFICATION_MAX)
    async with alert_intake.notification_slots.slot(body):
        return await _take(alert_intake, body, destination, sent_by=sent_by)


async def _take(
    alert_intake: intake.Intake, body: bytes, destination: permissions.Destination, *, sent_by: formats.Format
) -> results.Receipt:
    try:
        notification = await bodies.process(formats.PARSERS[sent_by], body, size=len(body))
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    batch = _Batch(notification, alert_intake=alert_intake, destination=destination, sent_by=sent_by, size=len(body))
    try:
        async with intake.unavailable_if_temporary():
            await batch.take()
    finally:
        batch.results.log_outcome(waiting=batch.waiting)
    if batch.waiting:
        taken = f"{batch.results.counts['created']} new alerts were taken and {batch.waiting} were not"
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{taken}, because {batch.limit}; send it again")
    return batch.results.receipt()


@dataclass(kw_only=True)
class _Shared:
    """The common data of the new alerts of a notification."""

    chains: intake.ServedChains
    notification_data: manifest.NotificationData | None
    """None: it is too large."""
    free_slots: int
    """Investigations that may still be created."""
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why budgets refuse new alerts, by the uid of their chain and their severity; "" if none does."""


class _OtherWasFasterError(Exception):
    """Another process has begun the investigation of a group: its alerts join that."""


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
        self._source = destination.source
        self._sent_by = sent_by
        self._size = size
        self._mask = masker.remembered(alert_intake.mask)
        self.results = results.Results(notification, namespace=destination.namespace, mask=self._mask)
        self._results = self.results.by_position
        self._alerts = defaultdict[str, deque[tuple[int, alertmanager.Alert]]](deque)
        """The readable alerts that have no result yet, with their positions, by fingerprint."""
        self._verdicts: dict[str, episodes.Repeat | episodes.Begin] = {}
        """The verdicts on the first alerts, by fingerprint, that were looked up together."""
        self._repeats: list[tuple[UUID, str]] = []
        """The alerts to be counted on investigations, by their fingerprints."""
        self._hints: list[notify.Hint] = []
        """Those of all alerts, which are sent together."""
        self._new: dict[str, episodes.Begin] = {}
        """The verdicts on the alerts that are to be investigated, by fingerprint."""
        self._defect_logged = False
        self._cluster_is_down = False

    async def take(self) -> None:
        """Take the alerts, in the steps that the module describes."""
        await bodies.process(self._sort, size=self._size)
        await self._look_up_first()
        await concurrency.for_each(self._alerts, self._record_known)
        if self._new:
            shared = await self._load_shared()
            to_find = await bodies.process(self._labels_of_owned, shared, size=self._size)
            owners_found: Mapping[str, alert_owners.Found] = {}
            with self._isolated_defect():  # then no alert is grouped by its owner
                owners_found = await self._intake.owners.find_all(to_find, source=self._source, mask=self._mask)
            by_group = await bodies.process(self._sort_by_group, shared, owners_found, size=self._size)
            await concurrency.for_each(by_group, lambda group: self._take_group(group, by_group[group], shared))
            await concurrency.for_each(self._new, lambda fingerprint: self._take_new(fingerprint, shared))
        if any(result.ignored == "unserved" for result in self._results.values()):
            types = await bodies.process(self.results.unserved_types, self._settings, size=self._size)
            await unserved.count(self._intake.database, types, namespace=self._namespace)
        await episodes.count_repeats(self._intake.database, *self._repeats)
        await notify.send(self._intake.database, *dict.fromkeys(self._hints))

    async def _look_up_first(self) -> None:
        """Look up the first alert of each fingerprint, many in one statement."""
        firsts = [(fingerprint, alerts[0][1]) for fingerprint, alerts in self._alerts.items()]
        firing = [(fingerprint, alert.starts_at) for fingerprint, alert in firsts if alert.status == "firing"]
        for begin in range(0, len(firing), LOOKED_UP_AT_ONCE):
            chunk = firing[begin : begin + LOOKED_UP_AT_ONCE]
            with self._isolated_defect():  # of one alert: then each is looked up by itself
                verdicts = await episodes.look_up(
                    self._intake.database, *chunk, namespace=self._namespace, rule=self._rule
                )
                self._verdicts |= {
                    fingerprint: verdict for (fingerprint, _), verdict in zip(chunk, verdicts, strict=True)
                }

    def _sort(self) -> None:
        for index, alert in enumerate(self._notification.alerts):
            if isinstance(alert, alertmanager.Alert):
                with self._isolated_defect(index):
                    kind, sender = self._source
                    its = manifest.of_source(alert, sender if kind == "source" else "")
                    self._alerts[manifest.fingerprint(its)].append((index, its))
            else:
                self._results[index] = results.ignored("unreadable", alert.problem)

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
        result: results.Result | episodes.Begin | None = self._new.get(fingerprint)
        for index, alert in self._alerts[fingerprint]:
            with self._isolated_defect(index):
                result = result or await self._look_up(alert, fingerprint)
                if isinstance(result, episodes.Begin):
                    result = await self._begin(alert, result.previous, shared)
                if result:
                    self._results[index] = result
            result = None

    def _labels_of_owned(self, shared: _Shared) -> dict[str, Mapping[str, str]]:
        """Return the labels of the new alerts whose chains group them by owner, by fingerprint."""
        labels: dict[str, Mapping[str, str]] = {}
        for fingerprint in self._new:
            _, alert = self._alerts[fingerprint][0]
            with self._isolated_defect():  # then the alert is investigated alone
                chain = self._chain(alert, shared)
                if chain and chain.spec.grouping and chain.spec.grouping.by == "Owner":
                    labels[fingerprint] = alert.labels
        return labels

    def _sort_by_group(
        self, shared: _Shared, owners_found: Mapping[str, alert_owners.Found]
    ) -> dict[str, list[tuple[int, alertmanager.Alert]]]:
        """Remove the new alerts that their chains group, and return them with their positions, by group.

        `owners_found` has owners, or why they are unknown, by fingerprint.
        """
        by_group = defaultdict[str, list[tuple[int, alertmanager.Alert]]](list)
        for fingerprint in sorted(self._new, key=lambda each: self._alerts[each][0][0]):  # as they stand
            alerts = self._alerts[fingerprint]
            owner = owners_found.get(fingerprint)
            if isinstance(owner, owners.UnknownError):
                self.results.ungrouped[alerts[0][0]] = str(owner)
                continue
            with self._isolated_defect():  # then the alert is investigated alone
                chain = self._chain(alerts[0][1], shared)
                key = chain and grouping.key(
                    alerts[0][1],
                    group_key=self._notification.group_key,
                    chain=chain,
                    source=self._source,
                    owner=owner,
                    cluster_label=self._settings.cluster_label,
                )
                if key:
                    by_group[key].append(alerts.popleft())
                elif chain and chain.spec.grouping and chain.spec.grouping.by == "Labels":
                    index, alert = alerts[0]
                    names = (name for name in chain.spec.grouping.labels or () if not alert.labels.get(name))
                    self.results.ungrouped[index] = f"it lacks labels by which its chain groups: {', '.join(names)}"
        for alert in (alert for members in by_group.values() for _, alert in members):
            del self._new[manifest.fingerprint(alert)]
        return dict(by_group)

    def _chain(self, alert: alertmanager.Alert, shared: _Shared) -> chains.AgentChain | None:
        """Return the chain that investigates an alert; None if there is none that is ready."""
        index, own_type = shared.chains.index, manifest.alert_type(alert, self._settings)
        try:
            return index.chain_for(index.effective_type(own_type, default=self._settings.default_alert_type))
        except chain_index.UnservedError:
            return None

    async def _take_group(self, group: str, alerts: Sequence[tuple[int, alertmanager.Alert]], shared: _Shared) -> None:
        """Let the alerts of a group join its investigation; the first that cannot join begins the next one."""
        chain = self._chain(alerts[0][1], shared)
        assert chain  # noqa: S101 - it has grouped them
        assert chain.spec.grouping  # noqa: S101
        window, by_subject = timedelta(seconds=chain.spec.grouping.window), chain.spec.grouping.by == "Notification"
        begun: UUID | None = None
        waiting = list(alerts)
        members = await bodies.process(self._members, waiting, size=self._size)

        async def join(joining: Sequence[tuple[int, alertmanager.Alert]]) -> UUID | None:
            seen, joined = await groups.join(
                self._intake.database,
                [members[index] for index, _ in joining],
                namespace=self._namespace,
                group=group,
                window=window,
                by_subject=by_subject,
                severities=self._settings.severities,
                rule=self._rule,
                group_digest=grouping.digest(self._notification.group_key),
            )
            for position, its in joined.items():
                result = results.Result(outcome=its.outcome, investigation=its.investigation)
                self._results[joining[position][0]] = result
            return seen

        for _ in range(intake.NAMES_TRIED + len(alerts)):
            waiting = [(index, alert) for index, alert in waiting if index not in self._results]
            if not waiting:
                break
            seen = await self._join(waiting, join)
            waiting = [(index, alert) for index, alert in waiting if index not in self._results]
            first: results.Result | None = None
            is_full = False
            while waiting and not is_full:
                is_full = not await self._begin_group(group, waiting, shared, seen=seen)
                first = self._results.get(waiting[0][0])
                if first is None or first.outcome == "created":
                    break  # the others may join what it has begun, or what another process has
                waiting = waiting[1:]
            if is_full:
                self.waiting += len(waiting) - 1
                break
            if seen and first and first.outcome == "created" and first.investigation:
                begun = first.investigation.id
        else:
            raise errors.TemporaryError("other processes begin investigations of the same group")
        if begun:
            await groups.take_firing(self._intake.database, begun)
        for _, alert in alerts:
            await self._take_new(manifest.fingerprint(alert), shared)

    async def _join(
        self,
        alerts: Sequence[tuple[int, alertmanager.Alert]],
        join: Callable[[Sequence[tuple[int, alertmanager.Alert]]], Awaitable[UUID | None]],
    ) -> UUID | None:
        """Let alerts join a group, and return its investigation. After a defect, each half of them joins by itself."""
        seen: UUID | None = None
        parts = [alerts]
        for part in parts:
            half, is_taken = len(part) // 2, False
            with self._isolated_defect(*(index for index, _ in part if not half)):
                investigation = await join(part)
                seen, is_taken = seen or investigation, True
            if half and not is_taken:
                parts += [part[:half], part[half:]]
        return seen

    def _members(self, alerts: Sequence[tuple[int, alertmanager.Alert]]) -> dict[int, admission.Member]:
        """Return what is stored of alerts that join a group, by their positions; a defect ignores its alert."""
        members = {}
        for index, alert in alerts:
            with self._isolated_defect(index):
                own_type = manifest.alert_type(alert, self._settings)
                members[index] = grouping.member(alert, alert_type=own_type, mask=self._mask)
        return members

    async def _begin_group(
        self, group: str, waiting: Sequence[tuple[int, alertmanager.Alert]], shared: _Shared, *, seen: UUID | None
    ) -> bool:
        """Begin the next investigation of a group with its first alert; return False if no slot is free.

        `seen` is the investigation that the alert could not join. If another process was faster, nothing is done.
        """

        async def create(draft: manifest.Draft) -> episodes.Reference | episodes.Repeat:
            receipt = await groups.issue(
                self._intake.database,
                namespace=self._namespace,
                group=group,
                name=draft.name,
                digest=draft.digest,
                rule=self._rule,
                address=self._caller.address,
                seen=seen,
            )
            if isinstance(receipt, episodes.Repeat):
                return receipt
            if receipt is None:
                raise _OtherWasFasterError
            created = await self._intake.create(draft, receipt, shared.chains, self._caller, hints=self._hints)
            if created.existed:
                raise _OtherWasFasterError
            metadata = created.investigation.metadata
            return episodes.Reference(id=UUID(metadata.uid), name=metadata.name)

        index, alert = waiting[0]
        with self._isolated_defect(index):
            try:
                result = await self._begin(alert, None, shared, create=create)
            except _OtherWasFasterError:
                return True
            if result is None:
                return False
            self._results[index] = result
        return True

    @contextmanager
    def _isolated_defect(self, *indexes: int) -> Iterator[None]:
        """Ignore the alerts at `indexes` if an exception is raised that neither database nor cluster causes."""
        try:
            yield
        except Exception as error:
            if databases.is_for_all_values(error):
                raise
            self._log_defect(error)
            self._results |= dict.fromkeys(indexes, results.ignored("defect", DEFECT))

    def _log_defect(self, error: Exception) -> None:
        """Log the first defect of a notification, with its traceback."""
        if not self._defect_logged:
            self._defect_logged = True
            log.error("an alert was not taken because of a defect", exc_info=error, extra={"action": "alert_defect"})

    async def _look_up(self, alert: alertmanager.Alert, fingerprint: str) -> results.Result | episodes.Begin:
        """Record an alert that is resolved or a repeat; return the verdict on any other."""
        database = self._intake.database
        if alert.status == "resolved":
            resolved = await episodes.resolve(
                database, namespace=self._namespace, fingerprint=fingerprint, starts_at=alert.starts_at
            )
            if resolved is None:
                return results.ignored("unknown", "resolved, but it was never investigated")
            self._hints.append((notify.STATUS, str(resolved.id)))
            return results.Result(outcome="resolved", investigation=resolved)
        look_up = functools.partial(
            episodes.look_up, database, (fingerprint, alert.starts_at), namespace=self._namespace, rule=self._rule
        )
        verdict = self._verdicts.pop(fingerprint, None) or (await look_up())[0]
        if isinstance(verdict, episodes.Repeat) and verdict.deletable and await self._is_deleted(verdict.investigation):
            await work.gone(database, verdict.investigation.id)
            (verdict,) = await look_up()
        if isinstance(verdict, episodes.Repeat):
            return self._repeat(verdict.investigation, fingerprint=fingerprint, reason=_next_beginning(verdict))
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

    def _repeat(self, investigation: episodes.Reference, *, fingerprint: str, reason: str) -> results.Result:
        self._repeats.append((investigation.id, fingerprint))
        self._hints.append((notify.STATUS, str(investigation.id)))
        return results.Result(outcome="repeated", investigation=investigation, reason=reason)

    async def _load_shared(self) -> _Shared:
        alert_types = await bodies.process(self._new_types, size=self._size)
        chains = await self._intake.chains.list_for(alert_types, namespace=self._namespace)
        free_slots = await self._intake.free_slots()
        if free_slots < NEW_MAX:
            self.limit = f"{self._intake.max_queued} investigations are queued already"
        try:
            notification_data = await bodies.process(
                manifest.notification_data, self._notification, size=self._size, mask=self._mask
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
        self,
        alert: alertmanager.Alert,
        previous: episodes.Reference | None,
        shared: _Shared,
        *,
        create: Callable[[manifest.Draft], Awaitable[episodes.Reference | episodes.Repeat]] | None = None,
    ) -> results.Result | None:
        """Create the investigation of an alert, which follows `previous`. None if no slot is free.

        `create` creates that of a group. While no chain is ready for the alert, it is counted on `previous`, because a
        new investigation would fail too.
        """
        own_type, index = manifest.alert_type(alert, self._settings), shared.chains.index
        try:
            alert_type = index.effective_type(own_type, default=self._settings.default_alert_type)
            if previous:
                index.chain_for(alert_type)
        except chain_index.UnservedError as error:
            if previous:
                fingerprint, reason = manifest.fingerprint(alert), f"not investigated anew: {error}"
                return self._repeat(previous, fingerprint=fingerprint, reason=reason)
            return results.ignored("unserved", str(error))
        if refusal := await self._refusal_by_budgets(alert, alert_type, shared):
            return results.ignored("budget", refusal)
        if shared.free_slots == 0:
            self.waiting += 1
            return None
        if shared.notification_data is None:
            return results.ignored("too large", str(manifest.TooLargeError()))
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
                mask=self._mask,
            )
            result = await (create(draft) if create else self._create(draft, previous, shared.chains))
        except manifest.TooLargeError as error:
            return results.ignored("too large", str(error))
        except objects.RefusedError as error:
            return results.ignored("refused", str(error))
        finally:
            if not isinstance(result, episodes.Reference):
                shared.free_slots += 1
        reason = "" if alert_type == own_type else f"no chain takes '{own_type}': investigated as '{alert_type}'"
        if isinstance(result, episodes.Repeat):
            return self._repeat(
                result.investigation, fingerprint=manifest.fingerprint(alert), reason=_next_beginning(result) or reason
            )
        return results.Result(outcome="created", investigation=result, reason=reason)

    async def _refusal_by_budgets(self, alert: alertmanager.Alert, alert_type: str, shared: _Shared) -> str:
        """Return why budgets refuse an alert; "" if none does. Nothing is kept of it, so the next one asks again.

        They are asked once for all alerts of a notification that they cannot tell apart.
        """
        taker = shared.chains.index.chains_by_alert_type[alert_type]
        severity = alert.labels.get("severity", "")
        asked = (taker.metadata.uid, severity)
        if asked not in shared.refusals:
            used_up = await self._intake.refuse_alert(taker, namespace=self._namespace, severity=severity)
            remedy = "a later notification is taken, or one after the limit was raised"
            shared.refusals[asked] = f"not investigated: {used_up.text}; {remedy}" if used_up else ""
        return shared.refusals[asked]

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
        created = await self._intake.create(draft, receipt, chains, self._caller, hints=self._hints)
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


def _next_beginning(verdict: episodes.Repeat) -> str:
    """Return a sentence on when the next investigation may begin, if the alert repeats one that came to nothing."""
    if verdict.until is None:
        return ""
    until = verdict.until.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    begins = f"the first firing notification after {until} begins another one, if the chain is ready"
    return f"its investigation came to nothing: {begins}"

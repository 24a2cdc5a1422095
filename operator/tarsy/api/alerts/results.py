"""The outcomes of a notification's alerts, for its receipt, the log and the metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from pydantic import BaseModel

from tarsy.config.model import webhooks
from tarsy.ingest import alertmanager, manifest
from tarsy.masking import masker
from tarsy.store.intake import episodes, unserved
from tarsy.telemetry import metrics

OUTCOMES_MAX = 1000
"""Alerts whose outcome is in the receipt of the notification."""
TEXT_MAX = 1024
"""Characters of a name or a reason in the receipt and in logs."""

Word: TypeAlias = Literal["created", "joined", "repeated", "resolved", "ignored"]

log = logging.getLogger(__name__)


class Outcome(BaseModel):
    """The outcome of one alert."""

    alertname: str
    """The alert's own label, whichever chain takes it."""
    outcome: Word
    id: UUID | None = None
    """The investigation that was created, or that the alert joins, repeats or resolves. None if there is none."""
    namespace: str | None = None
    name: str | None = None
    reason: str = ""
    """The reason why the alert was ignored, with the alert types that chains take, or why the default chain takes it,
    or why it is investigated alone though its chain groups alerts by owner.
    If it repeats an investigation that came to nothing: the time at which the next one may begin."""


class Counts(BaseModel):
    """The number of alerts for each outcome."""

    created: int = 0
    joined: int = 0
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


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one alert, with the reason for the log."""

    outcome: Word
    investigation: episodes.Reference | None = None
    ignored: str = ""
    """The kind of the reason why the alert was ignored; "" if it was not."""
    reason: str = ""


def ignored(kind: str, reason: str) -> Result:
    """Return the result of an alert that is ignored; `kind` is the kind of its reason."""
    return Result(outcome="ignored", ignored=kind, reason=reason)


class Results:
    """The results of one notification's alerts."""

    def __init__(self, notification: alertmanager.Notification, *, namespace: str, mask: Callable[[str], str]) -> None:
        self._notification = notification
        self._namespace = namespace
        self._mask = mask
        self.by_position: dict[int, Result] = {}
        """The results so far, by the alerts' positions."""
        self.ungrouped: dict[int, str] = {}
        """The reasons why alerts are in no group though their chain groups them by owner, by position."""

    @property
    def counts(self) -> Counter[str]:
        """The number of alerts for each outcome."""
        return Counter(result.outcome for result in self.by_position.values())

    def log_outcome(self, *, waiting: int) -> None:
        """Count the outcomes and log them, with one line for each kind of reason why alerts were ignored."""

        def mask(text: str) -> str:
            return masker.or_withheld(self._mask, text)

        counts = self.counts
        for outcome, count in (*counts.items(), ("waiting", waiting)):
            metrics.WEBHOOK_ALERTS.add(outcome, amount=count)
        receiver = manifest.masked_receiver(self._notification, mask=mask)
        log.info(
            "notification of receiver %s",
            receiver,
            extra={
                "action": "notification",
                "new": counts["created"],
                **{outcome: counts[outcome] for outcome in ("joined", "repeated", "resolved", "ignored")},
                "waiting": waiting,
            },
        )
        ignored = [result for result in self.by_position.values() if result.ignored]
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
            result = self.by_position[index]
            investigation = result.investigation
            reasons = [result.reason] if result.reason else []
            if result.outcome == "created" and index in self.ungrouped:
                reasons.append(f"investigated alone: {self.ungrouped[index]}")
            outcomes.append(
                Outcome(
                    alertname=alert.alertname[:TEXT_MAX],
                    outcome=result.outcome,
                    id=investigation and investigation.id,
                    namespace=investigation and self._namespace,
                    name=investigation and investigation.name,
                    reason="; ".join(reasons)[:TEXT_MAX],
                )
            )
        counts = Counts(**{outcome: self.counts[outcome] for outcome in Counts.model_fields})
        return Receipt(alerts=outcomes, counts=counts, truncated=self._notification.truncated_alerts)

    def unserved_types(self, settings: webhooks.Ingest) -> Counter[str]:
        """Count the alerts that no chain takes by type: the most frequent by their masked types, the others as one."""
        alerts = self._notification.alerts
        types = Counter(
            manifest.alert_type(alerts[index], settings)
            for index, result in self.by_position.items()
            if result.ignored == "unserved"
        )
        counts = Counter[str]()
        for alert_type, count in types.most_common(unserved.TYPES_MAX):  # masked, because a label may hold a token
            counts[self._mask(alert_type[:TEXT_MAX])[: unserved.TYPE_MAX] or unserved.UNTYPED] += count
        if others := types.total() - counts.total():
            counts[unserved.OTHERS] += others
        return counts

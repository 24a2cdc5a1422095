"""Budgets that are half, mostly or wholly spent: events at the operator's own Deployment, messages to receivers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal

from tarsy.config.model import budgets, platforms
from tarsy.deliveries import rules
from tarsy.kube import client, events
from tarsy.store.base import databases
from tarsy.store.operations import budget_messages
from tarsy.store.queue import ledgers

THRESHOLDS = (100, 80, 50)
"""Percent of a limit."""
LEDGERS_MAX = 1000
"""The ledgers of each budget that are looked at, those that spent most."""
REASON = "BudgetThreshold"

log = logging.getLogger(__name__)


class BudgetEvents:
    """Posts an event, and stores messages, when a ledger first passes a threshold in its period."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        deployment: str | None,
        platform: Callable[[], platforms.Platform],
    ) -> None:
        """`deployment` is the name of the Deployment, in the operator's namespace; None only logs.

        `platform` returns the platform file in force.
        """
        self._cluster = cluster
        self._database = database
        self._deployment = deployment
        self._platform = platform
        self._posted: set[str] = set()
        """The messages of the events that this process has posted; another one may post them again, without effect."""

    async def post(self) -> None:
        """Post the events that are due, and store messages. Raises TemporaryError if that is not possible now."""
        platform = self._platform()
        known = {name: budget for name, budget in platform.budgets.items() if budget.per != "investigation"}
        if not known:
            self._posted.clear()
            return
        read = await ledgers.read(self._database, known, limit=LEDGERS_MAX)
        passed_by = [(ledger, passed(known[ledger.budget], ledger)) for ledger in read.ledgers]
        reached = [(ledger, threshold) for ledger, threshold in passed_by if threshold is not None]
        wanted = [
            budget_messages.Wanted(
                key=budget_messages.Key(
                    budget=ledger.budget, unit=ledger.unit, subject=ledger.subject, period=ledger.period
                ),
                receiver=name,
                threshold=threshold,
            )
            for ledger, threshold in reached
            for name, receiver in platform.deliveries.items()
            if rules.hears_of_budget(known[ledger.budget], ledger.subject, receiver, own=self._cluster.served.own)
        ]
        if wanted:
            await budget_messages.queue(self._database, wanted)
        due = [message(known[ledger.budget], ledger, threshold) for ledger, threshold in reached]
        uid = None
        for text in due:
            if text in self._posted:
                continue
            if self._deployment and uid is None:
                own = self._cluster.served.own
                uid = await events.deployment_uid(self._cluster, namespace=own, name=self._deployment)
            if self._deployment and uid is not None:
                event = events.Event(reason=REASON, message=text, at=read.at, warning=True, about=events.DEPLOYMENT)
                await events.post(
                    self._cluster, event, namespace=self._cluster.served.own, name=self._deployment, uid=uid
                )
            log.warning("%s", text, extra={"action": "budget_threshold"})
            self._posted.add(text)
        self._posted &= set(due)


def passed(budget: budgets.Budget, ledger: ledgers.Ledger) -> int | None:
    """Return the highest threshold that a ledger has passed, if any."""
    percent = ledger.used * 100 / Decimal(budget.limit)
    return next((threshold for threshold in THRESHOLDS if percent >= threshold), None)


def message(budget: budgets.Budget, ledger: ledgers.Ledger, threshold: int) -> str:
    """Return the message of an event; it is the same for the whole period."""
    of = f" of {ledger.subject}" if ledger.subject else ""
    unit = budget.unit.replace("_", " ")
    return (
        f"budget '{ledger.budget}'{of}: {threshold} % of {budget.limit:f} ({unit}) is spent in {ledger.period} (UTC). "
        "See /api/v1/budgets"
    )

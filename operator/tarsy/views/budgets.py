"""The budgets of the platform file, and what is spent of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from tarsy.config.model import budgets
from tarsy.store.queue import ledgers
from tarsy.views import base


class Ledger(base.View):
    """The amounts that one subject has spent; amounts are in the budget's unit."""

    subject: str
    """The namespace, the chain (`namespace/name`), the provider or the id of the investigation; "" for all."""
    spent: float
    """The amount in the transcripts."""
    reserved: float
    """The maxima of requests that are under way."""
    unconfirmed: float
    """The maxima of requests that ended without a count."""
    left: float
    """The rest of the limit; at least 0."""


class Budget(base.View):
    """A budget of the platform file, in its present period."""

    name: str
    scope: budgets.Scope
    of: str | None
    """The one namespace, chain or provider that is limited; null limits each one by itself."""
    per: budgets.Period
    unit: budgets.Unit
    limit: float
    at_limit: budgets.AtLimit
    reserve_severity: str | None
    """The severity that a share of the limit is kept for."""
    reserve_share: int
    """The percentage of the limit that is kept for it."""
    renews_at: datetime | None
    """The end of the present period; null for single investigations."""
    ledgers: list[Ledger]
    """Those that spent something, the largest first."""


class Budgets(base.View):
    """The budgets, by name."""

    budgets: list[Budget]
    is_incomplete: bool
    """Whether ledgers are left out, because there are too many."""
    unchecked_namespaces: list[base.UncheckedNamespace]
    """The namespaces that are left out because they cannot be looked up now."""


def budgets_view(
    in_force: Mapping[str, budgets.Budget], read: ledgers.Ledgers, *, limit: int, unchecked: Mapping[str, str]
) -> Budgets:
    """Return the view of budgets and at most `limit` ledgers of each, without those of `unchecked` namespaces."""
    by_name = {name: [ledger for ledger in read.ledgers if ledger.budget == name] for name in in_force}
    return Budgets(
        budgets=[
            Budget(
                name=name,
                scope=budget.scope,
                of=budget.of,
                per=budget.per,
                unit=budget.unit,
                limit=float(budget.limit),
                at_limit=budget.at_limit,
                reserve_severity=budget.reserve.severity if budget.reserve else None,
                reserve_share=budget.reserve.share if budget.reserve else 0,
                renews_at=budgets.period_end(budget.per, read.at),
                ledgers=[_ledger(budget, ledger) for ledger in by_name[name][:limit]],
            )
            for name, budget in sorted(in_force.items())
        ],
        is_incomplete=any(len(of_budget) > limit for of_budget in by_name.values()),
        unchecked_namespaces=base.unchecked_namespaces(unchecked),
    )


def _ledger(budget: budgets.Budget, ledger: ledgers.Ledger) -> Ledger:
    return Ledger(
        subject=ledger.subject,
        spent=float(ledger.settled),
        reserved=float(ledger.reserved),
        unconfirmed=float(ledger.unconfirmed),
        left=float(max(Decimal(0), budget.limit - ledger.used)),
    )

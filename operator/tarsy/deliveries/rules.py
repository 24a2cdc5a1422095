"""The choice of receivers: which event of an investigation a receiver hears of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tarsy.config.model import budgets, deliveries
from tarsy.store.operations import deliveries as stored
from tarsy.store.reads import phase_rules


def wanted(
    changes: Sequence[stored.Change], receivers: Mapping[str, deliveries.Receiver], *, own: str
) -> Iterator[stored.Wanted]:
    """Yield the messages that receivers want of changes; `own` is the operator's namespace."""
    newest = {change.id: change for change in changes}
    for change in newest.values():
        for name, receiver in receivers.items():
            event = newest_event(change, receiver)
            hears_updates = "updated" in receiver.events
            is_news = change.is_recent or name in change.told
            if (
                (event or (hears_updates and change.is_updated))
                and is_news
                and hears_of(change, name, receiver, own=own)
            ):
                yield stored.Wanted(
                    investigation=change.id,
                    receiver=name,
                    event=event or "started",
                    is_silent=event is None,
                    revision=change.revision,
                    told_of=change.told_of if hears_updates else "",
                )


def newest_event(change: stored.Change, receiver: deliveries.Receiver) -> deliveries.Milestone | None:
    """Return the latest milestone that has been reached and that the receiver hears of."""
    has_happened = {
        "started": True,
        "ended": change.has_ended,
        "resolved": change.has_ended and change.alert_status == "resolved",
    }
    return next(
        (event for event in reversed(deliveries.MILESTONES) if event in receiver.events and has_happened[event]), None
    )


def hears_of(change: stored.Change, name: str, receiver: deliveries.Receiver, *, own: str) -> bool:
    """Return whether a receiver hears of an investigation."""
    if not receiver.may_hear_of(change.namespace, own=own):
        return False
    return name in change.notify or any(_matches(change, rule) for rule in receiver.rules)


def hears_of_budget(budget: budgets.Budget, subject: str, receiver: deliveries.Receiver, *, own: str) -> bool:
    """Return whether a receiver hears of thresholds of a budget's ledger.

    A budget belongs to the namespace that it is of, by itself or by its chain; any other one to the operator's (`own`).
    Of rules, only namespaces and chains count.
    """
    is_chain = budget.scope == "chain"
    namespace, _, chain = subject.partition("/") if is_chain or budget.scope == "namespace" else (own, "", "")
    return (
        deliveries.BUDGET in receiver.events
        and receiver.may_hear_of(namespace, own=own)
        and any(
            (rule.namespaces is None or namespace in rule.namespaces)
            and (rule.chains is None or (is_chain and chain in rule.chains))
            for rule in receiver.rules
        )
    )


def _matches(change: stored.Change, rule: deliveries.Rule) -> bool:
    return all(
        (
            rule.namespaces is None or change.namespace in rule.namespaces,
            rule.chains is None or change.chain_name in rule.chains,
            rule.severities is None or not {change.severity, *change.severities}.isdisjoint(rule.severities),
            all(change.labels.get(label) == value for label, value in rule.labels.items()),
            rule.phases is None or change.ending in rule.phases,
            rule.grounded is None or phase_rules.is_grounded(change.grounds) is rule.grounded,
        )
    )

"""The share of the budgets that a request may spend, and the end of an agent that they refuse."""

from __future__ import annotations

from collections.abc import Sequence

from tarsy.config.model import budgets, platforms
from tarsy.transcript import messages, ports, record, token_estimate


def subject(snapshot: record.Snapshot) -> budgets.Subject:
    """Return the subject of an investigation's budgets."""
    return budgets.Subject(
        investigation=snapshot.id,
        namespace=snapshot.namespace,
        chain=f"{snapshot.chain_namespace or snapshot.namespace}/{snapshot.chain_name}",
        severity=snapshot.severity or "",
    )


def charges(
    platform: platforms.Platform,
    snapshot: record.Snapshot,
    provider: str,
    request: ports.Request,
    *,
    concludes: bool,
) -> Sequence[budgets.Charge]:
    """Return what a request may spend of each budget that covers it. Raises BudgetError if it has no maximum."""
    if not platform.budgets:
        return ()
    try:
        return budgets.charges(
            platform.budgets,
            subject(snapshot),
            provider=provider,
            settings=platform.llm_providers.get(provider),
            request_bytes=token_estimate.utf8_bytes(request),
            native_tools=bool(request.native_tools),
            concludes=concludes,
        )
    except budgets.UnboundedError as error:
        raise ports.BudgetError(str(error), code=messages.BUDGET) from error


def refusal(
    charged: Sequence[budgets.Charge], refused: ports.Charged, *, may_conclude: bool
) -> ports.BudgetError | ports.MustWaitError:
    """Return the error of a refused request; `may_conclude` if a conclusion may be asked for.

    The strictest budget decides: one that refuses, then one that concludes. A request that is larger than what a
    budget has from the beginning does not wait for its next period: it fails.
    """
    refusing = [charge for charge in charged if charge.budget in refused.exceeded]
    names = ", ".join(f"'{charge.budget}' ({charge.text})" for charge in refusing)
    text = f"used up: {'budget' if len(refusing) == 1 else 'budgets'} {names}"
    outcomes = {
        "Refuse" if charge.at_limit == "Wait" and charge.budget in refused.too_small else charge.at_limit
        for charge in refusing
    }
    if outcomes == {"Wait"}:
        ends = [budgets.period_end(charge.per, refused.at) for charge in refusing if refused.at is not None]
        until = max(end for end in ends if end is not None)
        return ports.MustWaitError(ports.Wait(reason=budgets.SPENT, message=text, until=until))
    concludes = may_conclude and "Refuse" not in outcomes
    return ports.BudgetError(text, code=messages.BUDGET_CONCLUDES if concludes else messages.BUDGET)

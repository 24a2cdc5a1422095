"""The budgets of the platform file: what models may be asked for in a period, or by one investigation.

A request is charged to each budget that covers it: with its UTF-8 bytes as tokens, and the maximum of its answer. No
tokenizer makes more tokens of a text than it has bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tarsy.config.model import providers
from tarsy.config.model.fields import Part, Word

Scope = Literal["all", "namespace", "chain", "provider"]
Period = Literal["hour", "day", "month", "investigation"]
Unit = Literal["tokens", "model_calls", "cost"]
AtLimit = Literal["Conclude", "Refuse", "Wait"]

SPENT = "BudgetSpent"
"""The reason of runs that wait for a budget, and of objects that one refuses."""
MOST = 10**15
"""The maximum of a limit."""
CONCLUSION_PERCENT = 10
"""The percentage of a budget with `at_limit: Conclude` that only conclusions may spend."""


class Reserve(Part):
    """The part of a budget that only investigations with an alert of one severity may spend."""

    severity: Word
    """The severity, as alerts have it."""
    share: Annotated[int, Field(ge=1, le=80)]
    """The percentage of the limit."""


class Budget(Part):
    """A limit of what models are asked for: in one unit, for a scope, in a period."""

    scope: Scope
    """The model calls that count together: of all investigations, of a namespace's, of a chain's, or to a provider."""
    of: Word | None = None
    """The one namespace, chain (`namespace/name`) or provider that is limited; None limits each one by itself."""
    per: Period
    """The calendar's hour, day or month in UTC, after which the budget renews, or `investigation`, which never
    does."""
    tokens: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """The limit in tokens: input, output and thoughts."""
    model_calls: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """The limit in requests to models, repeated ones included."""
    cost: Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)] | None = None
    """The limit in the currency of the providers' `price`."""
    at_limit: AtLimit = "Conclude"
    """What follows at the limit. Conclude: each open agent concludes, from a tenth that is kept for it, and later
    stages are skipped. Refuse: open agents fail, and webhooks ignore new alerts. Wait: investigations wait until the
    budget renews."""
    reserve: Reserve | None = None
    """The part that is kept for alerts of one severity."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> Budget:
        if sum(limit is not None for limit in (self.tokens, self.model_calls, self.cost)) != 1:
            raise ValueError("give one of tokens, model_calls and cost")
        if self.of is not None and self.scope == "all":
            raise ValueError("of: scope all has no parts: choose namespace, chain or provider")
        if self.of is not None and self.scope == "chain" and self.of.count("/") != 1:
            raise ValueError("of: a chain is namespace/name")
        if self.at_limit == "Wait" and self.per == "investigation":
            raise ValueError("at_limit: Wait would be for ever, as this budget never renews: choose Conclude or Refuse")
        return self

    @property
    def unit(self) -> Unit:
        """The unit of the limit."""
        if self.tokens is not None:
            return "tokens"
        return "model_calls" if self.cost is None else "cost"

    @property
    def limit(self) -> Decimal:
        """The limit, in the unit."""
        return Decimal(str(self.tokens or self.model_calls or self.cost))

    @property
    def namespace(self) -> str | None:
        """The one namespace that it limits, by itself or by a chain in it; None limits several."""
        return self.of.partition("/")[0] if self.of and self.scope in ("namespace", "chain") else None

    def covers_provider(self, name: str) -> bool:
        """Whether requests to a provider may be charged to it."""
        return self.scope != "provider" or self.of in (None, name)

    def most(self, *, severity: str, concludes: bool) -> Decimal:
        """Return the part of the limit that a request of an alert may reach; `concludes` if it is for a conclusion."""
        percent = 100
        if self.at_limit == "Conclude" and not concludes:
            percent -= CONCLUSION_PERCENT
        if self.reserve is not None and severity != self.reserve.severity:
            percent -= self.reserve.share
        return self.limit * percent / 100


def renewal(per: Period, period: str) -> datetime | None:
    """Return the end of a period by its name in ledgers, such as 2026-11; None for an investigation's."""
    if per == "investigation":
        return None
    begin = datetime.fromisoformat(f"{period}-01" if per == "month" else period)
    return period_end(per, begin.replace(tzinfo=UTC))


def period_end(per: Period, at: datetime) -> datetime | None:
    """Return the end of the calendar's period that `at` is in, by UTC; None for an investigation's."""
    at = at.astimezone(UTC)
    match per:
        case "hour":
            return at.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        case "day":
            return at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        case "month":
            first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            return (first + timedelta(days=31)).replace(day=1)
        case "investigation":
            return None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The investigation that a request, or a new alert, belongs to."""

    investigation: str = ""
    """Its id; "" if it does not exist yet."""
    namespace: str
    chain: str
    """`namespace/name`."""
    severity: str = ""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The share of one budget that a request may spend."""

    budget: str
    """The name of the budget."""
    unit: Unit
    subject: str
    """The subject that the budget is counted for: a namespace, a chain, a provider or an investigation; "" for all."""
    per: Period
    amount: Decimal
    """The maximum that the request may spend, in the unit."""
    most: Decimal
    """The limit for such a request, without the reserve that an alert that joins may open."""
    at_limit: AtLimit
    reserved_for: str = ""
    """The severity that `reserve` is kept for, if the investigation's own alert has another."""
    reserve: Decimal = Decimal(0)
    """The amount above `most` that the request may reach once an alert of that severity has joined."""

    @property
    def text(self) -> str:
        """The unit, subject and period of the budget, for messages."""
        of = f"of {self.subject} " if self.subject and self.per != "investigation" else ""
        return f"{self.unit.replace('_', ' ')}, {of}per {self.per}"


class UnboundedError(ValueError):
    """A request has no maximum, so that it cannot be charged."""


def charges(
    budgets: Mapping[str, Budget],
    subject: Subject,
    *,
    provider: str,
    settings: providers.Common | None,
    request_bytes: int,
    native_tools: bool = False,
    concludes: bool = False,
) -> list[Charge]:
    """Return what a request to `provider` may spend of each budget.

    `settings` are the provider's; None if the platform file does not have it. Raises UnboundedError if a budget of
    tokens or cost covers a request that no maximum is known of.
    """
    covering = []
    for name, budget in budgets.items():
        if budget.covers_provider(provider) and (key := _key(budget, subject, provider)) is not None:
            amount = _amount(name, budget, provider, settings, request_bytes=request_bytes, native_tools=native_tools)
            reserve = budget.reserve if budget.reserve and budget.reserve.severity != subject.severity else None
            covering.append(
                Charge(
                    budget=name,
                    unit=budget.unit,
                    subject=key,
                    per=budget.per,
                    amount=amount,
                    most=budget.most(severity=subject.severity, concludes=concludes),
                    at_limit=budget.at_limit,
                    reserved_for=reserve.severity if reserve else "",
                    reserve=budget.limit * (reserve.share if reserve else 0) / 100,
                )
            )
    return covering


def refusing(
    budgets: Mapping[str, Budget], subject: Subject, *, providers_by_name: Mapping[str, providers.Common]
) -> list[Charge]:
    """Return the smallest request of a new alert of `subject`, in each budget that makes webhooks ignore alerts.

    An alert is ignored once not even that has room: its investigation could ask nothing.
    """

    def smallest(budget: Budget) -> Decimal:
        amounts = (smallest_request(budget, settings) for settings in providers_by_name.values())
        return min((amount for amount in amounts if amount is not None), default=Decimal(0))

    return [
        Charge(
            budget=name,
            unit=budget.unit,
            subject=key,
            per=budget.per,
            amount=smallest(budget),
            most=budget.most(severity=subject.severity, concludes=False),
            at_limit=budget.at_limit,
        )
        for name, budget in budgets.items()
        if budget.at_limit == "Refuse" and budget.scope != "provider" and budget.per != "investigation"
        if (key := _key(budget, subject, "")) is not None
    ]


def _key(budget: Budget, subject: Subject, provider: str) -> str | None:
    """Return the subject of the ledger; None if the budget does not cover the request."""
    part = {"all": "", "namespace": subject.namespace, "chain": subject.chain, "provider": provider}[budget.scope]
    if budget.of is not None and part != budget.of:
        return None
    if budget.per != "investigation":
        return part
    return f"{subject.investigation} {part}" if budget.scope == "provider" else subject.investigation


def _amount(
    name: str,
    budget: Budget,
    provider: str,
    settings: providers.Common | None,
    *,
    request_bytes: int,
    native_tools: bool,
) -> Decimal:
    if budget.unit == "model_calls":
        return Decimal(1)
    problems = unbounded(budget, settings) if settings else ["is not in the platform file"]
    if native_tools:
        problems.append("is asked for native tools, whose tokens are in no request")
    if problems:
        raise UnboundedError(f"budget '{name}' cannot be kept: provider '{provider}' {problems[0]}")
    assert settings and settings.max_output_tokens  # noqa: S101, PT018 - it is bounded
    if budget.unit == "tokens":
        return Decimal(request_bytes + settings.max_output_tokens)
    assert settings.price  # noqa: S101 - it is bounded
    return settings.price.cost(input_tokens=request_bytes, output_tokens=settings.max_output_tokens)


def smallest_request(budget: Budget, settings: providers.Common) -> Decimal | None:
    """Return what any request to a provider reserves at least, in the budget's unit; None if it has no maximum."""
    if unbounded(budget, settings):
        return None
    return _amount("", budget, "", settings, request_bytes=0, native_tools=False)


def unbounded(budget: Budget, settings: providers.Common) -> list[str]:
    """Return why a budget cannot be kept with a provider, as predicates of it."""
    problems = []
    if budget.unit != "model_calls" and settings.max_output_tokens is None:
        problems.append("has no max_output_tokens")
    if budget.unit == "cost" and settings.price is None:
        problems.append("has no price")
    if budget.unit != "model_calls" and settings.own_native_tools:
        problems.append("has native_tools, whose tokens are in no request")
    return problems


def too_small(
    budgets: Mapping[str, Budget], providers_by_name: Mapping[str, providers.Common]
) -> Iterator[tuple[str, Unit, str]]:
    """Yield the budgets that have no room for any request to a provider: their name, their unit, and why."""
    for name, budget in budgets.items():
        most = budget.most(severity="", concludes=False)
        for provider, settings in providers_by_name.items():
            smallest = smallest_request(budget, settings) if budget.covers_provider(provider) else None
            if smallest is not None and smallest > most:
                needs = {
                    "tokens": f"{smallest:f} tokens",
                    "model_calls": "1 model call",
                    "cost": f"a cost of {smallest.normalize():f}",
                }[budget.unit]
                yield (
                    name,
                    budget.unit,
                    f"too small: each request to provider '{provider}' reserves {needs} or more, and "
                    f"{most.normalize():f} of {budget.limit:f} are for such requests: raise the limit"
                    + ("" if budget.unit == "model_calls" else ", or lower max_output_tokens of the provider"),
                )


def unbounded_providers(
    budgets: Mapping[str, Budget], providers_by_name: Mapping[str, providers.Common]
) -> Iterator[tuple[str, Unit, str]]:
    """Yield the budgets that cannot be kept: their name, their unit, and a provider's problem."""
    for name, budget in budgets.items():
        for provider, settings in providers_by_name.items():
            if budget.covers_provider(provider):
                for problem in unbounded(budget, settings):
                    yield name, budget.unit, f"provider '{provider}' {problem}"

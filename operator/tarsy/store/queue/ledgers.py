"""The ledgers of budgets: each request reserves what it may spend, and the commit of its answer settles it.

A ledger counts what one subject spent of one budget in one period. A request reserves its maximum in all ledgers that
it counts in, or in none, in one statement. That statement locks their rows in a fixed order and adds only if all limits
admit it, so no limit is exceeded, however many processes ask. The period is the calendar's, in UTC, by the database's
clock. A request counts in the period of its reservation.

The commit of an answer settles its reservations in its own statement (`store.log`): what the provider has counted
replaces the maximum. A request whose answer was cut short or not counted, or whose worker died, keeps its maximum as
spent. So, once all claims have ended, `used` of a ledger is the sum of what the transcripts have (`settled`) and of the
rest of the maxima of requests whose count is not known to be whole (`unconfirmed`).

Without budgets there is no statement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from sqlalchemy import text

from tarsy.config.model import budgets, platforms
from tarsy.store.base import databases

PERIOD = """
  CASE per
    WHEN 'hour' THEN to_char(at.utc, 'YYYY-MM-DD"T"HH24') WHEN 'day' THEN to_char(at.utc, 'YYYY-MM-DD')
    WHEN 'month' THEN to_char(at.utc, 'YYYY-MM') ELSE ''
  END"""
"""The expression for the period of a ledger, by `per` and the time `at.utc`."""

_RESERVE = text(f"""
  WITH at AS MATERIALIZED (
    SELECT clock_timestamp() AT TIME ZONE 'UTC' AS utc
  ), wanted AS MATERIALIZED (
    SELECT budget, unit, subject, {PERIOD} AS period, amount, most + CASE WHEN reserve > 0 AND EXISTS (
      SELECT FROM identities WHERE investigation = :investigation AND severity = reserved_for
    ) THEN reserve ELSE 0 END AS most
    FROM at, unnest(
      CAST(:budgets AS text[]), CAST(:units AS text[]), CAST(:subjects AS text[]), CAST(:pers AS text[]),
      CAST(:amounts AS numeric[]), CAST(:mosts AS numeric[]), CAST(:severities AS text[]), CAST(:reserves AS numeric[])
    ) AS charge (budget, unit, subject, per, amount, most, reserved_for, reserve)
  ), seen AS (
    SELECT budget, unit, subject, period, used AS seen FROM wanted
    JOIN budget_ledgers AS ledger USING (budget, unit, subject, period)
  ), held AS (
    SELECT ledger.budget, ledger.unit, ledger.subject, ledger.period, ledger.used, wanted.amount, wanted.most
    FROM wanted JOIN budget_ledgers AS ledger USING (budget, unit, subject, period)
    ORDER BY 1, 2, 3, 4
    FOR NO KEY UPDATE OF ledger
  ), judged AS (
    SELECT (SELECT count(*) FROM held) = (SELECT count(*) FROM wanted) AS is_complete,
      (SELECT bool_and(used + amount <= most) FROM held) AS fits,
      EXISTS (SELECT FROM budget_reservations WHERE request = :request) AS is_repeated
  ), reserved AS (
    INSERT INTO budget_reservations (request, investigation, token, budget, unit, subject, period, amount)
    SELECT :request, :investigation, :token, budget, unit, subject, period, amount
    FROM held, judged WHERE is_complete AND fits AND NOT is_repeated
    ON CONFLICT DO NOTHING
    RETURNING budget, unit, subject, period, amount
  ), added AS (
    UPDATE budget_ledgers AS ledger SET used = ledger.used + reserved.amount
    FROM reserved
    WHERE (ledger.budget, ledger.unit, ledger.subject, ledger.period)
      = (reserved.budget, reserved.unit, reserved.subject, reserved.period)
  ), exceeded AS (
    SELECT * FROM held JOIN seen USING (budget, unit, subject, period) WHERE used + amount > most
  ), no_longer_under_way AS (
    UPDATE budget_reservations SET ended = true WHERE request = ANY(CAST(:ended AS uuid[])) AND NOT ended
  )
  SELECT is_complete, (is_complete AND fits) OR is_repeated AS is_reserved, clock_timestamp() AS at,
    (SELECT array_agg(budget ORDER BY budget) FROM exceeded) AS exceeded,
    (SELECT coalesce(array_agg(budget ORDER BY budget), '{{}}') FROM exceeded WHERE amount > most) AS too_small,
    (SELECT bool_and(unit <> 'model_calls' AND amount <= most - seen + (
      SELECT coalesce(sum(live.amount), 0) FROM budget_reservations AS live JOIN work USING (investigation, token)
      WHERE state = 'running' AND lease_until > clock_timestamp() AND NOT live.ended
        AND live.request <> ALL(CAST(:ended AS uuid[]))
        AND (live.budget, live.unit, live.subject, live.period)
        = (exceeded.budget, exceeded.unit, exceeded.subject, exceeded.period)
    )) FROM exceeded) AS may_fit_later,
    EXISTS (SELECT FROM exceeded WHERE used <> seen) AS has_waited
  FROM judged
""")  # noqa: S608 - our own text
# A statement that has waited for a ledger sees the reservations as they were before: so it compares these with `seen`,
# the amount of then, and does not know whether it has waited for the same request.
_IS_RESERVED = text("SELECT FROM budget_reservations WHERE request = :request")

_OPEN = text(f"""
  INSERT INTO budget_ledgers (budget, unit, subject, period)
  SELECT budget, unit, subject, {PERIOD}
  FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS utc) AS at, unnest(
    CAST(:budgets AS text[]), CAST(:units AS text[]), CAST(:subjects AS text[]), CAST(:pers AS text[])
  ) AS charge (budget, unit, subject, per)
  ORDER BY 1, 2, 3, 4
  ON CONFLICT DO NOTHING
""")  # noqa: S608 - our own text


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The refusal of a request."""

    budgets: Sequence[str]
    """The names of the budgets without room for it."""
    too_small: Sequence[str]
    """Those of them that have no room for it from the beginning of a period."""
    may_fit_later: bool
    """Whether it fits without what requests under way have reserved, because they may need less than their maximum.
    A failed request keeps it, and a request of a limit of model calls needs exactly what it has reserved."""
    at: datetime
    """The time by the database's clock."""


async def reserve(
    database: databases.Database,
    charges: Sequence[budgets.Charge],
    *,
    request: UUID,
    investigation: UUID,
    token: UUID,
    ended: Sequence[UUID] = (),
) -> Refused | None:
    """Reserve all `charges` of a `request` of the claim `token`; return the budgets that refuse it, or None.

    `ended` are earlier requests of the same model call: they have failed, and are not under way any more.
    A repetition with the same `request` reserves nothing more. Raises StoreDownError; then the request may have been
    reserved.
    """
    keys = {
        "budgets": [charge.budget for charge in charges],
        "units": [charge.unit for charge in charges],
        "subjects": [charge.subject for charge in charges],
        "pers": [charge.per for charge in charges],
    }
    values = {
        **keys,
        "amounts": [charge.amount for charge in charges],
        "mosts": [charge.most for charge in charges],
        "severities": [charge.reserved_for for charge in charges],
        "reserves": [charge.reserve for charge in charges],
        "request": request,
        "investigation": investigation,
        "token": token,
        "ended": list(ended),
    }
    while True:
        (row,) = await database.run(_RESERVE, **values)
        if row.is_complete or row.is_reserved:
            if row.is_reserved or (row.has_waited and await database.run(_IS_RESERVED, request=request)):
                return None
            return Refused(budgets=row.exceeded, too_small=row.too_small, may_fit_later=row.may_fit_later, at=row.at)
        await database.run(_OPEN, **keys)


_FULL = text(f"""
  WITH at AS MATERIALIZED (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS utc)
  SELECT charge.budget, clock_timestamp() AS at
  FROM at CROSS JOIN unnest(
    CAST(:budgets AS text[]), CAST(:units AS text[]), CAST(:subjects AS text[]), CAST(:pers AS text[]),
    CAST(:amounts AS numeric[]), CAST(:mosts AS numeric[])
  ) AS charge (budget, unit, subject, per, amount, most)
  JOIN budget_ledgers AS ledger
    ON (ledger.budget, ledger.unit, ledger.subject) = (charge.budget, charge.unit, charge.subject)
    AND ledger.period = {PERIOD}
  WHERE used + amount > most OR used >= most
  ORDER BY 1
""")  # noqa: S608 - our own text


@dataclass(frozen=True, kw_only=True)
class UsedUp:
    """The budgets that refuse a new alert."""

    budgets: Sequence[str]
    renews_at: datetime
    """The time at which the last of them renews, by UTC."""
    seconds: int
    """The seconds until then, at least 1."""

    @property
    def text(self) -> str:
        """The reason, for people."""
        names = ", ".join(f"'{name}'" for name in self.budgets)
        renews = self.renews_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        return f"used up: {'budget' if len(self.budgets) == 1 else 'budgets'} {names}, until {renews}"


async def refuse_alert(
    database: databases.Database, platform: platforms.Platform, subject: budgets.Subject
) -> UsedUp | None:
    """Return the budgets that refuse a new alert of `subject`, or None; without such budgets nothing is read."""
    charges = budgets.refusing(platform.budgets, subject, providers_by_name=platform.llm_providers)
    return await used_up(database, charges)


async def used_up(database: databases.Database, charges: Sequence[budgets.Charge]) -> UsedUp | None:
    """Return the budgets of `charges` that have no room for them, or nothing left; None if all have."""
    if not charges:
        return None
    rows = await database.run(
        _FULL,
        budgets=[charge.budget for charge in charges],
        units=[charge.unit for charge in charges],
        subjects=[charge.subject for charge in charges],
        pers=[charge.per for charge in charges],
        amounts=[charge.amount for charge in charges],
        mosts=[charge.most for charge in charges],
    )
    if not rows:
        return None
    names = [row.budget for row in rows]
    at = rows[0].at
    ends = (budgets.period_end(charge.per, at) for charge in charges if charge.budget in names)
    renews_at = max(end for end in ends if end is not None)
    return UsedUp(budgets=names, renews_at=renews_at, seconds=max(1, math.ceil((renews_at - at).total_seconds())))


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The amounts that one subject has spent of one budget in the present period; amounts are in the budget's unit."""

    budget: str
    unit: str
    subject: str
    period: str
    settled: Decimal
    """The amount in the transcripts."""
    reserved: Decimal
    """The maxima of requests under way, or whose answer waits for its commit, of claims whose lease has not passed."""
    unconfirmed: Decimal
    """The maxima of requests that ended without a count, also of those that are asked again."""

    @property
    def used(self) -> Decimal:
        """All that is taken from the limit."""
        return self.settled + self.reserved + self.unconfirmed


@dataclass(frozen=True, kw_only=True)
class Ledgers:
    """Ledgers of the present periods."""

    at: datetime
    """The time by the database's clock."""
    ledgers: Sequence[Ledger]


_READ = text(f"""
  WITH at AS MATERIALIZED (
    SELECT clock_timestamp() AT TIME ZONE 'UTC' AS utc
  ), present AS (
    SELECT name, unit, scope, per, {PERIOD} AS period
    FROM at, unnest(
      CAST(:budgets AS text[]), CAST(:units AS text[]), CAST(:scopes AS text[]), CAST(:pers AS text[])
    ) AS known (name, unit, scope, per)
  ), live AS (
    SELECT reserved.budget, reserved.unit, reserved.subject, reserved.period, sum(amount) AS amount
    FROM budget_reservations AS reserved JOIN work USING (investigation, token)
    WHERE state = 'running' AND lease_until > clock_timestamp() AND NOT ended
    GROUP BY 1, 2, 3, 4
  )
  SELECT clock_timestamp() AS at, ranked.*, coalesce(live.amount, 0) AS reserved,
    used - settled - coalesce(live.amount, 0) AS unconfirmed
  FROM (VALUES (1)) AS one_row LEFT JOIN (
    SELECT ledger.budget, ledger.unit, ledger.subject, ledger.period, used, settled,
      row_number() OVER (PARTITION BY ledger.budget ORDER BY used DESC, ledger.subject) AS place
    FROM present JOIN budget_ledgers AS ledger
      ON (ledger.budget, ledger.unit, ledger.period) = (present.name, present.unit, present.period)
    WHERE CAST(:namespaces AS text[]) IS NULL OR CASE
      WHEN per = 'investigation' THEN EXISTS (
        SELECT FROM investigations
        WHERE id = CAST(split_part(subject, ' ', 1) AS uuid) AND namespace = ANY(CAST(:listable AS text[]))
      )
      ELSE scope IN ('all', 'provider') OR split_part(subject, '/', 1) = ANY(CAST(:namespaces AS text[]))
    END
  ) AS ranked ON place <= :limit
  LEFT JOIN live
    ON (live.budget, live.unit, live.subject, live.period)
      = (ranked.budget, ranked.unit, ranked.subject, ranked.period)
  ORDER BY ranked.budget, place
""")  # noqa: S608 - our own text


@dataclass(frozen=True, kw_only=True)
class Readable:
    """The namespaces whose ledgers a caller may read."""

    namespaces: Collection[str]
    """Those whose namespaces' and chains' ledgers it may read."""
    listable: Collection[str]
    """Those whose investigations' ledgers it may read."""


async def read(
    database: databases.Database,
    platform_budgets: Mapping[str, budgets.Budget],
    *,
    limit: int,
    readable: Readable | None = None,
) -> Ledgers:
    """Return the ledgers of the present periods: of each budget the `limit` that spent most, the largest first.

    With `readable`, those of other namespaces, their chains and their investigations are left out.
    """
    rows = await database.run(
        _READ,
        budgets=list(platform_budgets),
        units=[budget.unit for budget in platform_budgets.values()],
        scopes=[budget.scope for budget in platform_budgets.values()],
        pers=[budget.per for budget in platform_budgets.values()],
        namespaces=list(readable.namespaces) if readable else None,
        listable=list(readable.listable) if readable else None,
        limit=limit,
    )
    read_ledgers = [
        Ledger(
            budget=row.budget,
            unit=row.unit,
            subject=row.subject,
            period=row.period,
            settled=row.settled,
            reserved=row.reserved,
            unconfirmed=row.unconfirmed,
        )
        for row in rows
        if row.budget is not None
    ]
    return Ledgers(at=rows[0].at, ledgers=read_ledgers)


_WAKE = text("""
  WITH held AS (
    SELECT investigation FROM work WHERE state = 'parked' AND wait_reason = :reason
    ORDER BY investigation FOR NO KEY UPDATE
  )
  UPDATE work SET wake_at = clock_timestamp() FROM held WHERE work.investigation = held.investigation
""")


async def wake_waiting(database: databases.Database) -> None:
    """Let the next sweep queue all runs that wait for a budget; those that are still refused wait again."""
    await database.run(_WAKE, reason=budgets.SPENT)


_DROP_LOST = text("""
  DELETE FROM budget_reservations AS reserved
  WHERE NOT EXISTS (
    SELECT FROM work
    WHERE work.investigation = reserved.investigation AND work.token = reserved.token AND state = 'running'
  )
""")
_DROP_OLD = text("""
  DELETE FROM budget_ledgers AS ledger
  WHERE opened_at < clock_timestamp() - interval '400 days'
    AND (period <> '' OR NOT EXISTS (
      SELECT FROM investigations WHERE id = CAST(split_part(subject, ' ', 1) AS uuid)
    ))
    AND NOT EXISTS (
      SELECT FROM budget_reservations AS reserved
      WHERE (reserved.budget, reserved.unit, reserved.subject, reserved.period)
        = (ledger.budget, ledger.unit, ledger.subject, ledger.period)
    )
""")


async def drop_old(database: databases.Database) -> None:
    """Delete the reservations of claims that are over, which changes no amount, and ledgers that are 400 days old.

    The ledger of an investigation stays as long as questions may be asked about it: its purge deletes it.
    """
    await database.run(_DROP_LOST)
    await database.run(_DROP_OLD)

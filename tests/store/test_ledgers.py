"""The ledgers of budgets: exact over all processes, whatever happens to them; on a real Postgres."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from decimal import Decimal

import pytest
from support import lock_waits, queue
from tarsy.config.model import budgets
from tarsy.store.base import databases
from tarsy.store.operations import purge
from tarsy.store.queue import journal, ledgers, questions, work
from tarsy.transcript import entries, messages, ports

MONTH = {"tokens": budgets.Budget(scope="all", per="month", tokens=1000, at_limit="Refuse")}
"""A day may end while a test runs."""


def charge(name: str = "tokens", *, amount: int = 300, most: int = 1000, subject: str = "") -> budgets.Charge:
    return budgets.Charge(
        budget=name,
        unit="tokens",
        subject=subject,
        per="month",
        amount=Decimal(amount),
        most=Decimal(most),
        at_limit="Refuse",
    )


@pytest.fixture
async def processes(database: databases.Database) -> AsyncIterator[list[databases.Database]]:
    async with AsyncExitStack() as stack:
        connected = [databases.Database(database.url) for _ in range(8)]
        for each in connected:
            stack.push_async_callback(each.close)
        yield connected


async def reserve(
    database: databases.Database, *charges: budgets.Charge, claim: work.Claim | None = None
) -> tuple[uuid.UUID, Sequence[str]]:
    request = uuid.uuid4()
    refused = await ledgers.reserve(
        database,
        charges,
        request=request,
        investigation=claim.investigation if claim else uuid.uuid4(),
        token=claim.token if claim else uuid.uuid4(),
    )
    return request, list(refused.budgets) if refused else []


async def refusing(database: databases.Database, *charges: budgets.Charge) -> list[str]:
    """The budgets that refuse an alert."""
    refused = await ledgers.used_up(database, charges)
    return list(refused.budgets) if refused else []


async def used(database: databases.Database) -> dict[str, tuple[int, int]]:
    """Return the used and settled amounts, by budget and subject."""
    rows = await queue.rows(database, "SELECT budget || subject, used, settled FROM budget_ledgers ORDER BY 1")
    return {name: (int(used), int(settled)) for name, used, settled in rows}


async def amounts(database: databases.Database) -> tuple[int, int, int]:
    """Return the settled, reserved and unconfirmed amounts of the one ledger."""
    (ledger,) = (await ledgers.read(database, MONTH, limit=10)).ledgers
    return int(ledger.settled), int(ledger.reserved), int(ledger.unconfirmed)


async def test_concurrent_requests_never_exceed_any_limit(processes: list[databases.Database]) -> None:
    """Each request is charged to three ledgers, in any order."""
    chance = random.Random(7)  # noqa: S311 - an order
    charges = [
        charge("all", amount=10, most=1000),
        *(charge("each", amount=10, most=130, subject=f"s{number}") for number in range(5)),
        *(charge("calls", amount=1, most=17, subject=f"s{number}") for number in range(5)),
    ]

    async def ask(database: databases.Database) -> None:
        for _ in range(60):
            subject = chance.randrange(5)
            wanted = [charges[0], charges[1 + subject], charges[6 + subject]]
            chance.shuffle(wanted)
            await reserve(database, *wanted)

    await asyncio.gather(*map(ask, processes))
    assert await used(processes[0]) == {
        "all": (650, 0),
        **{f"calls{name}": (13, 0) for name in ("s0", "s1", "s2", "s3", "s4")},
        **{f"each{name}": (130, 0) for name in ("s0", "s1", "s2", "s3", "s4")},
    }


async def test_repeated_reservation_counts_once(database: databases.Database) -> None:
    """The reply of the first one may be lost."""
    request = uuid.uuid4()
    for _ in range(3):
        refused = await ledgers.reserve(
            database, [charge(amount=900)], request=request, investigation=uuid.uuid4(), token=uuid.uuid4()
        )
        assert refused is None
    assert await used(database) == {"tokens": (900, 0)}


@pytest.mark.parametrize("already", [1, 600])
async def test_reservation_that_is_repeated_while_the_first_still_waits_for_a_lock_counts_once(
    processes: list[databases.Database], already: int
) -> None:
    """The connection of the first one is lost, and the server goes on with it."""
    request, claim = uuid.uuid4(), uuid.uuid4()
    await reserve(processes[0], charge(amount=already))

    async def ask(database: databases.Database) -> ledgers.Refused | None:
        return await ledgers.reserve(database, [charge(amount=400)], request=request, investigation=claim, token=claim)

    async with lock_waits.holding(processes[0], "budget_ledgers"):
        asked = [
            await lock_waits.begin(processes[3], ask(database), number=number)
            for number, database in enumerate(processes[1:3], start=1)
        ]
    assert await asyncio.gather(*asked) == [None, None]
    assert await used(processes[0]) == {"tokens": (already + 400, 0)}


def answered(*settled: entries.Settlement) -> entries.Answered:
    call = entries.ModelCall(provider="only", model="m", seconds=1.0, settled=settled)
    return entries.Answered(
        execution="e", turn=0, messages=(messages.Message(role="assistant", text="Because."),), call=call
    )


def count(request: uuid.UUID, tokens: int, *, is_whole: bool = True) -> entries.Settlement:
    return entries.Settlement(request=str(request), tokens=tokens, cost=None, is_whole=is_whole)


async def started(database: databases.Database) -> tuple[work.Claim, journal.PgJournal]:
    await queue.admit(database)
    claim = await queue.claimed(database)
    log = await queue.opened(database, claim)
    await log.commit(
        entries.StageStarted(stage="analysis", clock=0.0),
        entries.ExecutionStarted(
            execution="e", stage="analysis", kind="agent", index=0, name="KubernetesAgent", agent=None
        ),
    )
    return claim, log


async def test_commit_of_the_answer_settles_its_requests(database: databases.Database) -> None:
    claim, log = await started(database)
    counted, _ = await reserve(database, charge(amount=300), claim=claim)
    uncounted, _ = await reserve(database, charge(amount=200), claim=claim)
    assert await amounts(database) == (0, 500, 0)
    await log.commit(answered(count(counted, 120), count(uncounted, 0, is_whole=False)))
    assert await amounts(database) == (120, 0, 200)
    assert await queue.rows(database, "SELECT count(*) FROM budget_reservations") == [(0,)]


async def test_requests_under_way_of_an_ended_run_are_unconfirmed(database: databases.Database) -> None:
    """A deadline ends a run without the answers that it waits for, and the row keeps its token."""
    claim, log = await started(database)
    await reserve(database, charge(amount=300), claim=claim)
    await log.commit(
        entries.ExecutionEnded(execution="e", outcome="TimedOut", error="late"),
        entries.StageEnded(stage="analysis", outcome="TimedOut", message="late"),
        entries.RunEnded(ending="TimedOut", reason="DeadlineExceeded", message="late"),
    )
    assert await queue.rows(database, "SELECT state, token IS NULL FROM work") == [("ended", False)]
    assert await amounts(database) == (0, 0, 300)
    await ledgers.drop_old(database)
    assert await queue.rows(database, "SELECT count(*) FROM budget_reservations") == [(0,)]
    assert await amounts(database) == (0, 0, 300)


async def test_commit_of_a_worker_that_lost_its_lease_settles_nothing(database: databases.Database) -> None:
    claim, log = await started(database)
    request, _ = await reserve(database, charge(amount=300), claim=claim)
    await queue.let_leases_pass(database)
    second = await queue.claimed(database)
    with pytest.raises(ports.LeaseLostError):
        await log.commit(answered(count(request, 1)))
    assert await amounts(database) == (0, 0, 300)
    await ledgers.drop_old(database)
    assert await queue.rows(database, "SELECT count(*) FROM budget_reservations") == [(0,)]
    assert await used(database) == {"tokens": (300, 0)}
    again, _ = await reserve(database, charge(amount=300), claim=second)
    await ledgers.drop_old(database)
    log = await queue.opened(database, second)
    await log.commit(answered(count(again, 7)))
    assert await used(database) == {"tokens": (307, 7)}


async def test_requests_of_a_worker_with_an_expired_lease_block_no_other_request(database: databases.Database) -> None:
    """It is probably dead, and its claim may wait long for a takeover. If it lives, its commit still settles."""

    async def may_fit_later() -> bool:
        refused = await ledgers.reserve(
            database, [charge(amount=600)], request=uuid.uuid4(), investigation=uuid.uuid4(), token=uuid.uuid4()
        )
        assert refused is not None
        return refused.may_fit_later

    claim, log = await started(database)
    request, _ = await reserve(database, charge(amount=600), claim=claim)
    assert await may_fit_later()
    await queue.let_leases_pass(database)
    assert not await may_fit_later()
    assert await amounts(database) == (0, 0, 600)
    await ledgers.drop_old(database)
    await log.commit(answered(count(request, 7)))
    assert await amounts(database) == (7, 0, 0)


async def test_ledger_is_full_once_not_even_the_smallest_request_has_room(database: databases.Database) -> None:
    await reserve(database, charge(amount=700))
    assert await refusing(database, charge(amount=300)) == []
    assert await refusing(database, charge(amount=301)) == ["tokens"]
    assert await refusing(database, charge(amount=0)) == []


async def test_alert_is_refused_until_the_last_of_the_used_up_budgets_renews(database: databases.Database) -> None:
    month, free = charge("month", amount=300, most=300), charge("another", amount=1)
    await reserve(database, replace(charge(amount=1000), per="day"), month)
    refused = await ledgers.used_up(database, [replace(charge(amount=1), per="day"), month, free])
    ((now,),) = await queue.rows(database, "SELECT clock_timestamp()")
    assert refused is not None
    assert (list(refused.budgets), refused.renews_at) == (["month", "tokens"], budgets.period_end("month", now))
    assert 0 <= refused.seconds - (refused.renews_at - now).total_seconds() < 60
    assert refused.text.startswith("used up: budgets 'month', 'tokens', until 20")


@pytest.mark.parametrize(
    ("at", "hour", "day", "month"),
    [
        ("2024-02-29 23:59:59.999999", "2024-02-29T23", "2024-02-29", "2024-02"),
        ("2025-12-31 23:59:59.999999", "2025-12-31T23", "2025-12-31", "2025-12"),
        ("2026-01-01 00:00:00", "2026-01-01T00", "2026-01-01", "2026-01"),
    ],
)
async def test_budget_periods_follow_the_utc_calendar_in_any_session_time_zone(
    database: databases.Database, at: str, hour: str, day: str, month: str
) -> None:
    statement = f"""
      SELECT {ledgers.PERIOD} FROM unnest(ARRAY['hour', 'day', 'month', 'investigation']) WITH ORDINALITY
        AS known (per, place), (SELECT (CAST(:at AS text) || '+00')::timestamptz AT TIME ZONE 'UTC' AS utc) AS at
      ORDER BY place
    """  # noqa: S608 - our own text
    for zone in ("UTC", "Pacific/Kiritimati", "Europe/Berlin"):
        await queue.execute(database, f"ALTER ROLE CURRENT_USER SET timezone = '{zone}'")
        fresh = databases.Database(database.url)
        try:
            assert [row for (row,) in await queue.rows(fresh, statement, at=at)] == [hour, day, month, ""]
        finally:
            await fresh.close()
            await queue.execute(database, "ALTER ROLE CURRENT_USER RESET timezone")


async def test_next_period_begins_with_nothing(database: databases.Database) -> None:
    await reserve(database, charge(amount=1000))
    assert (await reserve(database, charge(amount=1)))[1] == ["tokens"]
    await queue.execute(database, "UPDATE budget_ledgers SET period = '2001-01-01'")
    await queue.execute(database, "UPDATE budget_reservations SET period = '2001-01-01'")
    assert not (await reserve(database, charge(amount=1)))[1]


async def test_request_is_settled_in_the_period_of_its_reservation(database: databases.Database) -> None:
    claim, log = await started(database)
    request, _ = await reserve(database, charge(amount=300), claim=claim)
    await queue.execute(database, "UPDATE budget_ledgers SET period = '2001-01-01'")
    await queue.execute(database, "UPDATE budget_reservations SET period = '2001-01-01'")
    await reserve(database, charge(amount=50), claim=claim)
    await log.commit(answered(count(request, 10)))
    rows = await queue.rows(database, "SELECT period < '2002', used, settled FROM budget_ledgers ORDER BY period")
    assert rows == [(True, 10, 10), (False, 50, 0)]


async def test_ledger_of_an_investigation_bounds_its_questions_too_and_goes_with_its_purge(
    database: databases.Database,
) -> None:
    """A takeover, and a question a year after the end, find what was spent before."""

    async def run(claim: work.Claim) -> None:
        writing = await queue.opened(database, claim)
        await reserve(database, *(charge(subject=subject) for subject in subjects), claim=claim)
        if claim.run:
            await writing.commit(entries.RunEnded(run=1, ending="Failed", reason="Any", message="no"))
        else:
            await writing.commit(entries.RunEnded(ending="Failed", reason="Any", message="no"))

    def charge(*, subject: str, amount: int = 300) -> budgets.Charge:
        return budgets.Charge(
            budget="one",
            unit="tokens",
            subject=subject,
            per="investigation",
            amount=Decimal(amount),
            most=Decimal(1000),
            at_limit="Refuse",
        )

    identity = await queue.admit(database)
    subjects = [str(identity), f"{identity} google-default"]
    other = charge(subject=str(uuid.uuid4()))
    first = await queue.claimed(database)
    await reserve(database, *(charge(subject=subject) for subject in subjects), other, claim=first)
    await queue.let_leases_pass(database)
    await run(await queue.claimed(database))
    await queue.execute(database, "UPDATE budget_ledgers SET opened_at = opened_at - interval '401 days'")
    await ledgers.drop_old(database)
    spent = {f"one{subject}": (600, 0) for subject in subjects}
    assert await used(database) == spent, "the other's investigation does not exist"
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=queue.CALLER) == 1
    await run(await queue.claimed(database))
    claimless = [charge(subject=subject, amount=101) for subject in subjects]
    assert (await reserve(database, *claimless))[1] == ["one", "one"]
    await reserve(database, other)
    assert await purge.purge(database, identity, by=queue.CALLER) is None
    assert await used(database) == {f"one{other.subject}": (300, 0)}

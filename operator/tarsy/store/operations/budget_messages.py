"""The messages to receivers about budgets: the newest threshold of each ledger and receiver, and whether it was sent.

A row stays until its period is over, so each threshold is told once in a period. A higher one replaces one that was
not sent. Otherwise it is as with the messages about investigations (`operations.deliveries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from sqlalchemy import text

from tarsy.store.base import databases
from tarsy.store.operations import deliveries


@dataclass(frozen=True, kw_only=True)
class Key:
    """The ledger that a message is about."""

    budget: str
    unit: str
    subject: str
    period: str

    @property
    def text(self) -> str:
        """The ledger, for the id of a message and for the log."""
        return "/".join(filter(None, (self.budget, self.unit, self.subject, self.period)))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A message that is to be sent."""

    key: Key
    receiver: str
    threshold: int
    """Percent of the limit."""


_QUEUE = text("""
  INSERT INTO budget_messages AS known (budget, unit, subject, period, receiver, threshold, next_at)
  SELECT budget, unit, subject, period, receiver, max(threshold), clock_timestamp()
  FROM unnest(CAST(:budgets AS text[]), CAST(:units AS text[]), CAST(:subjects AS text[]), CAST(:periods AS text[]),
    CAST(:receivers AS text[]), CAST(:thresholds AS integer[]))
    AS wanted (budget, unit, subject, period, receiver, threshold)
  WHERE NOT EXISTS (
    SELECT FROM budget_messages AS stored
    WHERE (stored.budget, stored.unit, stored.subject, stored.period, stored.receiver)
      = (wanted.budget, wanted.unit, wanted.subject, wanted.period, wanted.receiver)
      AND stored.threshold >= wanted.threshold
  )
  GROUP BY 1, 2, 3, 4, 5
  ORDER BY 1, 2, 3, 4, 5
  ON CONFLICT (budget, unit, subject, period, receiver) DO UPDATE SET threshold = excluded.threshold,
    since = clock_timestamp(), next_at = clock_timestamp(), failures = 0
  WHERE known.threshold < excluded.threshold
  RETURNING budget
""")
_DROP_OLD = text("DELETE FROM budget_messages WHERE since < clock_timestamp() - interval '40 days'")


async def queue(database: databases.Database, wanted: Sequence[Wanted]) -> None:
    """Store messages to be sent; what was stored before, for this or a higher threshold, stays as it is.

    Rows of 40 days ago are deleted: their periods are over.
    """
    stored = await database.run(
        _QUEUE,
        budgets=[message.key.budget for message in wanted],
        units=[message.key.unit for message in wanted],
        subjects=[message.key.subject for message in wanted],
        periods=[message.key.period for message in wanted],
        receivers=[message.receiver for message in wanted],
        thresholds=[message.threshold for message in wanted],
    )
    if stored:
        await database.run(_DROP_OLD)


_DUE = text("""
  SELECT receiver, budget, unit, subject, period
  FROM unnest(CAST(:receivers AS text[])) AS asked (receiver)
  CROSS JOIN LATERAL (
    SELECT budget, unit, subject, period, next_at FROM budget_messages
    WHERE budget_messages.receiver = asked.receiver AND next_at <= clock_timestamp()
    ORDER BY next_at LIMIT :limit
  ) AS due
  ORDER BY next_at, budget, unit, subject, period
""")


async def due(database: databases.Database, receivers: Sequence[str], *, limit: int) -> dict[str, list[Key]]:
    """Return the ledgers with a message that is due, the longest due first; at most `limit` of a receiver."""
    by_receiver: dict[str, list[Key]] = {receiver: [] for receiver in receivers}
    for row in await database.run(_DUE, receivers=list(receivers), limit=limit):
        key = Key(budget=row.budget, unit=row.unit, subject=row.subject, period=row.period)
        by_receiver[row.receiver].append(key)
    return by_receiver


@dataclass(frozen=True, kw_only=True)
class Due:
    """A message that is due."""

    threshold: int
    attempts: int
    """The earlier attempts since the last success; one of them may have reached the receiver."""
    failures: int
    """The failed attempts to send this message."""

    @property
    def attempt(self) -> int:
        """The number of this attempt, which its outcome is noted for."""
        return self.attempts + 1


_OF_MESSAGE = """
  WHERE (budget, unit, subject, period, receiver) = (:budget, :unit, :subject, :period, :receiver)"""
_BEGIN_ATTEMPT = text(f"""
  UPDATE budget_messages SET attempts = attempts + 1 {_OF_MESSAGE} AND next_at <= clock_timestamp()
  RETURNING threshold, attempts - 1 AS attempts, failures
""")  # noqa: S608 - our own text


async def begin_attempt(database: databases.Database, key: Key, *, receiver: str) -> Due | None:
    """Count an attempt, before it is made, and return the message; None if none is due."""
    rows = await database.run(_BEGIN_ATTEMPT, receiver=receiver, **asdict(key))
    return Due(**dict(rows[0])) if rows else None


_SENT = text(f"""
  UPDATE budget_messages SET attempts = 0, failures = 0, problem = '',
    next_at = CASE WHEN threshold > :threshold THEN clock_timestamp() END
  {_OF_MESSAGE} AND attempts = :attempt
""")  # noqa: S608 - our own text


async def sent(database: databases.Database, key: Key, due: Due, *, receiver: str) -> None:
    """Note that the message `due` was sent; a higher threshold that was queued meanwhile is due now."""
    values = {**asdict(key), "receiver": receiver, "attempt": due.attempt, "threshold": due.threshold}
    await database.run(_SENT, **values)


_FAILED = text(f"""
  UPDATE budget_messages SET problem = :problem,
    failures = CASE WHEN threshold = :threshold THEN failures + 1 ELSE failures END,
    next_at = CASE WHEN threshold = :threshold AND CAST(:delay AS interval) > interval '0'
      THEN clock_timestamp() + CAST(:delay AS interval) ELSE next_at END
  {_OF_MESSAGE} AND attempts = :attempt AND next_at IS NOT NULL
""")  # noqa: S608 - our own text


async def failed(
    database: databases.Database, key: Key, due: Due, *, receiver: str, problem: str, delay: timedelta
) -> None:
    """Note a failed attempt; the next one is due after `delay`, without one it keeps its place in the order."""
    values = {**asdict(key), "receiver": receiver, "attempt": due.attempt, "threshold": due.threshold}
    await database.run(_FAILED, problem=problem, delay=delay, **values)


_DROP = text(f"DELETE FROM budget_messages {_OF_MESSAGE}")  # noqa: S608 - our own text


async def drop(database: databases.Database, key: Key, *, receiver: str) -> None:
    """Forget the message about a budget that is gone, or that the receiver may not hear of any more."""
    await database.run(_DROP, receiver=receiver, **asdict(key))


_GIVE_UP = text("""
  UPDATE budget_messages SET next_at = NULL
  WHERE receiver = ANY(CAST(:receivers AS text[])) AND next_at IS NOT NULL
    AND since < clock_timestamp() - CASE WHEN failures > 0 THEN 1 ELSE 2 END * CAST(:window AS interval)
  RETURNING receiver, budget, unit, subject, period, problem
""")


async def give_up(database: databases.Database, receivers: Sequence[str]) -> list[tuple[str, Key, str]]:
    """Give up messages that were tried and are older than a day, or twice as old; return them with their problems."""
    rows = await database.run(_GIVE_UP, receivers=list(receivers), window=deliveries.WINDOW)
    return [
        (row.receiver, Key(budget=row.budget, unit=row.unit, subject=row.subject, period=row.period), row.problem)
        for row in rows
    ]

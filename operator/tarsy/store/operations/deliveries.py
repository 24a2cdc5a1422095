"""The messages to receivers about investigations: what is to be sent, what was sent, what was given up.

A row is the newest event of one investigation for one receiver. A reader of changes writes it (`queue`), and a sender
loads it, sends the investigation as it is then, and notes the outcome. Later events replace one that was not sent.

Changes are read from a transaction number on, as `reads.changes` does it, so none is missed. A change may be read
twice; the event of a row only goes forward. A receiver of updates has a message, too, whenever the ended stages or the
alerts differ from those of its last message (`told_of`), at most one in UPDATE.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.config.model import deliveries
from tarsy.store.base import databases, visibility

WINDOW = timedelta(days=1)
"""The time after its end in which an investigation is told of for the first time, and in which a message is retried."""
UPDATE = timedelta(seconds=10)
"""The least time from one message to an update of it; updates within it are one."""
_POSITION = "changes"
_RANK = "array_position(ARRAY['started', 'ended', 'resolved'], {})"
_IS_LATER = f"{_RANK.format('excluded.event')} > {_RANK.format('known.event')}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """An investigation that has started or ended, by the facts that rules ask for."""

    id: UUID
    revision: int
    namespace: str
    chain_name: str | None
    notify: tuple[str, ...]
    """The receivers that its chain names."""
    severity: str | None
    """Of the first alert."""
    labels: Mapping[str, str]
    """Of the first alert."""
    has_ended: bool
    ending: str | None
    grounds: str | None
    alert_status: str | None
    told: frozenset[str] = frozenset()
    """The receivers that have a message about it, sent or not."""
    is_recent: bool = True
    """Whether it is open, or has ended within WINDOW; an older one is news for those that were told of it alone."""
    severities: frozenset[str] = frozenset()
    """Of all its alerts."""
    ended_stages: int = 0
    alerts: int = 1

    @property
    def told_of(self) -> str:
        """The state that receivers of updates hear of."""
        return f"{self.ended_stages}/{self.alerts}"

    @property
    def is_updated(self) -> bool:
        """Whether there is more to tell than its start."""
        return self.ended_stages > 0 or self.alerts > 1


@dataclass(frozen=True, kw_only=True)
class Changes:
    """A page of changes."""

    news: Sequence[Change]
    """In the order of their changes."""
    horizon: int
    """The transaction number to read from the next time."""
    more: bool
    """Whether more changes may follow, to be read at once."""


_MOMENT = """
    SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS settled_below,
      CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) AS future"""
_BEGIN = text(f"""
  WITH moment AS MATERIALIZED ({_MOMENT}
  )
  INSERT INTO delivery_positions AS known (name, changed) SELECT '{_POSITION}', settled_below FROM moment
  ON CONFLICT (name) DO UPDATE SET changed = CASE
    WHEN known.changed > (SELECT future FROM moment) THEN excluded.changed ELSE known.changed END
  RETURNING changed
""")  # noqa: S608 - our own text


async def begin(database: databases.Database) -> int:
    """Return the transaction number to read changes from; the first call in a database returns the present one.

    A number in the future is from another database, whose rows were restored here; the present one replaces it.
    """
    (row,) = await database.run(_BEGIN)
    position: int = row.changed
    return position


_CHANGES = text(f"""
  WITH moment AS MATERIALIZED ({_MOMENT}
  ), read AS MATERIALIZED (
    SELECT investigation, revision, changed FROM work
    WHERE changed >= greatest(CAST(:changed AS bigint), 1) AND changed < (SELECT future FROM moment)
    ORDER BY changed FETCH FIRST (CAST(:limit AS bigint)) ROWS WITH TIES
  )
  SELECT settled_below, changed, known.id, read.revision, namespace, chain_name, severity,
    CAST(labels AS text) AS labels, CAST(known.chain -> 'notify' AS text) AS notify, known.ended_at, runs.ending,
    runs.grounds, alert_status,
    known.id IS NOT NULL AND {visibility.VISIBLE} AND (runs.started_at IS NOT NULL OR known.ended_at IS NOT NULL)
      AS is_news,
    known.ended_at IS NULL OR known.ended_at > clock_timestamp() - CAST(:window AS interval) AS is_recent,
    ARRAY(SELECT receiver FROM deliveries WHERE deliveries.investigation = read.investigation) AS told,
    (SELECT count(*) FROM stages WHERE stages.investigation = read.investigation AND run = 0 AND ended_at IS NOT NULL)
      AS ended_stages,
    severities, coalesce(alerts, 0) AS alerts
  FROM moment LEFT JOIN read ON true
  LEFT JOIN investigations AS known ON known.id = read.investigation
  LEFT JOIN runs ON runs.investigation = read.investigation AND runs.number = 0
  LEFT JOIN LATERAL (
    SELECT array_agg(DISTINCT severity) AS severities, count(*) AS alerts FROM identities
    WHERE identities.investigation = read.investigation
  ) AS its_alerts ON true
  ORDER BY changed
""")  # noqa: S608 - our own text


async def changes(database: databases.Database, *, changed: int, limit: int) -> Changes:
    """Return the changes from transaction `changed` on.

    Investigations that wait for their first claim, or are deleted, are left out, and so are those that ended longer
    than WINDOW ago, unless a receiver was told of them: their alert may resolve.
    """
    rows = await database.run(_CHANGES, changed=changed, limit=limit, window=WINDOW)
    numbers = [row.changed for row in rows if row.changed is not None]
    horizon = rows[0].settled_below if len(numbers) < limit else min(rows[0].settled_below, numbers[-1] + 1)
    news = [
        Change(
            id=row.id,
            revision=row.revision,
            namespace=row.namespace,
            chain_name=row.chain_name,
            notify=tuple(json.loads(row.notify or "null") or ()),
            severity=row.severity,
            labels=json.loads(row.labels or "{}"),
            has_ended=row.ended_at is not None,
            ending=row.ending,
            grounds=row.grounds,
            alert_status=row.alert_status,
            told=frozenset(row.told),
            is_recent=row.is_recent,
            severities=frozenset(row.severities or ()),
            ended_stages=row.ended_stages,
            alerts=row.alerts,
        )
        for row in rows
        if row.is_news and (row.is_recent or row.told)
    ]
    return Changes(news=news, horizon=max(horizon, changed), more=len(numbers) >= limit and horizon > changed)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A message that is to be sent."""

    investigation: UUID
    receiver: str
    event: deliveries.Milestone
    revision: int
    told_of: str = ""
    """`Change.told_of` for a receiver of updates."""
    is_silent: bool = False
    """Whether the receiver does not hear of `event`, but of the updates that follow it."""


_QUEUE = text(f"""
  WITH moved AS (
    UPDATE delivery_positions SET changed = CAST(:changed AS bigint) WHERE changed < CAST(:changed AS bigint)
  )
  INSERT INTO deliveries AS known (investigation, receiver, event, revision, since, next_at, told_of, sent_event)
  SELECT investigation, receiver, event, revision, clock_timestamp(), clock_timestamp(), told_of,
    CASE WHEN is_silent THEN event ELSE '' END
  FROM unnest(CAST(:investigations AS uuid[]), CAST(:receivers AS text[]), CAST(:events AS text[]),
    CAST(:revisions AS bigint[]), CAST(:states AS text[]), CAST(:silent AS boolean[]))
    AS wanted (investigation, receiver, event, revision, told_of, is_silent)
  WHERE EXISTS (SELECT 1 FROM investigations WHERE id = wanted.investigation)
  ON CONFLICT (investigation, receiver) DO UPDATE SET
    event = CASE WHEN {_IS_LATER} THEN excluded.event ELSE known.event END,
    revision = greatest(known.revision, excluded.revision), told_of = excluded.told_of,
    failures = CASE WHEN {_IS_LATER} OR known.next_at IS NULL THEN 0 ELSE known.failures END,
    since = CASE WHEN {_IS_LATER} OR known.next_at IS NULL THEN excluded.since ELSE known.since END,
    next_at = CASE WHEN {_IS_LATER} THEN least(known.next_at, excluded.next_at)
      ELSE coalesce(known.next_at, greatest(excluded.next_at, known.sent_at + CAST(:update AS interval))) END
  WHERE {_IS_LATER} OR (excluded.told_of <> '' AND excluded.told_of <> known.told_of)
  RETURNING investigation
""")  # noqa: S608 - our own text


async def queue(database: databases.Database, wanted: Sequence[Wanted], *, changed: int) -> int:
    """Store messages to be sent, and the number to read changes from; return the number of new messages.

    A newer event is due at once, even if the one that it replaces waits for its next attempt, and has a day of its own.
    Of each pair of investigation and receiver there is at most one message in `wanted`.
    """
    return len(
        await database.run(
            _QUEUE,
            changed=changed,
            investigations=[message.investigation for message in wanted],
            receivers=[message.receiver for message in wanted],
            events=[message.event for message in wanted],
            revisions=[message.revision for message in wanted],
            states=[message.told_of for message in wanted],
            silent=[message.is_silent for message in wanted],
            update=UPDATE,
        )
    )


_DUE = text("""
  SELECT receiver, investigation
  FROM unnest(CAST(:receivers AS text[])) AS asked (receiver)
  CROSS JOIN LATERAL (
    SELECT investigation, next_at FROM deliveries
    WHERE deliveries.receiver = asked.receiver AND next_at <= clock_timestamp()
    ORDER BY next_at, investigation LIMIT :limit
  ) AS due
  ORDER BY next_at, investigation
""")


async def due(database: databases.Database, receivers: Sequence[str], *, limit: int) -> dict[str, list[UUID]]:
    """Return the investigations with a message that is due, the longest due first; at most `limit` of a receiver."""
    by_receiver: dict[str, list[UUID]] = {receiver: [] for receiver in receivers}
    for row in await database.run(_DUE, receivers=list(receivers), limit=limit):
        by_receiver[row.receiver].append(row.investigation)
    return by_receiver


@dataclass(frozen=True, kw_only=True)
class Due:
    """A message that is due."""

    event: deliveries.EventName
    milestone: deliveries.Milestone
    """Its newest event; `event` is "updated" if that was sent before."""
    revision: int
    told_of: str
    attempts: int
    """The earlier attempts since the last success; one of them may have reached the receiver."""
    failures: int
    """The failed attempts to send this message."""
    sent_as: Mapping[str, Any]
    """The notes of the sender about the message that it sent before; {} if there was none."""

    @property
    def attempt(self) -> int:
        """The number of this attempt, which its outcome is noted for."""
        return self.attempts + 1


_BEGIN_ATTEMPT = text("""
  UPDATE deliveries SET attempts = attempts + 1
  WHERE investigation = :investigation AND receiver = :receiver AND next_at <= clock_timestamp()
  RETURNING CASE WHEN event = sent_event AND told_of <> sent_told_of THEN 'updated' ELSE event END AS event,
    event AS milestone, told_of, revision, attempts - 1 AS attempts, failures, CAST(sent_as AS text) AS sent_as
""")


async def begin_attempt(database: databases.Database, investigation: UUID, *, receiver: str) -> Due | None:
    """Count an attempt, and return the message about `investigation`; None if none is due.

    The attempt is counted before it is made, so that after a death it is known that the message may have been sent.
    """
    rows = await database.run(_BEGIN_ATTEMPT, investigation=investigation, receiver=receiver)
    return Due(**dict(rows[0]) | {"sent_as": json.loads(rows[0].sent_as)}) if rows else None


_OF_ATTEMPT = "WHERE investigation = :investigation AND receiver = :receiver AND attempts = :attempt"
_SENT = text(f"""
  WITH former AS (
    SELECT gave_up_at IS NOT NULL AS was_given_up FROM deliveries {_OF_ATTEMPT} FOR NO KEY UPDATE
  ), noted AS (
    UPDATE deliveries SET attempts = 0, failures = 0, problem = '', gave_up_at = NULL, since = clock_timestamp(),
      sent_at = clock_timestamp(), sent_revision = :revision, sent_event = :milestone, sent_told_of = :told_of,
      sent_as = CAST(:sent_as AS json),
      next_at = CASE WHEN event <> :milestone THEN clock_timestamp()
        WHEN told_of <> :told_of THEN clock_timestamp() + CAST(:update AS interval) END
    FROM former {_OF_ATTEMPT}
    RETURNING investigation, was_given_up
  )
  UPDATE work SET revision = revision + 1, stale = true
  FROM noted WHERE work.investigation = noted.investigation AND was_given_up
""")  # noqa: S608 - our own text


async def sent(
    database: databases.Database, investigation: UUID, due: Due, *, receiver: str, sent_as: Mapping[str, Any]
) -> None:
    """Note that the message `due` was sent; a newer one that was queued meanwhile is due now, an update after UPDATE.

    Nothing changes if a later attempt has begun: another process does the duties, and its outcome counts. If an earlier
    message was given up, the status of the investigation no longer says so.
    """
    values = {"investigation": investigation, "receiver": receiver, "attempt": due.attempt, "revision": due.revision}
    values |= {"milestone": due.milestone, "told_of": due.told_of, "update": UPDATE}
    await database.run(_SENT, sent_as=json.dumps(dict(sent_as)), **values)


_KEEP = text(f"UPDATE deliveries SET sent_as = CAST(:sent_as AS json) {_OF_ATTEMPT}")  # noqa: S608 - our own text


async def keep(
    database: databases.Database, investigation: UUID, due: Due, *, receiver: str, sent_as: Mapping[str, Any]
) -> None:
    """Note a part of the message `due` that was sent, so that the next attempt does not send it again."""
    values = {"investigation": investigation, "receiver": receiver, "attempt": due.attempt}
    await database.run(_KEEP, sent_as=json.dumps(dict(sent_as)), **values)


_FAILED = text(f"""
  UPDATE deliveries SET problem = :problem,
    failures = CASE WHEN revision = :revision THEN failures + 1 ELSE failures END,
    next_at = CASE WHEN revision = :revision AND next_at IS NOT NULL AND CAST(:delay AS interval) > interval '0'
      THEN clock_timestamp() + CAST(:delay AS interval) ELSE next_at END
  {_OF_ATTEMPT}
""")  # noqa: S608 - our own text


async def failed(
    database: databases.Database, investigation: UUID, due: Due, *, receiver: str, problem: str, delay: timedelta
) -> None:
    """Note a failed attempt; the next one is due after `delay`, without one it keeps its place in the order.

    A newer message that was queued meanwhile does not wait.
    """
    values = {"investigation": investigation, "receiver": receiver, "attempt": due.attempt, "revision": due.revision}
    await database.run(_FAILED, problem=problem, delay=delay, **values)


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A receiver that did not take its messages."""

    receiver: str
    waiting: int
    """The number of messages that wait for it."""
    problem: str
    """The problem of one of them."""
    since: datetime


_FAILING = text("""
  SELECT receiver, count(*) AS waiting, max(problem) AS problem, min(since) FILTER (WHERE problem <> '') AS since
  FROM (
    SELECT receiver, problem, since, next_at FROM deliveries
    UNION ALL SELECT receiver, problem, since, next_at FROM budget_messages
  ) AS message
  WHERE receiver = ANY(CAST(:receivers AS text[])) AND next_at IS NOT NULL
  GROUP BY receiver HAVING max(problem) <> '' ORDER BY receiver
""")


async def failing(database: databases.Database, receivers: Sequence[str]) -> list[Failing]:
    """Return those of the `receivers` that did not take a message which waits for them."""
    rows = await database.run(_FAILING, receivers=list(receivers))
    return [Failing(**dict(row)) for row in rows]


_DROP = text("DELETE FROM deliveries WHERE investigation = :investigation AND receiver = :receiver")


async def drop(database: databases.Database, investigation: UUID, *, receiver: str) -> None:
    """Forget the message about an investigation that was deleted, or that the receiver may not hear of any more."""
    await database.run(_DROP, investigation=investigation, receiver=receiver)


_GROUP_DIGESTS = text("""
  SELECT group_digest FROM identities
  WHERE identities.investigation IN (
      SELECT id FROM investigations WHERE id = :id UNION SELECT retry_of FROM investigations WHERE id = :id
    ) AND group_digest IS NOT NULL
  GROUP BY group_digest ORDER BY min(joined_at) NULLS FIRST, group_digest LIMIT :limit
""")


async def group_digests(database: databases.Database, investigation: UUID, *, limit: int) -> list[str]:
    """Return the digests of the group keys of an investigation's alerts, those of the first alerts first."""
    return [row.group_digest for row in await database.run(_GROUP_DIGESTS, id=investigation, limit=limit)]


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """A message that could not be sent in time."""

    investigation: UUID
    problem: str
    """The problem of the last attempt."""


_GIVE_UP = text("""
  WITH expired AS (
    SELECT investigation FROM deliveries JOIN work USING (investigation)
    WHERE receiver = :receiver AND next_at IS NOT NULL
      AND since < clock_timestamp() - CASE WHEN failures > 0 THEN 1 ELSE 2 END * CAST(:window AS interval)
    ORDER BY since LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
  ), given_up AS (
    UPDATE deliveries SET next_at = NULL, gave_up_at = clock_timestamp() FROM expired
    WHERE deliveries.receiver = :receiver AND deliveries.investigation = expired.investigation
    RETURNING deliveries.investigation, problem
  ), marked AS (
    UPDATE work SET revision = revision + 1, stale = true
    FROM given_up WHERE work.investigation = given_up.investigation
  )
  SELECT investigation, problem FROM given_up
""")


async def give_up(database: databases.Database, *, receiver: str, limit: int) -> list[GivenUp]:
    """Give up messages to `receiver` that were tried and are older than WINDOW, or twice as old; statuses say so.

    While a receiver is away, few of many messages are tried.
    """
    rows = await database.run(_GIVE_UP, receiver=receiver, window=WINDOW, limit=limit)
    return [GivenUp(**dict(row)) for row in rows]

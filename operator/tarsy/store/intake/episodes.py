"""Alert episodes: which firing alerts are repeats, and which begin an investigation.

An episode is (namespace, fingerprint, start in milliseconds). It is remembered past the deletion of its object: a
deleted investigation must not come back with the next notification.

An investigation that came to nothing stands for its alert for a while only: one that Failed, TimedOut, met MCP servers
that were away, or was purged. Then a later notification begins another one, which is linked to it. The while grows
with each one in a row, and there are few in a day: an alert may fire for weeks, and each investigation is paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigations, naming
from tarsy.store.base import databases, notify, readable
from tarsy.store.queue import work

SHORTEST_COOLDOWN = timedelta(minutes=1)
"""The least cool-down of an investigation that came to nothing."""
FACTORS = (1, 4, 16)
"""Cool-downs of the first, the second and all later investigations in a row that came to nothing."""
DAY = timedelta(hours=24)
A_DAY = 3
"""Investigations of an alert that came to nothing, begun within DAY, after which no other one follows."""

LATEST = 20
"""Investigations of an alert among which an open one is looked for: it keeps others from beginning."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """An investigation of an alert."""

    investigation: UUID
    name: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The settings of deduplication."""

    window: timedelta
    """How long an episode is remembered."""
    cooldown: timedelta
    """How long after its end an investigation stands for other episodes of its alert."""


@dataclass(frozen=True, kw_only=True)
class Former:
    """An investigation of an alert, as far as the rule needs it. All times are the database's."""

    known: Known
    admitted_at: datetime
    ended_at: datetime | None
    purged_at: datetime | None
    failed: bool
    """It Failed or TimedOut, or its servers were away."""
    gone: bool
    """Its object is known to be gone."""
    deleted: bool
    """A person deleted its object: neither its time to live nor a purge did."""
    links: int
    """Investigations before it in its row of such that came to nothing, 2 at most."""

    @property
    def came_to_nothing(self) -> bool:
        """Whether another one may follow it."""
        return self.failed or self.purged_at is not None

    def stands_until(self, cooldown: timedelta) -> datetime:
        """The end of its cool-downs, if it came to nothing; those of a purged result begin with the purge."""
        since = self.ended_at if self.failed else self.purged_at
        assert since is not None  # noqa: S101 - it came to nothing
        return since + max(cooldown, SHORTEST_COOLDOWN) * FACTORS[min(self.links, len(FACTORS) - 1)]


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The verdict on an alert that is counted on an investigation."""

    known: Known
    until: datetime | None = None
    """If that came to nothing: a notification at this time or later begins another one."""
    deletable: bool = False
    """Whether the verdict would differ, if a person had deleted its object."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """The verdict on an alert that is to be investigated."""

    previous: Known | None = None
    """The investigation that came to nothing, and that the new one follows."""


def judge(
    *, own: Former | None, newest: Former | None, begun: Sequence[datetime], now: datetime, rule: Rule
) -> Repeat | Begin:
    """Return the verdict on a firing alert. Pure.

    `own` is the investigation of its episode, if that is remembered, and `newest` the open or else the newest one of
    its fingerprint. `begun` are the times at which the newest A_DAY of the last DAY that came to nothing were admitted,
    the newest first.
    """
    if own and not own.came_to_nothing:
        return Repeat(known=own.known)
    last = newest or own
    if last is None:
        return Begin()
    if last.ended_at is None:
        return Repeat(known=last.known)
    if not last.came_to_nothing:
        if now < last.ended_at + rule.cooldown:
            return Repeat(known=last.known)
        if own is None:
            return Begin()
        last = own
    limit = begun[A_DAY - 1] + DAY if len(begun) >= A_DAY else now
    until = limit if last.failed and last.deleted else max(limit, last.stands_until(rule.cooldown))
    if now < until:
        deletable = last.failed and not last.gone and limit <= now
        return Repeat(known=last.known, until=until, deletable=deletable)
    return Begin(previous=last.known if own or now < last.admitted_at + rule.window else None)


_FAILED = "(known.ending IN ('Failed', 'TimedOut') OR coalesce(first.grounds, '') = 'ServersAway')"
FACTS = text(f"""
  WITH own AS (
    SELECT investigation AS id FROM identities
    WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms
      AND first_seen > clock_timestamp() - CAST(:window AS interval)
  ), newest AS (
    SELECT id FROM (
      SELECT id, ended_at, admitted_at FROM investigations JOIN work ON investigation = id
      WHERE namespace = :namespace AND fingerprint = :fingerprint AND (cancel IS DISTINCT FROM 'deleted' OR run > 0)
      ORDER BY admitted_at DESC LIMIT {LATEST}
    ) AS latest
    ORDER BY ended_at IS NULL DESC, admitted_at DESC LIMIT 1
  )
  SELECT known.id, known.name, known.admitted_at, known.ended_at, known.purged_at,
    known.ended_at IS NOT NULL AND {_FAILED} AS failed,
    known.gone_at IS NOT NULL AS gone,
    coalesce(
      known.gone_at < coalesce(question.ended_at, known.ended_at)
        + make_interval(secs => coalesce(ttl_seconds, chain_ttl_seconds, {investigations.DEFAULT_TTL_SECONDS}))
      AND (known.purged_at IS NULL OR known.gone_at < known.purged_at), false) AS deleted,
    CASE WHEN known.previous IS NULL THEN 0
      WHEN (SELECT previous FROM investigations AS former WHERE former.id = known.previous) IS NULL THEN 1
      ELSE 2 END AS links,
    known.id IN (SELECT id FROM own) AS is_own, known.id IN (SELECT id FROM newest) AS is_newest,
    ARRAY(
      SELECT known.admitted_at FROM investigations AS known
      LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
      WHERE namespace = :namespace AND fingerprint = :fingerprint
        AND known.admitted_at > clock_timestamp() - CAST(:day AS interval)
        AND (purged_at IS NOT NULL OR {_FAILED})
      ORDER BY known.admitted_at DESC LIMIT :a_day
    ) AS begun,
    clock_timestamp() AS now
  FROM investigations AS known JOIN work ON work.investigation = known.id
  LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
  LEFT JOIN runs AS question ON question.investigation = known.id AND question.number = run AND run > 0
  WHERE known.id IN (SELECT id FROM own UNION SELECT id FROM newest)
""")  # noqa: S608 - our own texts
"""The rows that `verdict` reads, with the values of `facts`. They are of one moment."""


def facts(*, namespace: str, fingerprint: str, starts_ms: int, rule: Rule) -> dict[str, Any]:
    """Return the values of FACTS."""
    episode = {"namespace": namespace, "fingerprint": fingerprint, "starts_ms": starts_ms}
    return episode | {"window": rule.window, "day": DAY, "a_day": A_DAY}


def verdict(rows: Iterable[Mapping[str, Any]], *, rule: Rule) -> Repeat | Begin:
    """Return the verdict on a firing alert from the rows of FACTS."""
    facts = [dict(row) for row in rows]
    if not facts:
        return Begin()
    own, newest = (next((_former(row) for row in facts if row[which]), None) for which in ("is_own", "is_newest"))
    return judge(own=own, newest=newest, begun=facts[0]["begun"], now=max(row["now"] for row in facts), rule=rule)


def _former(row: Mapping[str, Any]) -> Former:
    names = ("admitted_at", "ended_at", "purged_at", "failed", "gone", "deleted", "links")
    return Former(known=Known(investigation=row["id"], name=row["name"]), **{name: row[name] for name in names})


async def look_up(
    database: databases.Database, *, namespace: str, fingerprint: str, starts_at: datetime, rule: Rule
) -> Repeat | Begin:
    """Return the verdict on a firing alert as of now.

    It is not the last word: where an investigation is to begin, the episode's receipt has that (`receipts.issue`).
    """
    starts_ms = naming.milliseconds(starts_at)
    values = facts(namespace=namespace, fingerprint=fingerprint, starts_ms=starts_ms, rule=rule)
    return verdict(await database.run(FACTS, **values), rule=rule)


_COUNT = text(f"""
  WITH held AS (
    SELECT investigation FROM work WHERE investigation = :id FOR NO KEY UPDATE
  ), counted AS (
    UPDATE investigations SET duplicates = duplicates + 1, alert_status = 'firing'
    FROM held WHERE id = held.investigation
    RETURNING id, {readable.CONDITION} AS is_readable
  )
  UPDATE work SET revision = revision + 1, stale = true FROM counted WHERE investigation = id AND is_readable
""")  # noqa: S608 - our own text


async def count(database: databases.Database, investigation: UUID) -> None:
    """Count a firing alert on the investigation that it repeats."""
    await database.run(_COUNT, id=investigation)
    await notify.send(database, (notify.STATUS, str(investigation)))


_RESOLVE = text(f"""
  WITH held AS (
    SELECT investigation FROM work
    WHERE investigation = (
      SELECT investigation FROM identities
      WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms <= :starts_ms
      ORDER BY starts_ms DESC LIMIT 1
    )
    FOR NO KEY UPDATE
  ), resolved AS (
    UPDATE investigations SET alert_status = 'resolved'
    FROM held WHERE id = held.investigation
    RETURNING id, name, on_resolved, {readable.CONDITION} AS is_readable
  ), shown AS (
    UPDATE work SET revision = revision + 1, stale = true FROM resolved WHERE investigation = id AND is_readable
  )
  SELECT * FROM resolved
""")  # noqa: S608 - our own text


async def resolved(
    database: databases.Database, *, namespace: str, fingerprint: str, starts_at: datetime
) -> Known | None:
    """Record that an episode is resolved, on the investigation that stands for it; None where there is none.

    That is its own, else the last one before it that its repeats were counted on; never a later one: the word of an old
    episode's end may come after the next has begun. Where its chain says so, it is cancelled.
    """
    rows = await database.run(
        _RESOLVE, namespace=namespace, fingerprint=fingerprint, starts_ms=naming.milliseconds(starts_at)
    )
    if not rows:
        return None
    (row,) = rows
    await notify.send(database, (notify.STATUS, str(row.id)))
    if row.on_resolved == "Cancel":
        await work.cancel(database, row.id, why="resolved")
    return Known(investigation=row.id, name=row.name)

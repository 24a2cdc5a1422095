"""Alert episodes: they decide which firing alerts are repeats, and which begin an investigation.

An episode is (namespace, fingerprint, start in milliseconds). It is remembered after its object is deleted, so that a
deleted investigation does not come back with the next notification.

An investigation came to nothing if it Failed, TimedOut, could not reach MCP servers, or was purged. Alerts are counted
on it until its cool-down is over. Then the next notification begins another investigation, which is linked to it. The
cool-down grows with each one in a row, and their number in a day is limited, because an alert may fire for weeks and
each investigation costs money.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import TextClause, text

from tarsy.resources import investigations, naming
from tarsy.store.base import cooldowns, databases, visibility
from tarsy.store.queue import work

DAILY_MAX = 3
"""Investigations of an alert that may come to nothing within `cooldowns.DAY`; after that many, no other one begins."""
LATEST_MAX = 20
"""The number of an alert's latest investigations that are searched for an open one."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The id and the name of an investigation."""

    id: UUID
    name: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The settings of deduplication."""

    window: timedelta
    """The time that an episode is remembered."""
    cooldown: timedelta
    """The time after the end of an investigation in which other episodes of its alert are counted on it."""


@dataclass(frozen=True, kw_only=True)
class Former:
    """An earlier investigation of an alert, open or ended. All times are the database's."""

    reference: Reference
    admitted_at: datetime
    ended_at: datetime | None
    purged_at: datetime | None
    failed: bool
    """True if it Failed or TimedOut, or if its MCP servers could not be reached."""
    gone: bool
    """True if the store knows that the object has left the cluster."""
    deleted: bool
    """True if a user deleted the object; false if its time to live or a purge did."""
    predecessors: int
    """The number of investigations before it that came to nothing in a row, 2 at most."""

    @property
    def came_to_nothing(self) -> bool:
        """Whether another investigation may follow it."""
        return self.failed or self.purged_at is not None

    def cooldown_end(self, cooldown: timedelta) -> datetime:
        """Return the end of the cool-down of an investigation that came to nothing.

        It begins with the end of the investigation, or with the purge of a result.
        """
        since = self.ended_at if self.failed else self.purged_at
        assert since is not None  # noqa: S101 - it came to nothing
        return since + max(cooldown, cooldowns.MIN) * cooldowns.FACTORS[self.predecessors]


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The verdict on an alert that repeats an investigation, and is counted on it."""

    investigation: Reference
    until: datetime | None = None
    """If this investigation came to nothing: the time after which a notification begins another one."""
    deletable: bool = False
    """Whether the verdict would be another one if a user had deleted the object."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """The verdict on an alert that is to be investigated."""

    previous: Reference | None = None
    """The investigation that came to nothing and that the new one follows, if any."""


def decide(
    *, own: Former | None, newest: Former | None, begun: Sequence[datetime], now: datetime, rule: Rule
) -> Repeat | Begin:
    """Return the verdict on a firing alert. Pure.

    `own` is the investigation of the alert's episode, if that is remembered. `newest` is the open investigation of the
    alert's fingerprint, or else the newest one. `begun` has the admission times of the investigations of the last day
    that came to nothing: the newest DAILY_MAX, the newest first.
    """
    if own and not own.came_to_nothing:
        return Repeat(investigation=own.reference)
    last = newest or own
    if last is None:
        return Begin()
    if last.ended_at is None:
        return Repeat(investigation=last.reference)
    if not last.came_to_nothing:
        if now < last.ended_at + rule.cooldown:
            return Repeat(investigation=last.reference)
        if own is None:
            return Begin()
        last = own
    limit = begun[DAILY_MAX - 1] + cooldowns.DAY if len(begun) >= DAILY_MAX else now
    until = limit if last.failed and last.deleted else max(limit, last.cooldown_end(rule.cooldown))
    if now < until:
        deletable = last.failed and not last.gone and limit <= now
        return Repeat(investigation=last.reference, until=until, deletable=deletable)
    return Begin(previous=last.reference if own or now < last.admitted_at + rule.window else None)


# A retry that is open, or has a result, stands for the alert of the investigation that it runs again; no other does.
_STANDING = """
  WITH RECURSIVE retries AS (
    SELECT investigation AS id, 0 AS depth FROM identities
    WHERE {identity}
    UNION
    SELECT known.id, retries.depth + 1 FROM investigations AS known JOIN retries ON known.retry_of = retries.id
  ), own AS (
    SELECT retries.id FROM retries JOIN investigations AS known ON known.id = retries.id
    LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
    WHERE retries.depth = 0 OR {stands}
    ORDER BY retries.depth = 0, known.admitted_at DESC LIMIT 1
  )"""
_FAILED = "(known.ending IN ('Failed', 'TimedOut') OR coalesce(first.grounds, '') = 'ServersAway')"
_STANDS = f"(known.ended_at IS NULL OR (known.purged_at IS NULL AND known.ending <> 'Cancelled' AND NOT {_FAILED}))"
_HAS_RESULT = """EXISTS (
        SELECT FROM investigations AS its JOIN runs ON runs.investigation = its.id AND number = 0
        WHERE its.id = {id} AND its.purged_at IS NULL AND its.ending NOT IN ('Failed', 'TimedOut')
          AND coalesce(runs.grounds, '') <> 'ServersAway'
      )"""
_REMEMBERED = """namespace = :namespace AND fingerprint = asked.fingerprint AND starts_ms = asked.starts_ms
      AND first_seen > clock_timestamp() - CAST(:window AS interval)"""
_FORMER = text(f"""
  SELECT place, former.*
  FROM unnest(CAST(:fingerprints AS text[]), CAST(:starts AS bigint[])) WITH ORDINALITY
    AS asked (fingerprint, starts_ms, place)
  CROSS JOIN LATERAL ({_STANDING.format(identity=_REMEMBERED, stands=_STANDS)}, of_alert AS (
    SELECT id FROM (
      SELECT id FROM investigations WHERE namespace = :namespace AND fingerprint = asked.fingerprint
      ORDER BY admitted_at DESC LIMIT {5 * LATEST_MAX}
    ) AS its_own
    UNION
    SELECT id FROM (
      SELECT investigation AS id FROM identities
      WHERE namespace = :namespace AND fingerprint = asked.fingerprint AND joined_at IS NOT NULL
      ORDER BY starts_ms DESC LIMIT {LATEST_MAX}
    ) AS joined
  ), newest AS (
    SELECT id FROM (
      SELECT known.id, known.ended_at, admitted_at FROM investigations AS known JOIN work ON investigation = id
      LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
      WHERE known.id IN (SELECT id FROM of_alert) AND (cancel IS DISTINCT FROM 'deleted' OR run > 0)
        AND (retry_of IS NULL OR {_STANDS})
      ORDER BY admitted_at DESC LIMIT {LATEST_MAX}
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
    CASE WHEN known.previous IS NULL OR {_HAS_RESULT.format(id="known.previous")} THEN 0
      WHEN (
        SELECT former.previous IS NULL OR {_HAS_RESULT.format(id="former.previous")}
        FROM investigations AS former WHERE former.id = known.previous
      ) IS NOT false THEN 1
      ELSE 2 END AS predecessors,
    known.id IN (SELECT id FROM own) AS is_own, known.id IN (SELECT id FROM newest) AS is_newest,
    ARRAY(
      SELECT known.admitted_at FROM investigations AS known
      LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
      WHERE known.id IN (SELECT id FROM of_alert)
        AND known.admitted_at > clock_timestamp() - CAST(:day AS interval) AND retry_of IS NULL
        AND (purged_at IS NOT NULL OR {_FAILED})
      ORDER BY known.admitted_at DESC LIMIT {DAILY_MAX}
    ) AS begun,
    clock_timestamp() AS now
  FROM investigations AS known JOIN work ON work.investigation = known.id
  LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
  LEFT JOIN runs AS question ON question.investigation = known.id AND question.number = run AND run > 0
  WHERE known.id IN (SELECT id FROM own UNION SELECT id FROM newest)
  ) AS former
""")  # noqa: S608 - our own texts


def former_investigations(
    alerts: Sequence[tuple[str, int]], *, namespace: str, rule: Rule
) -> tuple[TextClause, dict[str, Any]]:
    """Return the statement whose rows `verdicts` reads, and its values; all rows of an alert are of one moment.

    `alerts` are fingerprints, with the start in milliseconds.
    """
    values = {
        "namespace": namespace,
        "fingerprints": [fingerprint for fingerprint, _ in alerts],
        "starts": [starts_ms for _, starts_ms in alerts],
    }
    return _FORMER, values | {"window": rule.window, "day": cooldowns.DAY}


def verdicts(rows: Iterable[Mapping[str, Any]], *, count: int, rule: Rule) -> list[Repeat | Begin]:
    """Return the verdicts on `count` firing alerts from the rows of `former_investigations`, in their order."""
    by_place: dict[int, list[Mapping[str, Any]]] = {place: [] for place in range(1, count + 1)}
    for row in rows:
        by_place[row["place"]].append(dict(row))
    return [_verdict(formers, rule=rule) for formers in by_place.values()]


def _verdict(formers: Sequence[Mapping[str, Any]], *, rule: Rule) -> Repeat | Begin:
    if not formers:
        return Begin()
    fields = ("admitted_at", "ended_at", "purged_at", "failed", "gone", "deleted", "predecessors")
    own, newest = (
        next(
            (
                Former(reference=Reference(id=row["id"], name=row["name"]), **{field: row[field] for field in fields})
                for row in formers
                if row[flag]
            ),
            None,
        )
        for flag in ("is_own", "is_newest")
    )
    return decide(own=own, newest=newest, begun=formers[0]["begun"], now=max(row["now"] for row in formers), rule=rule)


async def look_up(
    database: databases.Database, *alerts: tuple[str, datetime], namespace: str, rule: Rule
) -> list[Repeat | Begin]:
    """Return the present verdicts on firing alerts, given their fingerprints and starts, in one statement.

    They may change before investigations are created; the receipts of the episodes decide (`receipts.issue_for_alert`).
    """
    statement, values = former_investigations(
        [(fingerprint, naming.milliseconds(starts_at)) for fingerprint, starts_at in alerts],
        namespace=namespace,
        rule=rule,
    )
    return verdicts(await database.run(statement, **values), count=len(alerts), rule=rule)


_COUNT = text(f"""
  WITH repeats AS (
    SELECT * FROM unnest(CAST(:ids AS uuid[]), CAST(:fingerprints AS text[])) AS repeats (investigation, fingerprint)
  ), held AS (
    SELECT investigation, (SELECT count(*) FROM repeats WHERE repeats.investigation = work.investigation) AS number
    FROM work WHERE investigation = ANY(CAST(:ids AS uuid[])) ORDER BY investigation FOR NO KEY UPDATE
  ), counted AS (
    UPDATE investigations SET duplicates = duplicates + number, alert_status = 'firing'
    FROM held WHERE id = held.investigation
    RETURNING id, {visibility.VISIBLE} AS is_readable
  ), fires AS (
    UPDATE identities SET status = 'firing'
    FROM counted JOIN repeats ON repeats.investigation = id
    WHERE identities.investigation = id AND identities.fingerprint = repeats.fingerprint AND status <> 'firing'
  )
  UPDATE work SET revision = revision + 1, stale = true FROM counted WHERE investigation = id AND is_readable
""")  # noqa: S608 - our own text


async def count_repeats(database: databases.Database, *repeats: tuple[UUID, str]) -> None:
    """Count firing alerts, given by their fingerprints, on the investigations that they repeat, in one statement.

    The caller sends the hints that statuses have changed.
    """
    if repeats:
        ids, fingerprints = map(list, zip(*repeats, strict=True))
        await database.run(_COUNT, ids=ids, fingerprints=fingerprints)


_LATEST = """(namespace, fingerprint, starts_ms) = (
      SELECT namespace, fingerprint, starts_ms FROM identities
      WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms <= :starts_ms
      ORDER BY starts_ms DESC LIMIT 1
    )"""
_OF_ALERT = "namespace = :namespace AND fingerprint = :fingerprint AND starts_ms <= :starts_ms"
_UNRESOLVED = f"""{_OF_ALERT} AND status <> 'resolved'
      AND identities.investigation = (SELECT id FROM retries WHERE depth = 0)"""  # noqa: S608 - our own texts
# A statement that has waited for the lock sees the rows of other tables as they were before. What the holder of the
# lock has changed is known by `revision`, and an alert that it has moved is not among the updated ones.
_RESOLVE = text(f"""{_STANDING.format(identity=_LATEST, stands=_STANDS)}, seen AS (
    SELECT revision, joined, (SELECT count(*) FROM identities WHERE {_UNRESOLVED}) AS alerts
    FROM work WHERE investigation = (SELECT id FROM own)
  ), held AS (
    SELECT investigation, revision, joined FROM work WHERE investigation = (SELECT id FROM own) FOR NO KEY UPDATE
  ), ended AS (
    UPDATE identities SET status = 'resolved' FROM held WHERE {_UNRESOLVED}
    RETURNING 1 AS updated
  ), resolved AS (
    UPDATE investigations
    SET alert_status = CASE WHEN may_fire THEN alert_status ELSE 'resolved' END
    FROM held, (
      SELECT (seen.revision, seen.joined) <> (held.revision, held.joined) OR EXISTS (
        SELECT FROM identities
        WHERE investigation = (SELECT id FROM retries WHERE depth = 0) AND status = 'firing' AND NOT ({_OF_ALERT})
      ) AS may_fire
      FROM seen, held
    ) AS others
    WHERE id = held.investigation
    RETURNING id, name, on_resolved, may_fire, (SELECT retries.id FROM retries WHERE depth = 0) AS original,
      {visibility.VISIBLE} AS is_readable
  ), shown AS (
    UPDATE work SET revision = revision + 1, stale = true FROM resolved WHERE investigation = id AND is_readable
  )
  SELECT resolved.*, alerts <> (SELECT count(*) FROM ended) AS has_moved FROM resolved, seen
""")  # noqa: S608 - our own text
_PRESENT = text(f"""{_STANDING.format(identity=_LATEST, stands=_STANDS)}
  SELECT id, EXISTS (
    SELECT FROM identities WHERE investigation = (SELECT id FROM retries WHERE depth = 0) AND status = 'firing'
  ) AS fires
  FROM own
""")  # noqa: S608 - our own text

_HOLD = text("SELECT FROM work WHERE investigation = :id FOR NO KEY UPDATE")
_ALL_RESOLVED = text(f"""
  WITH resolved AS (
    UPDATE investigations SET alert_status = 'resolved'
    WHERE id = :id AND NOT EXISTS (
      SELECT FROM identities WHERE identities.investigation = :original AND status = 'firing'
    )
    RETURNING id, on_resolved, {visibility.VISIBLE} AS is_readable
  ), shown AS (
    UPDATE work SET revision = revision + 1, stale = true FROM resolved WHERE investigation = id AND is_readable
  )
  SELECT on_resolved FROM resolved
""")  # noqa: S608 - our own text


async def resolve(
    database: databases.Database, *, namespace: str, fingerprint: str, starts_at: datetime
) -> Reference | None:
    """Record that an episode is resolved, and return its investigation, or None if it has none.

    This is the episode's own investigation, or else the latest one that began before it, on which its alerts were
    counted. It is never a later one, because a resolved alert may arrive after the next episode has begun. If its chain
    has `onResolved: Cancel`, the investigation is cancelled once all its alerts are resolved. The caller sends the hint
    that the status has changed.
    """
    episode = {"namespace": namespace, "fingerprint": fingerprint, "starts_ms": naming.milliseconds(starts_at)}
    while rows := await database.run(_RESOLVE, **episode):
        (row,) = rows
        if row.may_fire:
            present = await database.run(_PRESENT, **episode)
            if row.has_moved or [its.id for its in present] != [row.id]:
                continue  # another investigation has taken the alert meanwhile
            if not present[0].fires:
                await end_alert(database, row.id, original=row.original)
        elif row.has_moved:
            continue
        elif row.on_resolved == "Cancel":
            await work.cancel(database, row.id, why="resolved")
        return Reference(id=row.id, name=row.name)
    return None


async def end_alert(database: databases.Database, investigation: UUID, *, original: UUID) -> None:
    """Record that all alerts of an investigation are resolved, if they are, and do what its chain says to that.

    `original` is the investigation that has the alerts: itself, or the one that it retries.
    """
    async with database.begin() as connection:
        await connection.execute(_HOLD, {"id": investigation})
        values = {"id": investigation, "original": original}
        on_resolved = await connection.scalar(_ALL_RESOLVED, values)
    if on_resolved == "Cancel":
        await work.cancel(database, investigation, why="resolved")

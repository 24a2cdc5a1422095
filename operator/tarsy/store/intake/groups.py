"""Groups of alerts: alerts that join the investigation of another one, without an object of their own.

The receipt of a group (`receipts`) is its row, unique by the namespace and the group's key, which begins with the chain
and the sender (`ingest.grouping`). It is taken before the object is created. So of two processes that find the same
new group, one creates the object and the other finds it; and a process that finds the row without its object creates
that, whether the other one is slow or dead.

An alert joins

- while the investigation is open;
- after a result, within the chain's window, if its agents were told of an alert of the same type that is not less
  severe; in a group of a notification, whose alerts may have different subjects, of the same subject, too;
- after a failure, until the cool-down is over: then the group comes again as one.

Else it begins the group's next investigation, whose agents read the result of the former one. After a failure the
alerts that still fire go with it (`take_firing`). An alert that joins changes neither tools nor limits of the
investigation. All alerts of a notification join a group in one statement, under the
lock of the row of `work`, under which the investigation also ends: none joins one that has just ended.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.config.model import budgets
from tarsy.store.base import cooldowns, databases, notify, visibility
from tarsy.store.intake import episodes, receipts
from tarsy.transcript import admission

WORDS_MAX = 256 * 1024
"""Bytes of the words of an investigation, as stored, above which no alert that joins adds to them."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """An alert that has joined a group."""

    investigation: episodes.Reference
    outcome: Literal["joined", "repeated"]
    """`repeated` if it had joined before."""


def _rank(severity: str) -> str:
    """Return the position of a severity, the highest first; one that is not in the order comes after all."""
    known = f"array_position(CAST(:order AS text[]), lower({severity}))"
    return f"coalesce({known}, cardinality(CAST(:order AS text[])) + 1)"


_FAILED = "(known.ending IN ('Failed', 'TimedOut') OR coalesce(first.grounds, '') = 'ServersAway')"
_JOIN = text(f"""
  WITH of_group AS (
    SELECT investigation AS id FROM receipts
    WHERE namespace = :namespace AND fingerprint = :group AND starts_ms = 0 AND investigation IS NOT NULL
  ), held AS (
    SELECT work.investigation AS id, run = 0 AND state <> 'ended' AS is_open, joined,
      run = 0 AND state IN ('queued', 'parked') AS is_waiting,
      run = 0 AND state = 'parked' AS is_parked, coalesce(wait_reason, '') = '{budgets.SPENT}' AS waits_for_budget
    FROM work JOIN of_group ON id = work.investigation
    WHERE cancel IS NULL OR run > 0
    FOR NO KEY UPDATE OF work
  ), target AS (
    SELECT known.id, known.name, known.alert_type, is_open, is_waiting, is_parked, waits_for_budget, joined,
      {_FAILED} AS failed,
      {_rank("known.severity")} AS rank,
      {visibility.VISIBLE} AS is_readable,
      NOT is_open AND known.ended_at IS NULL AS is_outdated,
      is_open OR (known.purged_at IS NULL AND known.ending <> 'Cancelled' AND known.ended_at > clock_timestamp() -
        CASE WHEN {_FAILED} THEN CAST(:cooldown AS interval) ELSE CAST(:window AS interval) END) AS is_joinable
    FROM held JOIN investigations AS known ON known.id = held.id
    LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
  ), fitting AS (
    SELECT added.*, target.id, target.name, target.is_readable, joined, is_waiting, is_parked, waits_for_budget,
      target.rank - {_rank("added.severity")} AS levels
    FROM target, unnest(CAST(:positions AS integer[]), CAST(:fingerprints AS text[]), CAST(:starts AS bigint[]),
      CAST(:types AS text[]), CAST(:severities AS text[]), CAST(:labels AS text[]), CAST(:words AS text[]),
      CAST(:jsons AS text[]))
      AS added (position, fingerprint, starts_ms, alert_type, severity, labels, words, alert_json)
    WHERE is_joinable AND (is_open OR failed OR EXISTS (
      SELECT FROM identities AS told
      WHERE told.investigation = target.id AND told.alert_type = added.alert_type
        AND (told.severity = added.severity OR added.severity = '' OR
          array_position(CAST(:order AS text[]), lower(told.severity))
            <= array_position(CAST(:order AS text[]), lower(added.severity)))
        AND (NOT :by_subject OR CAST(told.labels AS jsonb) - 'alertname' = CAST(added.labels AS jsonb) - 'alertname')
        AND (told.joined_number IS NULL OR told.joined_number <= (
          SELECT max(CAST(body ->> 'number' AS bigint)) FROM entries
          JOIN executions ON executions.investigation = target.id AND executions.id = execution
          WHERE entries.investigation = target.id AND entries.kind = 'AlertJoined' AND executions.kind = 'agent'
        ))
    ))
  ), inserted AS (
    INSERT INTO identities AS its (investigation, namespace, fingerprint, starts_ms, alert_type, severity, labels,
      joined_at, joined_number, alert_json, group_digest)
    SELECT DISTINCT ON (fingerprint, starts_ms) id, :namespace, fingerprint, starts_ms, alert_type, severity,
      CAST(labels AS json), clock_timestamp(), joined + 1 + position, alert_json,
      CAST(:group_digest AS text)
    FROM fitting ORDER BY fingerprint, starts_ms, position
    ON CONFLICT (namespace, fingerprint, starts_ms) DO UPDATE
    SET investigation = excluded.investigation, first_seen = now(), alert_type = excluded.alert_type,
      severity = excluded.severity, labels = excluded.labels, status = 'firing', joined_at = excluded.joined_at,
      joined_number = excluded.joined_number, alert_json = excluded.alert_json,
      group_digest = excluded.group_digest
    WHERE its.investigation <> excluded.investigation
    RETURNING fingerprint, starts_ms
  ), described AS (
    UPDATE investigations AS known
    SET alert_status = 'firing',
      duplicates = duplicates + (SELECT count(*) FROM fitting) - (SELECT count(*) FROM inserted),
      words = CASE WHEN coalesce(pg_column_size(known.words), 0) > {WORDS_MAX} THEN known.words
        ELSE known.words || tarsy_words((SELECT string_agg(fitting.words, ' ') FROM fitting)) END
    WHERE known.id IN (SELECT id FROM fitting)
  ), shown AS (
    UPDATE work SET joined = work.joined + :count, revision = revision + CAST(is_readable AS integer),
      stale = stale OR is_readable,
      priority = CASE WHEN is_waiting THEN greatest(priority, levels) ELSE priority END,
      wake_at = CASE WHEN is_parked AND (NOT waits_for_budget OR levels > 0) THEN clock_timestamp() ELSE wake_at END
    FROM (
      SELECT id, is_readable, is_waiting, is_parked, waits_for_budget, max(levels) AS levels FROM fitting
      GROUP BY 1, 2, 3, 4, 5
    ) AS changed WHERE investigation = id
  )
  SELECT of_group.id, position, fitting.name, inserted.fingerprint IS NOT NULL AS is_new,
    coalesce(target.is_outdated, false) AS is_outdated
  FROM of_group LEFT JOIN target USING (id) LEFT JOIN fitting USING (id)
    LEFT JOIN inserted USING (fingerprint, starts_ms)
""")  # noqa: S608 - our own texts, and a number of ours


async def join(
    database: databases.Database,
    members: Sequence[admission.Member],
    *,
    namespace: str,
    group: str,
    window: timedelta,
    by_subject: bool,
    severities: Sequence[str],
    rule: episodes.Rule,
    group_digest: str | None = None,
) -> tuple[UUID | None, dict[int, Joined]]:
    """Let alerts join the investigation of a group; return it, and those that did, by their positions in `members`.

    `window` is the chain's. `by_subject`: the alerts of the group may have different subjects. `severities` has the
    highest first; one that is not among them is lower than these. If an alert is more severe than the one for which
    the investigation was made, and this waits for a worker, it gets a priority of at least the levels between the two.
    A parked run is woken. If it waits for a budget, only a more severe alert wakes it, as that may open the budget's
    reserve; of others it is told once the budget renews.
    `group_digest` is the notification's (`ingest.grouping.digest`).

    The others begin the group's next investigation (`issue`).
    """
    join_all = functools.partial(
        database.run,
        _JOIN,
        namespace=namespace,
        group=group,
        group_digest=group_digest,
        window=window,
        by_subject=by_subject,
        order=[severity.lower() for severity in severities],
        cooldown=max(rule.cooldown, cooldowns.MIN),
        positions=list(range(len(members))),
        count=len(members),
        fingerprints=[member.fingerprint for member in members],
        starts=[member.starts_ms for member in members],
        types=[member.alert_type for member in members],
        severities=[member.severity for member in members],
        labels=[json.dumps(dict(member.labels)) for member in members],
        words=[member.words for member in members],
        jsons=[member.alert_json for member in members],
    )
    rows = await join_all()
    if rows and rows[0].is_outdated:  # it waited for the lock while the investigation ended, and saw half of that
        rows = await join_all()
    joined = {
        row.position: Joined(
            investigation=episodes.Reference(id=row.id, name=row.name), outcome="joined" if row.is_new else "repeated"
        )
        for row in rows
        if row.position is not None
    }
    if joined:
        await notify.send(database, (notify.STATUS, str(rows[0].id)))
    return rows[0].id if rows else None, joined


_LATEST = text(f"""
  WITH RECURSIVE latest AS (
    SELECT known.id, known.name, known.previous, known.admitted_at, known.ended_at, known.purged_at,
      known.ended_at IS NOT NULL AND {_FAILED} AS failed, 0 AS generations
    FROM investigations AS known LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
    WHERE known.id = :investigation
    UNION ALL
    SELECT known.id, known.name, known.previous, known.admitted_at, known.ended_at, known.purged_at,
      known.ended_at IS NOT NULL AND {_FAILED}, latest.generations + 1
    FROM latest JOIN investigations AS known ON known.id = latest.previous
    LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
    WHERE latest.generations < {episodes.DAILY_MAX}
  )
  SELECT *, clock_timestamp() AS now FROM latest ORDER BY generations
""")  # noqa: S608 - our own texts, and a number of ours


async def issue(
    database: databases.Database,
    *,
    namespace: str,
    group: str,
    name: str,
    digest: str,
    rule: episodes.Rule,
    address: str,
    seen: UUID | None,
) -> receipts.Receipt | episodes.Repeat | None:
    """Return the receipt of a group's next investigation, for an object called `name` with the spec's `digest`.

    `seen` is the group's investigation that no alert of the caller could join; None if there was none. Return None if
    another process has begun a newer one: the alerts may join that. Return a Repeat if the investigations of the group
    came to nothing, and `rule` allows no other one yet.
    """
    values: dict[str, Any] = receipts.values(namespace, group, 0, name=name, digest=digest, address=address)
    receipt = await receipts.take(database, values, rule=rule)
    if receipt.investigation is None:
        return receipt
    if receipt.investigation != seen:
        return None
    rows = await database.run(_LATEST, investigation=seen)
    began = [row.admitted_at for row in rows if row.failed]
    former = [row for row in rows if row.generations == 0]
    previous = former[0].id if former else None
    if former and (former[0].failed or former[0].purged_at):
        last = former[0]
        in_a_row = list(itertools.takewhile(lambda row: row.failed or row.purged_at, rows[1:]))
        verdict = episodes.decide(
            own=None,
            newest=episodes.Former(
                reference=episodes.Reference(id=last.id, name=last.name),
                admitted_at=last.admitted_at,
                ended_at=last.ended_at,
                purged_at=last.purged_at,
                failed=last.failed,
                gone=False,
                deleted=False,
                predecessors=min(2, len(in_a_row)),
            ),
            begun=[at for at in began if at > last.now - cooldowns.DAY],
            now=last.now,
            rule=rule,
        )
        if isinstance(verdict, episodes.Repeat):
            return verdict
        previous = verdict.previous.id if verdict.previous else None
    return await receipts.renew_held(database, values, former=receipt.investigation, previous=previous)


_TAKE_FIRING = text(f"""
  WITH pair AS (
    SELECT fresh.id, known.id AS former, known.words
    FROM investigations AS fresh JOIN investigations AS known ON known.id = fresh.previous
    LEFT JOIN runs AS first ON first.investigation = known.id AND first.number = 0
    WHERE fresh.id = :investigation AND known.ended_at IS NOT NULL AND {_FAILED}
  ), held AS (
    SELECT investigation, joined FROM work
    WHERE investigation IN (SELECT id FROM pair UNION SELECT former FROM pair)
    ORDER BY investigation FOR NO KEY UPDATE
  ), firing AS (
    SELECT identities.ctid AS place, pair.id, pair.former, held.joined
      + row_number() OVER (ORDER BY joined_number NULLS FIRST, fingerprint, starts_ms) AS number
    FROM pair JOIN held ON held.investigation = pair.id
    JOIN identities ON identities.investigation = pair.former AND status = 'firing'
  ), moved AS (
    UPDATE identities SET investigation = firing.id, joined_at = clock_timestamp(), joined_number = firing.number
    FROM firing
    WHERE identities.ctid = firing.place AND identities.investigation = firing.former AND status = 'firing'
    RETURNING firing.id
  ), described AS (
    UPDATE investigations AS fresh
    SET words = CASE WHEN coalesce(pg_column_size(fresh.words), 0) > {WORDS_MAX} THEN fresh.words
      ELSE fresh.words || coalesce(pair.words, '') END
    FROM pair WHERE fresh.id = pair.id AND EXISTS (SELECT FROM moved)
  )
  UPDATE work
  SET joined = work.joined + CASE WHEN work.investigation = pair.id THEN (SELECT count(*) FROM firing) ELSE 0 END,
    revision = revision + 1, stale = true
  FROM pair
  WHERE work.investigation IN (pair.id, pair.former) AND EXISTS (SELECT FROM moved)
""")  # noqa: S608 - our own texts, and a number of ours


async def take_firing(database: databases.Database, investigation: UUID) -> None:
    """Let the alerts that still fire join the investigation from the one that it follows, if that failed."""
    await database.run(_TAKE_FIRING, investigation=investigation)
    await notify.send(database, (notify.STATUS, str(investigation)))

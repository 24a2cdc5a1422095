"""Alerts that no chain takes: their numbers by namespace and type in the last day, and the latest notice of them.

All replicas count together. The caller masks the types. The first types of a day in a namespace are counted by name,
all others together, so that a sender that invents types cannot fill the table. Counts are by the hour, so the last day
has 24 to 25 hours.

Builds before `unserved_alerts` count in the table `unserved`, without the namespace; those counts are read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from tarsy.store.base import databases

TYPES_MAX = 100
"""Types of a namespace that are counted by name in a day."""
TYPE_MAX = 253
"""Characters of a type that are stored; no chain can name a longer one."""
OTHERS = ""
"""The type under which all types beyond `TYPES_MAX` are counted."""
UNTYPED = "(no type)"
"""The type under which alerts that name no type are counted."""
REMEDY = "name the type in alertTypes of a chain, or set ingest.default_alert_type"
DAY = timedelta(days=1)
_NOTICE = "unserved"


@dataclass(frozen=True, kw_only=True)
class Unserved:
    """A type of alerts that no chain has taken in a namespace."""

    namespace: str
    """The namespace that they were sent to; "" if an earlier build counted them."""
    alert_type: str
    """The masked type, or `OTHERS`."""
    alerts: int
    """The number in the last day, repeats included."""
    since: datetime
    """The hour in which the first of them arrived."""
    last_at: datetime


_LOCK = text("SELECT pg_advisory_xact_lock(:key)")
_LOCK_KEY = 0x7461727379756E
"""The text "tarsyun". Without the lock, two processes that count at once would exceed TYPES_MAX."""

_COUNT = text("""
  WITH given AS (
    SELECT alert_type, alerts FROM json_to_recordset(CAST(:given AS json)) AS given (alert_type text, alerts bigint)
  ),
  known AS (
    SELECT DISTINCT alert_type FROM unserved_alerts
    WHERE namespace = :namespace AND hour > clock_timestamp() - CAST(:day AS interval)
  ),
  more AS (
    SELECT alert_type, row_number() OVER (ORDER BY alerts DESC, alert_type) AS place FROM given
    WHERE alert_type NOT IN (SELECT alert_type FROM known)
  ),
  named AS (
    SELECT alert_type FROM known
    UNION ALL
    SELECT alert_type FROM more
    WHERE place <= :most - (SELECT count(*) FROM known WHERE alert_type <> :others)
  )
  INSERT INTO unserved_alerts AS held (namespace, alert_type, hour, alerts, last_at)
  SELECT :namespace, kept, date_trunc('hour', clock_timestamp(), 'UTC'), sum(alerts), clock_timestamp()
  FROM (
    SELECT CASE WHEN alert_type IN (SELECT alert_type FROM named) THEN alert_type ELSE :others END AS kept, alerts
    FROM given
  ) AS counted
  GROUP BY kept
  ON CONFLICT (namespace, alert_type, hour) DO UPDATE
  SET alerts = held.alerts + excluded.alerts, last_at = excluded.last_at
""")


async def count(database: databases.Database, alerts: Mapping[str, int], *, namespace: str) -> None:
    """Add the numbers of `alerts` by type that were sent to a namespace.

    Each type is masked and at most `TYPE_MAX` characters long. The caller counts types beyond the most frequent
    `TYPES_MAX` under `OTHERS`, so that the statement stays small.
    """
    counts = json.dumps([{"alert_type": alert_type, "alerts": count} for alert_type, count in alerts.items()])
    async with database.begin() as connection:
        await connection.execute(_LOCK, {"key": _LOCK_KEY})
        values = {"namespace": namespace, "given": counts, "day": DAY, "most": TYPES_MAX, "others": OTHERS}
        await connection.execute(_COUNT, values)


_COUNTED = """(
    SELECT namespace, alert_type, hour, alerts, last_at FROM unserved_alerts
    UNION ALL
    SELECT '', alert_type, hour, alerts, last_at FROM unserved
  ) AS counted"""
_READ = text(f"""
  SELECT namespace, alert_type, CAST(sum(alerts) AS bigint) AS alerts, min(hour) AS since, max(last_at) AS last_at
  FROM {_COUNTED}
  WHERE hour > clock_timestamp() - CAST(:day AS interval)
  GROUP BY namespace, alert_type ORDER BY alert_type = :others, sum(alerts) DESC, namespace, alert_type
""")  # noqa: S608 - our own texts


async def read(database: databases.Database) -> list[Unserved]:
    """Return the types of the last day, the most frequent first, `OTHERS` last."""
    return [Unserved(**row) for row in await database.run(_READ, day=DAY, others=OTHERS)]


_READ_COUNTS = text(f"""
  SELECT namespace, CAST(sum(alerts) AS bigint) AS alerts FROM {_COUNTED}
  WHERE hour > clock_timestamp() - CAST(:day AS interval) GROUP BY namespace
""")  # noqa: S608 - our own texts


async def read_counts(database: databases.Database) -> dict[str, int]:
    """Return the numbers of the last day by namespace; "" for those that an earlier build counted."""
    return {row.namespace: row.alerts for row in await database.run(_READ_COUNTS, day=DAY)}


_DROP = text("""
  WITH earlier AS (DELETE FROM unserved WHERE hour < clock_timestamp() - CAST(:kept AS interval))
  DELETE FROM unserved_alerts WHERE hour < clock_timestamp() - CAST(:kept AS interval)
""")


async def drop_old(database: databases.Database) -> None:
    """Delete the counts that `read` no longer returns."""
    await database.run(_DROP, kept=2 * DAY)


_CLAIM_NOTICE = text(f"""
  INSERT INTO notices AS told (name, told_at)
  SELECT :notice, clock_timestamp() WHERE EXISTS (
    SELECT 1 FROM {_COUNTED}
    WHERE last_at > coalesce((SELECT told_at FROM notices WHERE name = :notice), '-infinity')
  )
  ON CONFLICT (name) DO UPDATE SET told_at = excluded.told_at
  WHERE told.told_at <= excluded.told_at - CAST(:every AS interval)
  RETURNING told.told_at
""")  # noqa: S608 - our own texts


async def claim_notice(database: databases.Database, *, every: timedelta) -> datetime | None:
    """Claim the next notice for this process, and return its time.

    None if there are no new alerts, or if a process claimed a notice within `every`. A process that cannot post the
    notice releases it (`release_notice`).
    """
    rows = await database.run(_CLAIM_NOTICE, notice=_NOTICE, every=every)
    return rows[0].told_at if rows else None


_RELEASE_NOTICE = text("DELETE FROM notices WHERE name = :notice")


async def release_notice(database: databases.Database) -> None:
    """Let the next process that asks claim the notice."""
    await database.run(_RELEASE_NOTICE, notice=_NOTICE)

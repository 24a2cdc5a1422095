"""Alerts that no chain takes: how many of which type in the last day, of all replicas, and when people were told.

The caller masks the types. A sender that makes up types fills no table: the first of a day are counted by name, all
others together. Counts are kept by the hour, so that the last day is 24 to 25 hours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from tarsy.store.base import databases

TYPES_MAX = 100
"""Types that are counted by name in a day."""
TYPE_MAX = 253
"""Characters of a type that are kept; no chain can name a longer one."""
OTHERS = ""
"""Stands for all types beyond `TYPES_MAX`."""
UNTYPED = "(no type)"
"""Stands for alerts that name no type."""
REMEDY = "name the type in alertTypes of a chain, or set ingest.default_alert_type"
DAY = timedelta(days=1)
_NOTICE = "unserved"


@dataclass(frozen=True, kw_only=True)
class Unserved:
    """A type of alerts that no chain has taken."""

    alert_type: str
    """Masked; `OTHERS` for those that are not counted by name."""
    alerts: int
    """How many came in the last day, repeats counted."""
    since: datetime
    """The hour in which the first of them came."""
    last_at: datetime


_TURN = text("SELECT pg_advisory_xact_lock(:key)")
_TURN_KEY = 0x7461727379756E  # "tarsyun": who counts side by side would each find room for other types

_COUNT = text("""
  WITH given AS (
    SELECT alert_type, alerts FROM json_to_recordset(CAST(:given AS json)) AS given (alert_type text, alerts bigint)
  ),
  known AS (SELECT DISTINCT alert_type FROM unserved WHERE hour > clock_timestamp() - CAST(:day AS interval)),
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
  INSERT INTO unserved AS held (alert_type, hour, alerts, last_at)
  SELECT kept, date_trunc('hour', clock_timestamp(), 'UTC'), sum(alerts), clock_timestamp()
  FROM (
    SELECT CASE WHEN alert_type IN (SELECT alert_type FROM named) THEN alert_type ELSE :others END AS kept, alerts
    FROM given
  ) AS counted
  GROUP BY kept
  ON CONFLICT (alert_type, hour) DO UPDATE
  SET alerts = held.alerts + excluded.alerts, last_at = excluded.last_at
""")


async def count(database: databases.Database, alerts: Mapping[str, int]) -> None:
    """Count alerts that no chain has taken, by type: masked, and up to `TYPE_MAX` characters.

    Types beyond the most frequent `TYPES_MAX` belong under `OTHERS`, so that the statement stays small.
    """
    counts = json.dumps([{"alert_type": name, "alerts": many} for name, many in alerts.items()])
    async with database.begin() as connection:
        await connection.execute(_TURN, {"key": _TURN_KEY})
        await connection.execute(_COUNT, {"given": counts, "day": DAY, "most": TYPES_MAX, "others": OTHERS})


_READ = text("""
  SELECT alert_type, CAST(sum(alerts) AS bigint) AS alerts, min(hour) AS since, max(last_at) AS last_at FROM unserved
  WHERE hour > clock_timestamp() - CAST(:day AS interval)
  GROUP BY alert_type ORDER BY alert_type = :others, sum(alerts) DESC, alert_type
""")


async def read(database: databases.Database) -> list[Unserved]:
    """Return the types of the last day, the most frequent first, `OTHERS` last."""
    return [
        Unserved(alert_type=row.alert_type, alerts=row.alerts, since=row.since, last_at=row.last_at)
        for row in await database.run(_READ, day=DAY, others=OTHERS)
    ]


_DROP = text("DELETE FROM unserved WHERE hour < clock_timestamp() - CAST(:kept AS interval)")


async def drop_old(database: databases.Database) -> None:
    """Forget what is no longer shown."""
    await database.run(_DROP, kept=2 * DAY)


_TELL = text("""
  INSERT INTO notices AS told (name, told_at)
  SELECT :notice, clock_timestamp() WHERE EXISTS (
    SELECT 1 FROM unserved
    WHERE last_at > coalesce((SELECT told_at FROM notices WHERE name = :notice), '-infinity')
  )
  ON CONFLICT (name) DO UPDATE SET told_at = excluded.told_at
  WHERE told.told_at <= excluded.told_at - CAST(:every AS interval)
  RETURNING told.told_at
""")


async def take_notice(database: databases.Database, *, every: timedelta) -> datetime | None:
    """Take it on to tell people, and return the time; None where nothing is new, or was told within `every`.

    Of several processes one gets it. One that then cannot tell gives it back (`give_back`).
    """
    rows = await database.run(_TELL, notice=_NOTICE, every=every)
    return rows[0].told_at if rows else None


_GIVE_BACK = text("DELETE FROM notices WHERE name = :notice")


async def give_back(database: databases.Database) -> None:
    """Have it told by the next that asks."""
    await database.run(_GIVE_BACK, notice=_NOTICE)

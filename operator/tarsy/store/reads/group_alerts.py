"""The alerts of an investigation that others have joined: their number, their types, and the newest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.transcript import ports

WALKED = 500
"""Alerts that `walk` yields at once."""
NAMED_MAX = 20
"""Alerts that `joined` returns one by one."""


@dataclass(frozen=True, kw_only=True)
class TypeCount:
    """The number of alerts of a type."""

    alert_type: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert, masked."""

    alert_type: str
    severity: str
    fingerprint: str
    status: Literal["firing", "resolved"]
    starts_at: datetime
    labels: Mapping[str, str]
    """Those that identify it."""


@dataclass(frozen=True, kw_only=True)
class Alerts:
    """The alerts of an investigation."""

    total: int
    firing: int
    types: tuple[TypeCount, ...]
    """The most frequent types."""
    newest: tuple[Alert, ...]
    """The newest alerts, the newest first."""


_OF_KNOWN = "FROM identities WHERE identities.investigation = known.id"
SELECT_ALERTS = f"""
    CAST((
      SELECT json_build_object('total', count(*), 'firing', count(*) FILTER (WHERE status = 'firing'),
        'types', (
          SELECT json_agg(json_build_object('alert_type', alert_type, 'count', number))
          FROM (SELECT alert_type, count(*) AS number {_OF_KNOWN} GROUP BY 1
            ORDER BY 2 DESC, 1 LIMIT {investigations.ALERT_TYPES_MAX}) AS counted),
        'newest', (
          SELECT json_agg(json_build_object('alert_type', alert_type, 'severity', severity,
            'fingerprint', fingerprint, 'status', status, 'starts_at', to_timestamp(starts_ms / 1000.0),
            'labels', coalesce(labels, '{{}}')))
          FROM (SELECT * {_OF_KNOWN}
            ORDER BY joined_at DESC NULLS LAST, fingerprint LIMIT {investigations.ALERTS_MAX}) AS newest))
      {_OF_KNOWN} HAVING count(*) > 1
    ) AS text) AS alerts"""  # noqa: S608 - our own texts
"""The column of `from_row`; `known` is the row of the investigation. It is null if there is one alert only."""

SELECT_ALERT_COUNT = f"""
    CASE WHEN work.joined > 0 THEN (SELECT count(*) {_OF_KNOWN} HAVING count(*) > 1) END AS alert_count"""
"""The number of alerts for lists, which count those of groups alone; `work` is the row of the investigation `known`."""


def from_row(facts: Mapping[str, Any]) -> Alerts | None:
    """Return the alerts; None if no alert has joined."""
    if facts["alerts"] is None:
        return None
    counts = json.loads(facts["alerts"])
    return Alerts(
        total=counts["total"],
        firing=counts["firing"],
        types=tuple(TypeCount(**counted) for counted in counts["types"]),
        newest=tuple(
            Alert(**alert | {"starts_at": datetime.fromisoformat(alert["starts_at"])}) for alert in counts["newest"]
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Listed(Alert):
    """One alert of a list."""

    number: int
    """Rises with each alert that joins; 0 for the alert that the investigation was made for."""


_PAGE = text("""
  SELECT coalesce(joined_number, 0) AS number, alert_type, severity, fingerprint, status,
    to_timestamp(starts_ms / 1000.0) AS starts_at, CAST(coalesce(labels, '{}') AS text) AS labels
  FROM identities
  WHERE identities.investigation = :id AND coalesce(joined_number, 0) > :after
  ORDER BY 1, fingerprint, starts_ms LIMIT :limit
""")


async def page(
    database: databases.Database, investigation: UUID, *, after: int, limit: int
) -> tuple[list[Listed], bool]:
    """Return the alerts with a number above `after`, in their order, `limit` at most, and whether there are more."""
    rows = await database.run(_PAGE, id=investigation, after=after, limit=limit + 1)
    alerts = [Listed(**dict(row) | {"labels": json.loads(row.labels)}) for row in rows]
    return alerts[:limit], len(alerts) > limit


async def walk(database: databases.Database, investigation: UUID) -> AsyncIterator[list[Listed]]:
    """Yield all alerts of an investigation in pages, in their order."""
    after, more = -1, True
    while more:
        alerts, more = await page(database, investigation, after=after, limit=WALKED)
        if alerts:
            after = alerts[-1].number
            yield alerts


_JOINED = text("""
  WITH told AS (
    SELECT joined_number, alert_type, severity, labels FROM identities
    WHERE investigation = :id AND joined_number > :after
  )
  SELECT (SELECT max(joined_number) FROM told) AS number, (SELECT count(*) FROM told) AS total,
    CAST((SELECT json_object_agg(alert_type, its) FROM (
      SELECT alert_type, count(*) AS its FROM told GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT :types
    ) AS counted) AS text) AS types,
    CAST((SELECT json_agg(json_build_object('alert_type', alert_type, 'severity', severity,
        'labels', coalesce(labels, '{}')) ORDER BY joined_number) FROM (
      SELECT * FROM told ORDER BY joined_number LIMIT :named
    ) AS first) AS text) AS named
""")


async def joined(database: databases.Database, investigation: UUID, *, after: int) -> ports.JoinedAlerts | None:
    """Return the alerts that have joined the investigation with a number above `after`; None if there are none."""
    (row,) = await database.run(
        _JOINED,
        id=investigation,
        after=after,
        types=investigations.ALERT_TYPES_MAX,
        named=NAMED_MAX,
    )
    if not row.total:
        return None
    named = [ports.JoinedAlert(**alert) for alert in json.loads(row.named)]
    return ports.JoinedAlerts(number=row.number, total=row.total, types=json.loads(row.types), named=named)

"""The feedback of people on investigations: one opinion a person, which `operations.feedback` writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility

Verdict = Literal["correct", "partly", "wrong"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PERSONS_MAX = 50
"""The maximal number of persons whose feedback is read with an investigation; those with the latest changes."""


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """The feedback of a person on an investigation."""

    author: str
    verdict: Verdict
    cause: str
    """The true cause, in the person's words; masked. "" if none was given."""
    note: str
    """Masked; "" if none was given."""
    given_at: datetime
    changed_at: datetime


Counts = Mapping[Verdict, int]
"""The number of persons with each verdict."""

SELECT_COUNTS = """
    CAST((SELECT json_object_agg(verdict, number) FROM (
      SELECT verdict, count(*) AS number FROM feedback WHERE feedback.investigation = known.id GROUP BY verdict
    ) AS given) AS text) AS feedback"""
"""The column of `counts_from_row`; `known` is the row of the investigation."""
SELECT_PERSONS = f"""
    CAST((SELECT json_agg(given) FROM (
      SELECT author, verdict, cause, note, given_at, changed_at FROM feedback
      WHERE feedback.investigation = known.id ORDER BY changed_at DESC, author LIMIT {PERSONS_MAX}
    ) AS given) AS text) AS persons"""  # noqa: S608 - our own text
"""The column of `persons_from_row`."""


def counts_from_row(row: Any) -> Counts:
    """Return the number of persons with each verdict, 0 if there is none."""
    counts = json.loads(row.feedback or "{}")
    return {verdict: counts.get(verdict, 0) for verdict in VERDICTS}


def persons_from_row(row: Any) -> Sequence[Feedback]:
    """Return the feedback of each person, the latest change first."""
    return [
        Feedback(**person | {name: datetime.fromisoformat(person[name]) for name in ("given_at", "changed_at")})
        for person in json.loads(row.persons or "[]")
    ]


@dataclass(frozen=True, kw_only=True)
class Judged(Feedback):
    """The feedback of a person, with the investigation that it is about."""

    investigation: UUID
    namespace: str
    name: str


_JUDGED = text(f"""
  SELECT investigation, namespace, name, feedback.author, verdict, cause, note, given_at, changed_at
  FROM feedback JOIN investigations ON id = investigation
  WHERE verdict = ANY(CAST(:verdicts AS text[])) AND changed_at >= :since AND {visibility.VISIBLE}
  ORDER BY changed_at DESC, investigation, feedback.author LIMIT :limit
""")  # noqa: S608 - our own text


async def judged(
    database: databases.Database, *, verdicts: Collection[Verdict], since: datetime, limit: int
) -> list[Judged]:
    """Return the feedback with one of these verdicts that was given or changed since then, the latest change first.

    Investigations that are deleted or purged are left out. Raises StoreDownError.
    """
    rows = await database.run(_JUDGED, verdicts=list(verdicts), since=since, limit=limit)
    return [Judged(**row) for row in rows]

"""Splits: an alert is taken out of a wrong group, and an investigation of its own begins.

The alert's receipt names the investigation that it is taken out of, so whoever admits the object links the two. The
admission moves the alert's newest episode to its new investigation, and the request that ends it, or its repeat, moves
the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, notify
from tarsy.store.intake import episodes, receipts
from tarsy.transcript import admission


@dataclass(frozen=True, kw_only=True)
class Found:
    """The alert of a group with some fingerprint: its newest episode."""

    began: bool
    """Whether the investigation was made for it."""
    alert: admission.Joined
    external_url: str | None
    """The page of the investigation's sender."""


_FIND = text("""
  SELECT its.fingerprint, its.starts_ms, its.alert_type, its.severity, its.labels, its.alert_json,
    its.status = 'firing' AS is_firing, its.joined_at IS NULL AS began, its.joined_at, known.external_url
  FROM identities AS its JOIN investigations AS known ON known.id = its.investigation
  WHERE known.id = :id AND known.purged_at IS NULL AND its.fingerprint = :fingerprint
  ORDER BY its.joined_at IS NULL DESC, its.starts_ms DESC LIMIT 1
""")
_SPLIT = text("""
  SELECT id, name, admitted_at FROM investigations WHERE split_from = :id AND fingerprint = :fingerprint
  ORDER BY admitted_at DESC LIMIT 1
""")


async def find(
    database: databases.Database, investigation: UUID, fingerprint: str
) -> Found | episodes.Reference | None:
    """Return an alert of an investigation, or the investigation that it has got already; None if there is neither.

    Episodes that the group still has, and that joined before it got that one, belong to a split that is not complete.
    """
    values = {"id": investigation, "fingerprint": fingerprint}
    rows = await database.run(_FIND, **values)
    fields = dict(rows[0]) if rows else {}
    began, external_url, joined_at = (fields.pop(name, None) for name in ("began", "external_url", "joined_at"))
    for split in await database.run(_SPLIT, **values):
        if not rows or (not began and joined_at < split.admitted_at):
            return episodes.Reference(id=split.id, name=split.name)
    if not rows:
        return None
    alert = admission.Joined(**fields | {"labels": fields["labels"] or {}})
    return Found(began=began, alert=alert, external_url=external_url)


_OF_GROUP = text("SELECT id, name FROM investigations WHERE id = :id AND split_from = :split_from")
_TAKE_OUT = text("""
  UPDATE receipts SET split_from = :split_from
  WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms AND word = :word
    AND investigation IS NULL
  RETURNING 1 AS updated
""")


async def issue(
    database: databases.Database, requested: dict[str, Any], *, split_from: UUID, rule: episodes.Rule
) -> receipts.Receipt | episodes.Reference:
    """Return the receipt of the investigation that an alert gets, or the one that another request has begun for it.

    `requested` are the receipt's `values`. Raises StoreDownError if the same request is to be made again.
    """
    taken = await receipts.take(database, requested, rule=rule)
    receipt: receipts.Receipt | None = taken
    if taken.investigation is not None:
        if splits := await database.run(_OF_GROUP, id=taken.investigation, split_from=split_from):
            return episodes.Reference(id=splits[0].id, name=splits[0].name)
        receipt = await receipts.renew_held(database, requested, former=taken.investigation, previous=None)
    if receipt is not None:
        episode = {name: requested[name] for name in ("namespace", "fingerprint", "starts_ms")}
        if await database.run(_TAKE_OUT, **episode, word=receipt.word, split_from=split_from):
            return receipt
    raise databases.StoreDownError("another request begins an investigation of this alert")


_MOVE = text("""
  WITH held AS (
    SELECT investigation FROM work WHERE investigation = :split_from FOR NO KEY UPDATE
  ), moved AS (
    UPDATE identities SET investigation = :id FROM held
    WHERE identities.investigation = held.investigation AND fingerprint = :fingerprint AND joined_at IS NOT NULL
  )
  UPDATE work SET revision = revision + 1, stale = true FROM held WHERE work.investigation = held.investigation
""")


async def complete(database: databases.Database, investigation: UUID, *, split_from: UUID, fingerprint: str) -> None:
    """Take all episodes of the alert out of its former group, whose status then shows the rest. Idempotent.

    If all the others are resolved, that investigation counts as resolved.
    """
    await database.run(_MOVE, id=investigation, split_from=split_from, fingerprint=fingerprint)
    for its in (split_from, investigation):
        await episodes.end_alert(database, its, original=its)
    await notify.send(database, (notify.STATUS, str(split_from)), (notify.STATUS, str(investigation)))

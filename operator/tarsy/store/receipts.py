"""Receipts: how we tell the objects that intake made from those that people made.

Whoever may create an investigation may write any alert's fingerprint into it, and such an object must not stand for
that alert. So before intake creates an object, it stores the alert's episode, the object's name and a random word, and
writes the word into the object. The first object of that name with that word is intake's, whoever admits it: intake, or
the watch where intake died in between. A copy of it that is made later is not.

One episode has one receipt: two notifications of it at once ask for the same object.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import sqlalchemy
from sqlalchemy import text

from tarsy.resources import investigation as investigations
from tarsy.resources import naming
from tarsy.store import database as databases

_LEAST_KEPT = timedelta(hours=1)
"""However short the window: intake, or the watch in its place, has to admit the object first."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What intake has stored of the object that it is about to make."""

    namespace: str
    fingerprint: str
    starts_ms: int
    name: str
    word: str
    investigation: UUID | None
    """The object that had the name and the word first, once that was admitted."""

    def is_of(self, found: investigations.AlertInvestigation) -> bool:
        """Whether `found`, the object of that name, is the one that was made with this receipt."""
        word = found.spec.source and found.spec.source.receipt
        return word == self.word and (self.investigation is None or str(self.investigation) == found.metadata.uid)


_ISSUE = text("""
  INSERT INTO receipts AS known (namespace, fingerprint, starts_ms, name, word)
  VALUES (:namespace, :fingerprint, :starts_ms, :name, :word)
  ON CONFLICT (namespace, fingerprint, starts_ms) DO UPDATE SET (name, word, investigation, created_at) = (
    SELECT CASE WHEN past THEN excluded.name ELSE known.name END, CASE WHEN past THEN excluded.word ELSE known.word END,
      CASE WHEN past THEN NULL ELSE known.investigation END, CASE WHEN past THEN now() ELSE known.created_at END
    FROM (
      SELECT known.created_at <= clock_timestamp() - CAST(:window AS interval) OR EXISTS (
        SELECT 1 FROM investigations JOIN work ON work.investigation = id
        WHERE id = known.investigation AND (gone_at IS NOT NULL OR cancel = 'deleted')
      ) AS past
    ) AS judged
  )
  RETURNING namespace, fingerprint, starts_ms, name, word, investigation
""")
_RENAME = text("""
  UPDATE receipts SET name = CASE WHEN name = :old THEN :new ELSE name END
  WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms
  RETURNING namespace, fingerprint, starts_ms, name, word, investigation
""")


async def issue(
    database: databases.Database, *, namespace: str, fingerprint: str, starts_ms: int, name: str, window: timedelta
) -> Receipt:
    """The receipt of an episode: the one that it has, else a new one for an object called `name`.

    One that is older than `window`, or whose object was deleted, is replaced.
    """
    values = {"namespace": namespace, "fingerprint": fingerprint, "starts_ms": starts_ms, "name": name}
    async with database.single() as connection:
        row = (await connection.execute(_ISSUE, {**values, "word": secrets.token_hex(16), "window": window})).one()
    return _receipt(row)


async def rename(database: databases.Database, receipt: Receipt) -> Receipt:
    """The receipt with another name, because somebody has the old one; of those who ask at once all get the same."""
    values = {
        "namespace": receipt.namespace,
        "fingerprint": receipt.fingerprint,
        "starts_ms": receipt.starts_ms,
        "old": receipt.name,
        "new": naming.suffixed(receipt.name, secrets.token_hex(4)),
    }
    async with database.single() as connection:
        row = (await connection.execute(_RENAME, values)).one_or_none()
    if row is None:
        raise databases.StoreDownError(f"the receipt of {receipt.namespace}/{receipt.name} has expired meanwhile")
    return _receipt(row)


async def drop_expired(database: databases.Database, *, window: timedelta) -> None:
    """Drop the receipts that are older than `window`, and than an hour."""
    async with database.single() as connection:
        await connection.execute(
            text("DELETE FROM receipts WHERE created_at < clock_timestamp() - CAST(:kept AS interval)"),
            {"kept": max(window, _LEAST_KEPT)},
        )


def _receipt(row: sqlalchemy.Row[tuple[object, ...]]) -> Receipt:
    return Receipt(**row._mapping)

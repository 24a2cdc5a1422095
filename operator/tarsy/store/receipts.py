"""Receipts: how we tell the objects that intake made from those that people made.

Whoever may create an investigation may write any alert's fingerprint into it, and such an object must not stand for
that alert. So before intake creates an object, it stores the alert's episode, the object's name and a random word, and
writes the word into the object. The first object of that name with that word is intake's, whoever admits it: intake, or
the watch where intake died in between. A copy of it that is made later is not.

Who may read the object may take the word from it. So until one is admitted, its spec has to be what intake was about to
write as well, of which a digest is stored with the word: an object that was put in its place asks for the same or does
not count.

One episode has one receipt: two notifications of it at once ask for the same object. What they tell of the alert may
differ, so a receipt has the digests of both.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigation as investigations
from tarsy.resources import naming
from tarsy.store import database as databases

DIGESTS_MAX = 16
"""Digests that a receipt has: of what its episode's latest notifications asked for, until an object is admitted."""
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
    digests: tuple[str, ...]
    """Of the specs that it was issued for."""

    def is_of(self, found: investigations.AlertInvestigation) -> bool:
        """Whether `found` is the object that was made with this receipt."""
        word = found.spec.source and found.spec.source.receipt
        if (found.metadata.name, word) != (self.name, self.word):
            return False
        if self.investigation is not None:
            return str(self.investigation) == found.metadata.uid
        return found.digest() in self.digests


_ISSUE = text(f"""
  INSERT INTO receipts AS known (namespace, fingerprint, starts_ms, name, word, address, digests)
  VALUES (:namespace, :fingerprint, :starts_ms, :name, :word, :address, ARRAY[CAST(:digest AS text)])
  ON CONFLICT (namespace, fingerprint, starts_ms) DO UPDATE
  SET (name, word, address, investigation, created_at, digests) = (
    SELECT CASE WHEN past THEN excluded.name ELSE known.name END, CASE WHEN past THEN excluded.word ELSE known.word END,
      CASE WHEN past THEN excluded.address ELSE known.address END,
      CASE WHEN past THEN NULL ELSE known.investigation END, CASE WHEN past THEN now() ELSE known.created_at END,
      CASE WHEN past THEN excluded.digests
        WHEN known.investigation IS NOT NULL OR known.digests @> excluded.digests THEN known.digests
        ELSE (known.digests || excluded.digests)[greatest(1, cardinality(known.digests) - {DIGESTS_MAX} + 2):] END
    FROM (
      SELECT known.created_at <= clock_timestamp() - CAST(:window AS interval) OR EXISTS (
        SELECT 1 FROM investigations JOIN work ON work.investigation = id
        WHERE id = known.investigation AND (gone_at IS NOT NULL OR cancel = 'deleted')
      ) AS past
    ) AS judged
  )
  RETURNING namespace, fingerprint, starts_ms, name, word, investigation, digests
""")  # noqa: S608 - a number of ours
_READ = text("""
  SELECT namespace, fingerprint, starts_ms, name, word, investigation, digests FROM receipts
  WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms
""")
_RENAME = text("""
  UPDATE receipts SET name = CASE WHEN name = :old THEN :new ELSE name END
  WHERE namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms
  RETURNING namespace, fingerprint, starts_ms, name, word, investigation, digests
""")


async def issue(
    database: databases.Database,
    *,
    namespace: str,
    fingerprint: str,
    starts_ms: int,
    name: str,
    digest: str,
    window: timedelta,
    address: str = "",
) -> Receipt:
    """The receipt of an episode: the one that it has, else a new one for an object called `name`.

    `digest` is that of the spec which is to be made with it, `address` where the alert comes from. One that is older
    than `window`, or whose object was deleted, is replaced.
    """
    values = {
        "namespace": namespace,
        "fingerprint": fingerprint,
        "starts_ms": starts_ms,
        "name": name,
        "digest": digest,
        "word": secrets.token_hex(16),
        "window": window,
        "address": address,
    }
    (row,) = await database.run(_ISSUE, **values)
    return _receipt(row)


async def read(database: databases.Database, receipt: Receipt) -> Receipt:
    """The receipt as it is now: others may have renamed it, or been issued it for another spec, or had it admitted."""
    values = {"namespace": receipt.namespace, "fingerprint": receipt.fingerprint, "starts_ms": receipt.starts_ms}
    rows = await database.run(_READ, **values)
    if not rows:
        raise _expired(receipt)
    return _receipt(rows[0])


async def rename(database: databases.Database, receipt: Receipt) -> Receipt:
    """The receipt with another name, because somebody has the old one; of those who ask at once all get the same."""
    values = {
        "namespace": receipt.namespace,
        "fingerprint": receipt.fingerprint,
        "starts_ms": receipt.starts_ms,
        "old": receipt.name,
        "new": naming.suffixed(receipt.name, secrets.token_hex(4)),
    }
    rows = await database.run(_RENAME, **values)
    if not rows:
        raise _expired(receipt)
    return _receipt(rows[0])


_DROP_EXPIRED = text("DELETE FROM receipts WHERE created_at < clock_timestamp() - CAST(:kept AS interval)")


async def drop_expired(database: databases.Database, *, window: timedelta) -> None:
    """Drop the receipts that are older than `window`, and than an hour."""
    await database.run(_DROP_EXPIRED, kept=max(window, _LEAST_KEPT))


def _receipt(row: databases.Row) -> Receipt:
    values = dict(row)
    return Receipt(**values | {"digests": tuple(values["digests"])})


def _expired(receipt: Receipt) -> databases.StoreDownError:
    return databases.StoreDownError(f"the receipt of {receipt.namespace}/{receipt.name} has expired meanwhile")

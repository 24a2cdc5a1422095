"""Receipts: they tell the objects that intake made from those that people made.

Every user with the right to create investigations can write any alert's fingerprint into one, and such an object must
not stand for that alert. So before intake creates an object, it stores the alert's episode, the object's name and a
random word, and writes the word into the object. The first object of that name with that word is intake's, whether
intake admits it, or the watch after intake died in between. A later copy of it is not.

A reader of the object can take the word from it. So until one is admitted, its spec has to be the one that intake was
about to write, too, of which a digest is stored with the word: an object that was put in its place asks for the same or
does not count.

One episode has one receipt: two notifications of it at once ask for the same object. Their details of the alert may
differ, so a receipt has the digests of both.

An episode whose investigation came to nothing may get another one (`episodes`). The receipt's row decides that: the
verdict is given again while the row is locked, and the first of two processes that ask at once gives the row a new word
and a new name. The other one finds an object that is about to be made, or that was made.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import investigations, naming
from tarsy.store.base import databases
from tarsy.store.intake import episodes

DIGESTS_MAX = 16
"""Digests that a receipt has: of what its episode's latest notifications asked for, until an object is admitted."""
_LEAST_KEPT = timedelta(hours=1)
"""However short the window: intake, or the watch in its place, has to admit the object first."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The stored facts of an object that intake is about to make."""

    namespace: str
    fingerprint: str
    starts_ms: int
    name: str
    word: str
    investigation: UUID | None
    """The object that had the name and the word first, once that was admitted."""
    digests: tuple[str, ...]
    """The digests of the specs that it was issued for."""

    def is_of(self, manifest: investigations.AlertInvestigation) -> bool:
        """Whether `manifest` is the object that was made with this receipt."""
        word = manifest.spec.source and manifest.spec.source.receipt
        if (manifest.metadata.name, word) != (self.name, self.word):
            return False
        if self.investigation is not None:
            return str(self.investigation) == manifest.metadata.uid
        return manifest.digest() in self.digests


_COLUMNS = "namespace, fingerprint, starts_ms, name, word, investigation, digests"
_EPISODE = "namespace = :namespace AND fingerprint = :fingerprint AND starts_ms = :starts_ms"
_ISSUE = text(f"""
  INSERT INTO receipts AS known (namespace, fingerprint, starts_ms, name, word, address, digests, previous)
  VALUES (:namespace, :fingerprint, :starts_ms, :name, :word, :address, ARRAY[CAST(:digest AS text)],
    CAST(:previous AS uuid))
  ON CONFLICT (namespace, fingerprint, starts_ms) DO UPDATE
  SET (name, word, address, investigation, created_at, digests, previous) = (
    SELECT CASE WHEN past THEN excluded.name ELSE known.name END, CASE WHEN past THEN excluded.word ELSE known.word END,
      CASE WHEN past THEN excluded.address ELSE known.address END,
      CASE WHEN past THEN NULL ELSE known.investigation END, CASE WHEN past THEN now() ELSE known.created_at END,
      CASE WHEN past THEN excluded.digests
        WHEN known.investigation IS NOT NULL OR known.digests @> excluded.digests THEN known.digests
        ELSE (known.digests || excluded.digests)[greatest(1, cardinality(known.digests) - {DIGESTS_MAX} + 2):] END,
      CASE WHEN past OR known.investigation IS NULL THEN excluded.previous ELSE known.previous END
    FROM (
      SELECT CASE WHEN :is_alert AND known.investigation IS NOT NULL THEN false
        ELSE known.created_at <= clock_timestamp() - greatest(CAST(:window AS interval),
          CASE WHEN known.investigation IS NULL THEN CAST(:kept AS interval) END) OR EXISTS (
          SELECT 1 FROM investigations JOIN work ON work.investigation = id
          WHERE id = known.investigation AND (gone_at IS NOT NULL OR cancel = 'deleted')
        ) END AS past
    ) AS judged
  )
  RETURNING {_COLUMNS}
""")  # noqa: S608 - our own texts, and a number of ours
_HOLD = text(f"SELECT investigation, attempt FROM receipts WHERE {_EPISODE} FOR UPDATE")  # noqa: S608 - our own texts
_RENEW = text(f"""
  UPDATE receipts
  SET name = :name, word = :word, address = :address, investigation = NULL, created_at = now(),
    digests = ARRAY[CAST(:digest AS text)], previous = CAST(:previous AS uuid), attempt = attempt + 1
  WHERE {_EPISODE}
  RETURNING {_COLUMNS}
""")  # noqa: S608 - our own texts
_READ = text(f"SELECT {_COLUMNS} FROM receipts WHERE {_EPISODE}")  # noqa: S608 - our own texts
_RENAME = text(f"""
  UPDATE receipts SET name = CASE WHEN name = :old THEN :new ELSE name END
  WHERE {_EPISODE}
  RETURNING {_COLUMNS}
""")  # noqa: S608 - our own texts


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
    """Return the receipt of what is posted once: the one that it has, else a new one for an object called `name`.

    `digest` is that of the spec which is to be made with it, `address` where it comes from. One that is older than
    `window`, or whose object was deleted, is replaced; one whose object is not admitted yet is kept for an hour.
    """
    values = _values(namespace, fingerprint, starts_ms, name=name, digest=digest, address=address)
    (row,) = await database.run(_ISSUE, **values, window=window, kept=_LEAST_KEPT, is_alert=False, previous=None)
    return _receipt(row)


async def issue_for_alert(
    database: databases.Database,
    *,
    namespace: str,
    fingerprint: str,
    starts_ms: int,
    name: str,
    digest: str,
    rule: episodes.Rule,
    previous: UUID | None = None,
    address: str = "",
) -> Receipt | episodes.Repeat:
    """Return the receipt of a firing alert's episode, or the verdict that the alert repeats an investigation after all.

    The parameters are those of `issue`; `previous` is the investigation that the new one follows. An episode that has
    had an object gets a new receipt if `rule` lets it begin anew, for an object of another name. A StoreDownError means
    that nothing was decided.
    """
    values = _values(namespace, fingerprint, starts_ms, name=name, digest=digest, address=address)
    while True:
        (row,) = await database.run(
            _ISSUE, **values, window=rule.window, kept=_LEAST_KEPT, is_alert=True, previous=previous
        )
        if row.investigation is None:
            return _receipt(row)
        if (issued := await _issue_again(database, values, rule=rule)) is not None:
            return issued


async def _issue_again(
    database: databases.Database, values: Mapping[str, Any], *, rule: episodes.Rule
) -> Receipt | episodes.Repeat | None:
    """Renew the receipt of an episode that has had an object, if `rule` says so; None: another process was faster."""
    episode = {name: values[name] for name in ("namespace", "fingerprint", "starts_ms")}
    async with database.begin() as connection:
        held = (await connection.execute(_HOLD, episode)).one_or_none()
        if held is None or held.investigation is None:
            return None
        facts = await connection.execute(episodes.FACTS, episodes.facts(**episode, rule=rule))
        verdict = episodes.verdict(map(dict, facts.mappings()), rule=rule)
        if isinstance(verdict, episodes.Repeat):
            return verdict
        name = naming.suffixed(values["name"], str(held.attempt + 1))
        previous = verdict.previous and verdict.previous.investigation
        renewed = await connection.execute(_RENEW, {**values, "name": name, "previous": previous})
        return _receipt(dict(renewed.mappings().one()))


def _values(
    namespace: str, fingerprint: str, starts_ms: int, *, name: str, digest: str, address: str
) -> dict[str, Any]:
    episode = {"namespace": namespace, "fingerprint": fingerprint, "starts_ms": starts_ms}
    return episode | {"name": name, "digest": digest, "word": secrets.token_hex(16), "address": address}


async def read(database: databases.Database, receipt: Receipt) -> Receipt:
    """The receipt as it is now: others may have renamed it, or been issued it for another spec, or had it admitted."""
    values = {"namespace": receipt.namespace, "fingerprint": receipt.fingerprint, "starts_ms": receipt.starts_ms}
    rows = await database.run(_READ, **values)
    if not rows:
        raise _expired(receipt)
    return _receipt(rows[0])


async def rename(database: databases.Database, receipt: Receipt) -> Receipt:
    """Return the receipt with another name, because the old one is taken; simultaneous callers all get the same."""
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


def _receipt(row: Mapping[str, Any]) -> Receipt:
    values = dict(row)
    return Receipt(**values | {"digests": tuple(values["digests"])})


def _expired(receipt: Receipt) -> databases.StoreDownError:
    return databases.StoreDownError(f"the receipt of {receipt.namespace}/{receipt.name} has expired meanwhile")

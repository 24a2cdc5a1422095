"""Receipts: proof that intake created an object, and not a user.

A user who may create investigations can write any alert's fingerprint into one, but that object must not stand for the
alert. So before intake creates an object, it stores the alert's episode, the object's name and a random word, and
writes the word into the object. The first object with this name and word is intake's, no matter whether intake admits
it, or the watch after intake has died. A later copy of it is not.

A reader of the object can copy the word. So the receipt also has a digest of the spec that intake was about to write,
and until an object is admitted, only one with such a spec counts.

One episode has one receipt: two simultaneous notifications of it request the same object. They may differ in details of
the alert, so a receipt has the digests of both.

An episode whose investigation came to nothing may get another one (`episodes`). The verdict is computed again while the
receipt's row is locked. Of two simultaneous processes, the first writes a new word and a new name into the row; the
second finds an object that is about to be created, or that exists.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import chains, investigations, naming
from tarsy.store.base import databases
from tarsy.store.intake import episodes

DIGESTS_MAX = 16
"""The maximal digests in a receipt: those of the specs of the episode's latest notifications."""
BATCH_ROWS = 500
"""The maximal number of receipts that a statement deletes."""
_MIN_AGE = timedelta(hours=1)
"""The age up to which a receipt is kept even if the window is shorter, so that its object can be admitted."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The stored proof for an object that intake is about to create."""

    namespace: str
    fingerprint: str
    starts_ms: int
    name: str
    word: str
    investigation: UUID | None
    """The first object with the name and the word, once it is admitted."""
    digests: tuple[str, ...]
    """The digests of the specs for which the receipt was issued."""

    def proves(self, manifest: investigations.AlertInvestigation) -> bool:
        """Whether `manifest` is the object that intake created with this receipt."""
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
  SET (name, word, address, investigation, created_at, digests, previous, split_from) = (
    SELECT CASE WHEN past THEN excluded.name ELSE known.name END, CASE WHEN past THEN excluded.word ELSE known.word END,
      CASE WHEN past THEN excluded.address ELSE known.address END,
      CASE WHEN past THEN NULL ELSE known.investigation END, CASE WHEN past THEN now() ELSE known.created_at END,
      CASE WHEN past THEN excluded.digests
        WHEN known.investigation IS NOT NULL OR known.digests @> excluded.digests THEN known.digests
        ELSE (known.digests || excluded.digests)[greatest(1, cardinality(known.digests) - {DIGESTS_MAX} + 2):] END,
      CASE WHEN past OR known.investigation IS NULL THEN excluded.previous ELSE known.previous END,
      CASE WHEN NOT past THEN known.split_from END
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
    digests = ARRAY[CAST(:digest AS text)], previous = CAST(:previous AS uuid), attempt = attempt + 1,
    split_from = NULL
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
    """Return the receipt of a posted alert: the existing one, or a new one for an object called `name`.

    `digest` is the digest of the object's spec, `address` the sender's. A receipt is replaced if it is older than
    `window`, or if its object was deleted. If its object is not admitted yet, it is kept for an hour.
    """
    requested = values(namespace, fingerprint, starts_ms, name=name, digest=digest, address=address)
    (row,) = await database.run(_ISSUE, **requested, window=window, kept=_MIN_AGE, is_alert=False, previous=None)
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
    """Return the receipt of a firing alert's episode, or the verdict that the alert repeats an investigation by now.

    `previous` is the investigation that the new one follows; the other parameters are those of `issue`. If the episode
    has had an object, and `rule` allows another investigation, it gets a new receipt for an object of another name. If
    this raises StoreDownError, nothing was stored.
    """
    requested = values(namespace, fingerprint, starts_ms, name=name, digest=digest, address=address)
    while True:
        receipt = await take(database, requested, rule=rule, previous=previous)
        if receipt.investigation is None:
            return receipt
        if (renewed := await _renew(database, requested, rule=rule)) is not None:
            return renewed


async def take(
    database: databases.Database, requested: Mapping[str, Any], *, rule: episodes.Rule, previous: UUID | None = None
) -> Receipt:
    """Return the receipt of an alert or a group, a new one if there is none; `requested` are its `values`."""
    (row,) = await database.run(
        _ISSUE, **requested, window=rule.window, kept=_MIN_AGE, is_alert=True, previous=previous
    )
    return _receipt(row)


async def renew_held(
    database: databases.Database, requested: Mapping[str, Any], *, former: UUID, previous: UUID | None
) -> Receipt | None:
    """Renew a receipt whose investigation is `former`. None if another process did so."""
    episode = {name: requested[name] for name in ("namespace", "fingerprint", "starts_ms")}
    async with database.begin() as connection:
        held = (await connection.execute(_HOLD, episode)).one_or_none()
        if held is None or held.investigation != former:
            return None
        name = naming.suffixed(requested["name"], str(held.attempt + 1))
        renewed = await connection.execute(_RENEW, {**requested, "name": name, "previous": previous})
        return _receipt(dict(renewed.mappings().one()))


async def _renew(
    database: databases.Database, values: Mapping[str, Any], *, rule: episodes.Rule
) -> Receipt | episodes.Repeat | None:
    """Renew the receipt of an episode that has had an object, if `rule` allows it. None if another process did so."""
    episode = {name: values[name] for name in ("namespace", "fingerprint", "starts_ms")}
    async with database.begin() as connection:
        held = (await connection.execute(_HOLD, episode)).one_or_none()
        if held is None or held.investigation is None:
            return None
        alert = values["fingerprint"], values["starts_ms"]
        formers = await connection.execute(
            *episodes.former_investigations([alert], namespace=values["namespace"], rule=rule)
        )
        (verdict,) = episodes.verdicts(map(dict, formers.mappings()), count=1, rule=rule)
        if isinstance(verdict, episodes.Repeat):
            return verdict
        name = naming.suffixed(values["name"], str(held.attempt + 1))
        previous = verdict.previous.id if verdict.previous else None
        renewed = await connection.execute(_RENEW, {**values, "name": name, "previous": previous})
        return _receipt(dict(renewed.mappings().one()))


def values(namespace: str, fingerprint: str, starts_ms: int, *, name: str, digest: str, address: str) -> dict[str, Any]:
    """Return the values of a receipt that is requested, with a new word."""
    episode = {"namespace": namespace, "fingerprint": fingerprint, "starts_ms": starts_ms}
    return episode | {"name": name, "digest": digest, "word": secrets.token_hex(16), "address": address}


async def read(database: databases.Database, receipt: Receipt) -> Receipt:
    """Read the receipt again: another process may have renamed it, added a digest, or admitted its object."""
    values = {"namespace": receipt.namespace, "fingerprint": receipt.fingerprint, "starts_ms": receipt.starts_ms}
    rows = await database.run(_READ, **values)
    if not rows:
        raise _expired(receipt)
    return _receipt(rows[0])


async def rename(database: databases.Database, receipt: Receipt) -> Receipt:
    """Give the receipt another name, because another object has the old one. Simultaneous callers get the same name."""
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


_DROP_EXPIRED = text(f"""
  DELETE FROM receipts WHERE ctid = ANY(ARRAY(
    SELECT its.ctid FROM receipts AS its LEFT JOIN investigations AS known ON known.id = its.investigation
    WHERE its.created_at < now() - CAST(:kept AS interval)
      AND (starts_ms <> 0 OR known.id IS NULL
        OR known.ended_at < now() - greatest(CAST(:kept AS interval), CAST(:group_window AS interval)))
    ORDER BY its.created_at LIMIT {BATCH_ROWS} FOR UPDATE OF its SKIP LOCKED
  ))
  RETURNING 1 AS dropped
""")  # noqa: S608 - our own text


async def drop_expired(database: databases.Database, *, window: timedelta) -> None:
    """Delete the receipts that are older than both `window` and an hour, in batches.

    The receipt of a group is its row (`groups`). It is kept while its investigation is open, and afterwards for the
    longest time in which alerts may still be counted on that.
    """
    group_window = timedelta(seconds=chains.GROUP_WINDOW_MAX)
    while await database.run(_DROP_EXPIRED, kept=max(window, _MIN_AGE), group_window=group_window):
        pass


def _receipt(row: Mapping[str, Any]) -> Receipt:
    values = dict(row)
    return Receipt(**values | {"digests": tuple(values["digests"])})


def _expired(receipt: Receipt) -> databases.StoreDownError:
    return databases.StoreDownError(f"the receipt of {receipt.namespace}/{receipt.name} has expired meanwhile")

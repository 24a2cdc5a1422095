"""Sessions of browsers, and the one-time codes that begin them, shared by all replicas.

Only digests of codes and cookies are stored, so a reader of the database cannot sign in with them. Times are the
database's. Each code, sign-in and sign-out has a row of the audit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from tarsy.store.base import audit, databases

CODE_LIFETIME = timedelta(seconds=30)
EXPIRED_MAX = 1000
"""Expired rows that are deleted with each new code."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A browser that is signed in."""

    identity: dict[str, Any]
    """The user that the API server named when the code was made, and its name in the audit (`author`)."""
    until: datetime


_ADD_CODE = text(f"""
  WITH expired AS (
    DELETE FROM browser_sessions WHERE digest IN (
      SELECT digest FROM browser_sessions WHERE until < clock_timestamp() LIMIT {EXPIRED_MAX} FOR UPDATE SKIP LOCKED
    )
  )
  INSERT INTO browser_sessions (digest, is_code, identity, until, session_until)
  VALUES (:digest, true, cast(:identity AS json), clock_timestamp() + :lifetime, clock_timestamp() + :session_lifetime)
  RETURNING until
""")  # noqa: S608 - a number of ours


async def add_code(
    database: databases.Database,
    digest: bytes,
    *,
    identity: dict[str, Any],
    session_lifetime: timedelta,
    namespace: str,
    by: audit.Caller,
) -> datetime:
    """Store a one-time code for `identity`, and return its expiry.

    `session_lifetime` is the lifetime, from now, of the session that it begins. Expired codes and sessions are deleted.
    `namespace` is the operator's own, for the audit.
    """
    values = {
        "digest": digest,
        "identity": json.dumps(identity | {"author": by.who}),
        "lifetime": CODE_LIFETIME,
        "session_lifetime": session_lifetime,
    }
    async with database.begin() as connection:
        expires: datetime = (await connection.execute(_ADD_CODE, values)).scalar_one()
        await audit.write_setup(connection, "session-code", "", {}, namespace=namespace, by=by)
    return expires


_BEGIN = text("""
  WITH code AS (
    DELETE FROM browser_sessions WHERE digest = :code AND is_code AND until > clock_timestamp()
    RETURNING identity, session_until
  )
  INSERT INTO browser_sessions (digest, is_code, identity, until, session_until)
  SELECT :session, false, identity, session_until, session_until FROM code
  RETURNING identity, until
""")


async def begin(
    database: databases.Database, *, code: bytes, session: bytes, namespace: str, address: str
) -> Session | None:
    """Use up a code and begin a session; both are digests. None if the code is unknown, used or expired."""
    async with database.begin() as connection:
        row = (await connection.execute(_BEGIN, {"code": code, "session": session})).first()
        if row is None:
            return None
        identity = _identity(row.identity)
        by = audit.Caller(who=_author(identity), address=address)
        await audit.write_setup(connection, "sign-in", "", {}, namespace=namespace, by=by)
    return Session(identity=identity, until=row.until)


_READ = text("""
  SELECT identity, until FROM browser_sessions WHERE digest = :digest AND NOT is_code AND until > clock_timestamp()
""")


async def read(database: databases.Database, digest: bytes) -> Session | None:
    """Return the session with that digest, or None if there is none or it has expired."""
    rows = await database.run(_READ, digest=digest)
    return Session(identity=_identity(rows[0].identity), until=rows[0].until) if rows else None


_END = text("DELETE FROM browser_sessions WHERE digest = :digest AND NOT is_code RETURNING identity")


async def end(database: databases.Database, digest: bytes, *, namespace: str, address: str) -> None:
    """End a session, if there is one with that digest."""
    async with database.begin() as connection:
        row = (await connection.execute(_END, {"digest": digest})).first()
        if row is not None:
            by = audit.Caller(who=_author(_identity(row.identity)), address=address)
            await audit.write_setup(connection, "sign-out", "", {}, namespace=namespace, by=by)


def _author(identity: dict[str, Any]) -> str:
    author: str = identity.get("author", "")  # sessions from before the audit had them have none
    return author


def _identity(stored: Any) -> dict[str, Any]:
    """Return the value of a JSON column, which the driver returns as text."""
    identity: dict[str, Any] = json.loads(stored) if isinstance(stored, str) else stored
    return identity

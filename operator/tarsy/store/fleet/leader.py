"""The table `leaders`: a lease, by the database's clock, for each role that only one process may have at a time."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases

CONTROLLER = "controller"
"""The role that writes the conditions of chains, deletes expired objects and resyncs."""
LEASE = timedelta(seconds=15)


_LEAD = text("""
  INSERT INTO leaders AS held (role, owner, until) VALUES (:role, :owner, clock_timestamp() + :lease)
  ON CONFLICT (role) DO UPDATE SET owner = excluded.owner, until = excluded.until
  WHERE held.owner = excluded.owner OR held.until < clock_timestamp()
  RETURNING role
""")


async def lead(database: databases.Database, role: str, *, owner: UUID, lease: timedelta) -> bool:
    """Acquire or renew a role for the time `lease`; return False while another process has it."""
    return bool(await database.run(_LEAD, role=role, owner=owner, lease=lease))


_RESIGN = text("DELETE FROM leaders WHERE role = :role AND owner = :owner")


async def resign(database: databases.Database, role: str, *, owner: UUID) -> None:
    """Release a role, if this process has it."""
    await database.run(_RESIGN, role=role, owner=owner)


async def remember_cluster(database: databases.Database, uid: str) -> bool:
    """Return whether this database belongs to the cluster of that uid; the first uid is stored."""
    async with database.begin() as connection:
        await connection.execute(
            text("INSERT INTO clusters (uid) SELECT :uid WHERE NOT EXISTS (SELECT 1 FROM clusters)"), {"uid": uid}
        )
        return await connection.scalar(text("SELECT 1 FROM clusters WHERE uid = :uid"), {"uid": uid}) is not None

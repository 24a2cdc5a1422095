"""What only one process may do at a time: a lease row for each duty, by the database's clock."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import text

from tarsy.store import database as databases

CONTROLLER = "controller"
"""Conditions of chains, sweep, expiry, resync."""
LEASE = timedelta(seconds=15)


async def take(database: databases.Database, duty: str, *, owner: UUID, lease: timedelta) -> bool:
    """Take or renew a duty for `lease`; False while another process has it."""
    async with database.begin() as connection:
        taken = await connection.execute(
            text("""
              INSERT INTO duties AS held (name, owner, until) VALUES (:duty, :owner, clock_timestamp() + :lease)
              ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
              WHERE held.owner = excluded.owner OR held.until < clock_timestamp()
            """),
            {"duty": duty, "owner": owner, "lease": lease},
        )
        return taken.rowcount == 1


async def give_up(database: databases.Database, duty: str, *, owner: UUID) -> None:
    """Let a duty go, if this process has it."""
    async with database.single() as connection:
        await connection.execute(
            text("DELETE FROM duties WHERE name = :duty AND owner = :owner"), {"duty": duty, "owner": owner}
        )


async def remember_cluster(database: databases.Database, uid: str) -> bool:
    """Whether this database belongs to the cluster of that uid; the first one to come is remembered."""
    async with database.begin() as connection:
        await connection.execute(
            text("INSERT INTO clusters (uid) SELECT :uid WHERE NOT EXISTS (SELECT 1 FROM clusters)"), {"uid": uid}
        )
        return await connection.scalar(text("SELECT 1 FROM clusters WHERE uid = :uid"), {"uid": uid}) is not None

"""The audit of a test's database, as somebody with psql sees it."""

from __future__ import annotations

import asyncpg


async def told(url: str) -> list[tuple[str, str, str, str]]:
    """What was done, to the investigation of which name, by whom and from where; in order."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT action, name, who, address FROM audit ORDER BY at")
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


def by_token(action: str, name: str) -> tuple[str, str, str, str]:
    """The row of what somebody on this machine did who has the webhook's token."""
    return action, name, "api-client", "127.0.0.1"

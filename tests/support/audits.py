"""The audit of a test's database, as a user of psql sees it."""

from __future__ import annotations

import asyncpg
from support import accounts


async def audit_rows(url: str) -> list[tuple[str, str, str, str]]:
    """Return the action, the investigation's name, the caller and the address of each row, in order."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT action, name, who, address FROM audit ORDER BY at")
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


def row(action: str, name: str) -> tuple[str, str, str, str]:
    """The row of what this machine did, with the token that `operators.Process.request` gives for it."""
    return action, name, "api-client" if action == "create" else accounts.EDITORS_NAME, "127.0.0.1"

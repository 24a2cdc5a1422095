"""Workers as the catalogue has them: what each of them reports of the LLM providers of its platform file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.telemetry import component_states


async def report(
    database: databases.Database, number: int = 1, *, roles: Sequence[str] = ("worker",), **problems: str
) -> None:
    """Have process `number` report why it cannot use each of these providers, "" if it can."""
    now = datetime.now(UTC)
    facts = [
        component_states.ComponentState(
            kind="provider",
            name=name,
            state="unusable" if why else "usable",
            since=now,
            detail=component_states.Provider(problem=why),
        )
        for name, why in problems.items()
    ]
    detail = component_states.Process(roles=tuple(roles))
    process = component_states.ComponentState(
        kind="process", name=f"pod-{number}", state="running", since=now, detail=detail
    )
    await catalogue.write(database, UUID(int=number), [process, *facts])


async def vanish(database: databases.Database, number: int = 1) -> None:
    """Have process `number` be killed: what it reported stays, and gets old."""
    async with database.begin() as connection:
        await connection.exec_driver_sql(
            f"UPDATE catalogue SET seen_at = clock_timestamp() - interval '31 s' WHERE process = '{UUID(int=number)}'"  # noqa: S608
        )

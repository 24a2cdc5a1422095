"""Measures of the database on a real Postgres, and the gauges that one replica makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import sqlalchemy
from support import crowd
from tarsy.store.base import databases
from tarsy.store.operations import measures


@pytest.mark.timeout(480)
async def test_a_hundred_thousand_old_investigations_are_not_read(
    database: databases.Database, record_property: Callable[[str, object], None]
) -> None:
    """The rows read every fifteen seconds grow with the open investigations, a few pages for each, and not with all."""
    await crowd.gather(database)
    began = time.perf_counter()
    await measures.read(database)
    record_property(
        "figure", f"measures beside {crowd.COUNT} investigations: {(time.perf_counter() - began) * 1e3:.0f} ms"
    )
    explain = sqlalchemy.text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {measures._PHASES.text}")
    async with database.begin() as connection:
        ((plan,),) = (await connection.execute(explain, {"within": measures.ENDED_WITHIN})).all()
    read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
    assert read < 10 * crowd.OPEN < crowd.COUNT, plan

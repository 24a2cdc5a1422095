"""A database server that takes connections and says nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tarsy.store.base import databases
from tarsy.store.queue import heartbeats
from tarsy_dev import loopback


async def test_database_server_that_does_not_answer_is_reported() -> None:
    with loopback.listen() as silent:
        heartbeat = heartbeats.Heartbeat(
            f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/t", lease=timedelta(seconds=0.2)
        )
        with pytest.raises(databases.StoreDownError, match=r"^cannot connect to the database: TimeoutError$"):
            await heartbeat.beat({})

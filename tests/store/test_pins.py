"""Pins of tools: the same for all processes, and changed by people alone."""

from __future__ import annotations

import asyncio

import pytest
from support import queue
from support.database import behind_proxy
from tarsy import errors
from tarsy.store.base import audit, databases, hints, notify
from tarsy.store.fleet import pins
from tarsy_dev import patience

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
ALICE = audit.Caller(who="alice", address="192.0.2.1")


async def confirm(database: databases.Database, **hashes: str) -> dict[str, str]:
    return dict(await pins.confirm(database, "k8s", hashes, by=ALICE, namespace="tarsy"))


async def seen(database: databases.Database, server: str = "k8s", **hashes: str) -> dict[str, str]:
    return dict(await pins.Pins(database).pinned(server, seen=hashes, confirmed={}))


async def test_first_process_that_sees_a_tool_pins_it_for_all(database: databases.Database) -> None:
    assert await seen(database, get=A) == {"get": A}
    assert await seen(database, get=B, list=B) == {"get": A, "list": B}
    assert await seen(database, "other", get=C) == {"get": C}
    assert await seen(database, list=C) == {"list": B}


async def test_concurrent_processes_pin_a_new_tool_once(database: databases.Database) -> None:
    hashes = [f"sha256:{number:064x}" for number in range(10)]
    tools = [f"get{number}" for number in range(20)]
    orders = [tools, tools[::-1]] * 5  # rows that are taken in any order would keep each other waiting for ever
    looks = [seen(database, **dict.fromkeys(order, digest)) for order, digest in zip(orders, hashes, strict=True)]
    first, *others = await asyncio.gather(*looks)
    assert others == [first] * 9
    assert first.keys() == set(tools)


async def test_server_with_new_tools_each_time_does_not_fill_the_table(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "UNSEEN_MAX", 5)
    assert len(await seen(database, **{f"a{number}": A for number in range(3)})) == 3
    pinned = await seen(database, **{f"b{number}": A for number in range(10)})
    assert pinned == {"b0": A, "b1": A}
    assert await seen(database, c=A, a0=B) == {"a0": A}
    assert await seen(database, "other", c=A) == {"c": A}
    assert await confirm(database, c=A) == {"c": ""}, "people may have one more"
    assert await seen(database, c=A) == {"c": A}


async def test_accepted_tool_is_pinned_for_all_and_audited(database: databases.Database) -> None:
    await seen(database, get=A, list=A)
    assert await confirm(database, get=B, list=A, new=C) == {"get": A, "new": ""}
    assert await seen(database, get=A, list=A) == {"get": B, "list": A}
    assert await confirm(database, get=B) == {}, "again is no harm, and leaves no row"
    (row,) = await queue.rows(
        database, "SELECT who, address, action, investigation, namespace, name, detail FROM audit"
    )
    assert row[:-1] == ("alice", "192.0.2.1", "accept", None, "tarsy", "k8s")
    assert row[-1] == {"get": {"from": A, "to": B}, "new": {"from": "", "to": C}}
    by = await queue.rows(database, "SELECT tool, confirmed_by FROM tool_pins ORDER BY tool")
    assert by == [("get", "alice"), ("list", ""), ("new", "alice")]


async def test_hash_in_the_platform_file_is_pinned(database: databases.Database) -> None:
    await seen(database, get=A)
    tool_pins = pins.Pins(database)
    assert await tool_pins.pinned("k8s", seen={}, confirmed={"get": B, "new": C}) == {}
    assert await seen(database, get=A, new=A) == {"get": B, "new": C}
    assert await queue.rows(database, "SELECT 1 FROM audit") == []


async def test_processes_hear_that_something_was_confirmed(database: databases.Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = asyncio.create_task(
        notify.Listener(database.url, hints.Channels({pins.CHANGED: heard.put_nowait})).run()
    )
    async with patience.limit():
        assert await heard.get() == ""
        await confirm(database, get=A)
        assert await heard.get() == "k8s"
    listener.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listener


async def test_unavailable_database_is_reported_as_unavailable(database: databases.Database) -> None:
    async with behind_proxy(database.url) as (there, between):
        assert await seen(there, get=A) == {"get": A}
        between.refuse()
        between.cut()
        with pytest.raises(errors.TemporaryError):
            await seen(there, get=A)

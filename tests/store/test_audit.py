"""The audit, page by page; on a real Postgres."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from support import queue
from tarsy.store.base import audit, databases
from tarsy.store.operations import deletion

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
SHOP = audit.Query(namespaces={"shop": "uid-of-shop"})


async def add(database: databases.Database, name: str, **values: Any) -> None:
    row = {
        "at": NOON,
        "who": "jane",
        "address": "192.0.2.1",
        "action": "cancel",
        "investigation": None,
        "namespace": "shop",
        "namespace_uid": "uid-of-shop",
    }
    columns = row | values | {"name": name}
    names = ", ".join(columns)
    statement = f"INSERT INTO audit ({names}) VALUES ({', '.join(f':{column}' for column in columns)})"  # noqa: S608
    await queue.execute(database, statement, **columns)


async def pages(database: databases.Database, query: audit.Query, *, limit: int) -> list[Sequence[str]]:
    """The names on each page."""
    names_by_page: list[Sequence[str]] = []
    after = None
    while True:
        page = await audit.page(database, query, after=after, limit=limit)
        names_by_page.append([row.name for row in page.items])
        if (after := page.next) is None:
            return names_by_page


async def names(database: databases.Database, query: audit.Query) -> list[str]:
    (page,) = await pages(database, query, limit=100)
    return sorted(page)


async def test_pages_have_each_row_once_newest_first(database: databases.Database) -> None:
    for number in range(7):  # three have one time
        await add(database, str(number), at=NOON + timedelta(seconds=min(number, 4)))

    first = await audit.page(database, SHOP, limit=3)
    await add(database, "late", at=NOON + timedelta(days=1))
    second = await audit.page(database, SHOP, after=first.next, limit=3)
    third = await audit.page(database, SHOP, after=second.next, limit=3)

    assert {row.name for row in first.items} == {"4", "5", "6"}
    assert [[row.name for row in page.items] for page in (second, third)] == [["3", "2", "1"], ["0"]]
    assert third.next is None
    assert await pages(database, SHOP, limit=8) == [["late", *(row.name for row in first.items), "3", "2", "1", "0"]]


async def test_each_filter_excludes_the_rows_that_lack_it(database: databases.Database) -> None:
    identity = uuid.uuid4()
    await add(database, "plain")
    await add(database, "by-joe", who="joe")
    await add(database, "purged", action="purge")
    await add(database, "of-one", investigation=identity)
    await add(database, "later", at=NOON + timedelta(hours=1))

    def query(**filters: Any) -> audit.Query:
        return audit.Query(namespaces=SHOP.namespaces, **filters)

    assert await names(database, query(who="joe")) == ["by-joe"]
    assert await names(database, query(action="purge")) == ["purged"]
    assert await names(database, query(investigation=identity)) == ["of-one"]
    assert await names(database, query(name="plain")) == ["plain"]
    assert await names(database, query(since=NOON + timedelta(hours=1))) == ["later"]
    assert await names(database, query(until=NOON + timedelta(hours=1), who="joe")) == ["by-joe"]
    assert await names(database, query(who="joe", action="purge")) == []


async def test_a_later_namespace_of_the_name_inherits_no_row(database: databases.Database) -> None:
    await add(database, "own")
    await add(database, "of-the-former", namespace_uid="another")
    await add(database, "without-uid", namespace_uid=None)
    await add(database, "of-others", namespace="bank", namespace_uid="uid-of-bank")

    assert await names(database, SHOP) == ["own", "without-uid"]
    both = audit.Query(namespaces={"shop": "uid-of-shop", "bank": "uid-of-bank"})
    assert await names(database, both) == ["of-others", "own", "without-uid"]
    crossed = audit.Query(namespaces={"shop": "uid-of-bank", "bank": "uid-of-shop"})
    assert await names(database, crossed) == ["without-uid"]
    assert await names(database, audit.Query(namespaces={})) == []
    everything = audit.Query(namespaces=None)
    assert await names(database, everything) == ["of-others", "of-the-former", "own", "without-uid"]


async def test_a_row_has_the_details_of_its_change(database: databases.Database) -> None:
    identity = await queue.admit(database)
    await deletion.hold(database, identity, "post-mortem", by=queue.CALLER)

    (row,) = (await audit.page(database, audit.Query(namespaces=None), limit=10)).items

    assert (row.who, row.address, row.action, row.investigation) == ("somebody", "192.0.2.1", "hold", identity)
    assert (row.namespace, row.name, row.details) == ("tarsy", "web-crash", {"reason": "post-mortem"})

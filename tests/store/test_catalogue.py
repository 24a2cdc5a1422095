"""Facts that processes report of themselves: written when they change, read while the processes are there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import apis, queue
from support.database import behind_proxy
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue, reporter
from tarsy.telemetry import component_states
from tarsy_dev import patience

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def fact(
    kind: component_states.Kind = "server", name: str = "tools", state: str = "connected", **detail: Any
) -> component_states.ComponentState:
    return component_states.ComponentState(
        kind=kind, name=name, state=state, since=NOON, detail=component_states.decode(kind, detail)
    )


class Part:
    """A part of a process that says what the test has it say."""

    def __init__(self, *facts: component_states.ComponentState) -> None:
        self.facts = list(facts)

    def __call__(self) -> Iterator[component_states.ComponentState]:
        yield from self.facts


def heard(database: databases.Database, part: Part, *, host: str = "here") -> reporter.Reporter:
    writer = apis.keeping(database, host=host)
    writer.add_source(part)
    return writer


async def states(database: databases.Database, *kinds: component_states.Kind) -> list[tuple[str, str, str]]:
    return [(row.host, row.name, row.state) for row in await catalogue.read(database, *kinds)]


async def renew_now(writer: reporter.Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it renewed as if it were time to."""
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_due", 0.0)
        await writer.report()


async def written(database: databases.Database) -> dict[str, datetime]:
    """When the rows were last written, by their kinds."""
    return dict(await queue.rows(database, "SELECT kind, seen_at FROM catalogue"))


async def test_changed_facts_are_written_at_once_and_unchanged_facts_are_not_rewritten(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part(fact(problem=""), fact("provider", "google", "usable"))
    writer = heard(database, part)
    await writer.report()
    (server,) = await catalogue.read(database, "server")
    assert (server.process, server.host, server.state, server.since) == (writer.process, "here", "connected", NOON)
    assert server.detail == component_states.Server()

    first = await written(database)
    await writer.report()
    assert await written(database) == first, "nothing has changed, and it is not time to renew"
    await renew_now(writer, monkeypatch)
    second = await written(database)
    assert {kind for kind in first if second[kind] > first[kind]} == {"process"}

    part.facts[0] = fact(state="unreachable", problem="is away")
    await writer.report()
    third = await written(database)
    assert {kind for kind in first if third[kind] > second[kind]} == {"process", "server"}
    assert await states(database, "server", "provider") == [
        ("here", "google", "usable"),
        ("here", "tools", "unreachable"),
    ]


async def test_process_counts_while_it_was_seen_recently(database: databases.Database) -> None:
    for host in ("a", "b"):
        await heard(database, Part(fact()), host=host).report()
    await queue.execute(
        database, "UPDATE catalogue SET seen_at = seen_at - interval '15 seconds' WHERE kind = 'process' AND name = 'a'"
    )
    assert await states(database, "process") == [("a", "a", "running"), ("b", "b", "running")]
    assert [row.host for row in await catalogue.read(database, "server", within=timedelta(seconds=10))] == ["b"]
    await queue.execute(database, "UPDATE catalogue SET seen_at = seen_at - interval '20 seconds' WHERE name = 'a'")
    assert await states(database, "process", "server") == [("b", "b", "running"), ("b", "tools", "connected")]


async def test_rows_of_processes_gone_for_an_hour_are_deleted(database: databases.Database) -> None:
    for host in ("gone", "there"):
        await heard(database, Part(fact()), host=host).report()
    await queue.execute(
        database,
        "UPDATE catalogue SET seen_at = seen_at - interval '61 minutes'"
        " WHERE NOT (kind = 'process' AND name = 'there')",
    )
    await catalogue.forget(database)
    assert await queue.rows(database, "SELECT kind, name FROM catalogue ORDER BY kind") == [
        ("process", "there"),
        ("server", "tools"),
    ]


async def test_process_whose_rows_were_deleted_writes_all_facts_again(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = heard(database, Part(fact()))
    await writer.report()
    await queue.execute(database, "DELETE FROM catalogue")
    await renew_now(writer, monkeypatch)
    await writer.report()
    assert await states(database, "process", "server") == [("here", "here", "running"), ("here", "tools", "connected")]


async def test_tools_of_a_server_are_returned_once_from_the_latest_report(database: databases.Database) -> None:
    def offers(name: str, minute: int) -> component_states.ComponentState:
        since = NOON + timedelta(minutes=minute)
        return component_states.ComponentState(
            kind="tools",
            name="tools",
            state="listed",
            since=since,
            detail=component_states.Tools(tools=(component_states.OfferedTool(name=name),)),
        )

    for host, (name, minute) in {"a": ("old", 1), "b": ("new", 2), "c": ("older", 0)}.items():
        await heard(database, Part(offers(name, minute)), host=host).report()
    (server,) = await catalogue.tools(database, limit=10)
    assert [tool.name for tool in server.detail.tools] == ["new"]


async def test_all_text_is_masked_before_it_is_stored_and_what_postgres_cannot_hold_is_replaced(
    database: databases.Database,
) -> None:
    def mask(text: str) -> str:
        return text.replace("canary", "*")

    writer = apis.keeping(database, mask=mask)
    server_fact = fact(
        name="canary 1",
        problem="\0 canary \ud800",
        missing="a canary",
        stopped=[{"tool": "canary", "pinned": "", "offered": "canary"}],
    )
    writer.add_source(Part(server_fact, fact("provider", "canary 2"), fact("provider", "* 2")))
    await writer.report()
    stored = str(await queue.rows(database, "SELECT name, CAST(detail AS text) FROM catalogue"))
    assert "canary" not in stored
    (server,) = await catalogue.read(database, "server")
    assert (server.name, server.detail.problem) == ("* 1", "\ufffd * \ufffd")
    assert len(await catalogue.read(database, "provider")) == 1


async def test_outage_is_logged_once_and_a_stopping_process_is_removed_at_once(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporter, "READ_SECONDS", 0.0)
    monkeypatch.setattr(reporter, "RETRY_SECONDS", 0.0)
    async with behind_proxy(database.url) as (own, between):
        part = Part(fact())
        writer = heard(own, part)
        running = asyncio.create_task(writer.run())
        await until(lambda: writer.database.state == "answering")
        between.refuse()
        between.cut()
        part.facts = [fact(state="unreachable")]
        await until(lambda: writer.database.state == "away")
        since = writer.database.since
        with monkeypatch.context() as patched:
            tries = Counter(catalogue.write)
            patched.setattr(catalogue, "write", tries)
            await until(lambda: tries.calls >= 3)
        assert (writer.database.state, writer.database.since) == ("away", since)
        assert sum("the facts of this process cannot be written" in line for line in caplog.messages) == 1
        between.accept()
        await until(lambda: writer.database.state == "answering")
        assert await states(database, "server") == [("here", "tools", "unreachable")]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await queue.rows(database, "SELECT * FROM catalogue") == []


class Counter:
    """Counts calls of what it stands before."""

    def __init__(self, behind: Any) -> None:
        self.calls = 0
        self._behind = behind

    async def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return await self._behind(*args)


async def until(ready: Any) -> None:
    async with patience.limit():
        while not ready():  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0.005)

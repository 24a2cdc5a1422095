"""The index of a trace: complete and in order on pages of any size, and read without bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.api.investigations import reads, traces
from tarsy.store.base import databases
from tarsy.transcript import entries
from tarsy.views import traces as trace_views


async def written(database: databases.Database, commits: Iterator[tuple[entries.Entry, ...]]) -> UUID:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    for commit in commits:
        await journal.commit(*commit)
    return identity


async def rows(
    database: databases.Database, identity: UUID, *, limit: int = 500, **row_filter: Any
) -> list[trace_views.IndexRow]:
    """Read all pages of an index."""
    page = await traces.read_index(database, identity, limit=limit, **row_filter)
    listed = list(page.rows)
    while len(listed) < page.total:
        page = await traces.read_index(
            database, identity, upto=page.upto, offset=len(listed), limit=limit, **row_filter
        )
        assert page.rows
        listed += page.rows
    return listed


async def lines(database: databases.Database, identity: UUID) -> list[trace_views.Line]:
    return (await traces.read(database, identity, after=0, limit=500)).calls


async def test_index_has_every_stage_execution_and_call_with_the_facts_of_its_line(
    database: databases.Database,
) -> None:
    identity = await written(database, stories.commits(seed=3))

    listed = await rows(database, identity)

    calls = {(line.type, line.n): line for line in await lines(database, identity)}
    indexed = {(row.type, row.n): row for row in listed if row.n is not None}
    assert indexed.keys() == calls.keys()
    for key, line in calls.items():
        row = indexed[key]
        name = f"{line.provider}/{line.model}" if line.type == "llm" else f"{line.server_name}.{line.tool_name}"
        assert row.name == name
        for field in (
            *("seq", "run", "stage", "execution", "execution_name", "seconds", "outcome", "failure", "cost"),
            *("input_tokens", "output_tokens", "thinking_tokens", "total_tokens", "failed_attempts"),
        ):
            assert getattr(row, field) == getattr(line, field), (key, field)
        assert row.ended_at == line.created_at
    details = await reads.read(database, identity)
    assert [row.execution for row in listed if row.type == "execution"] == [agent.id for agent in details.executions]
    assert [row.name for row in listed if row.type == "stage"] == ["collect", "analysis"]


async def test_rows_stand_below_their_execution_and_stage_in_order_of_commits(database: databases.Database) -> None:
    stage = execution = ""
    seq = 0
    for row in await rows(database, await written(database, stories.commits(seed=5))):
        if row.type == "stage":
            stage = row.name
        elif row.type == "execution":
            execution, seq = row.execution, row.seq
        else:
            assert row.seq >= seq
            seq = row.seq
            assert row.execution == execution
        assert row.stage == stage


@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_trace_pages_of_any_size_add_up_to_the_complete_trace(database: databases.Database, limit: int) -> None:
    identity = await written(database, stories.commits(seed=1))
    assert await rows(database, identity, limit=limit) == await rows(database, identity)


async def test_pages_up_to_an_entry_stay_as_they_were_while_the_log_grows(database: databases.Database) -> None:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    commits = list(stories.commits(seed=2))
    for commit in commits[: len(commits) // 2]:
        await journal.commit(*commit)
    before = await traces.read_index(database, identity)
    for commit in commits[len(commits) // 2 :]:
        await journal.commit(*commit)

    after = await traces.read_index(database, identity, upto=before.upto)

    facts = {"type", "n", "seq", "started_at", "name", "outcome"}
    assert [row.model_dump(include=facts) for row in after.rows] == [
        row.model_dump(include=facts) for row in before.rows
    ]
    assert (await traces.read_index(database, identity)).total > before.total


async def test_filters_keep_the_stages_and_executions_of_what_they_leave(database: databases.Database) -> None:
    identity = await written(database, stories.commits(seed=4))
    everything = await rows(database, identity)

    failed = await rows(database, identity, failed=True)
    named = await rows(database, identity, name="PODS_LIST")

    assert [row for row in failed if row.n] == [row for row in everything if row.n and row.failed]
    assert [row for row in named if row.n] == [row for row in everything if row.name == "k8s.pods_list"]
    for listed in (failed, named):
        executions = {row.execution for row in listed if row.type == "execution"}
        assert {row.execution for row in listed if row.n} <= executions
        assert {row.stage for row in listed} <= {row.name for row in listed if row.type == "stage"}
    assert await rows(database, identity, name="no such name") == []
    assert await rows(database, identity, run=1) == []


async def test_search_finds_calls_by_text_in_one_part_of_the_log_after_another(database: databases.Database) -> None:
    asked = stories.asks("k8s.pods_log", "k8s.pods_list")
    ran = stories.ran(asked, 1, text='a "quoted" line\nOOMKilled')
    quiet = stories.ran(asked, 0, text="nothing")
    log: list[entries.Entry] = [stories.stage_started(), stories.started()]
    log += [entry for _ in range(300) for entry in (asked, quiet, ran)]
    log.append(stories.answers("it was oomkilled", call_number=99))
    identity = await written(database, iter((entry,) for entry in log))

    for needle, models in (("oomKILLED", [301]), ('"quoted" line\nOOM', [])):
        first = await traces.read_matches(database, identity, needle=needle, after=0)
        page = first
        llm, tool = list(first.model_call_numbers), list(first.tool_call_numbers)
        while page.more:
            page = await traces.read_matches(database, identity, needle=needle, after=page.last)
            llm += page.model_call_numbers
            tool += page.tool_call_numbers
        assert first.more
        assert llm == models
        assert tool == [number * 2 for number in range(1, 301)]


async def test_events_stand_at_their_executions_in_order_of_commits(database: databases.Database) -> None:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started(), stories.started("one"), stories.started("two", index=1))
    retried = entries.ModelRetried(
        execution="one", turn=0, provider="p", model="m", attempt=1, error="busy", code="503", seconds=2.5
    )
    await journal.commit(retried, stories.answers("first", execution="two"))
    await queue.let_leases_pass(database)
    journal = await queue.opened(database, await queue.claimed(database))
    compacted = entries.ContextCompacted(execution="one", turn=0, results=(), cut=(), tokens=9, limit=8)
    away = entries.ServersAway(execution="two", servers=("k8s", "logs"))
    await journal.commit(compacted, stories.fell_back("other"), away)

    listed = await rows(database, identity)

    notes = {
        "one": [("retry", "503: busy"), ("resumed", "By claim 2, after a takeover or a rest")],
        "two": [("resumed", "By claim 2, after a takeover or a rest"), ("servers_away", "k8s, logs")],
    }
    notes["one"] += [("compaction", "Results: 0 as a line, 0 cut"), ("fallback", "To other")]
    for execution, expected in notes.items():
        assert [(row.event, row.note) for row in listed if row.event and row.execution == execution] == expected
    retry = next(row for row in listed if row.event == "retry")
    assert retry.started_at
    assert retry.ended_at
    assert (retry.ended_at - retry.started_at).total_seconds() == retry.seconds == 2.5
    failed = [row.event for row in await rows(database, identity, failed=True) if row.event]
    assert failed == ["retry", "fallback", "servers_away"]
    assert len({row.id for row in listed}) == len(listed)


async def test_page_begins_at_the_row_that_is_named(database: databases.Database) -> None:
    identity = await written(database, stories.commits(seed=7))
    listed = await rows(database, identity)
    tool = next(row for row in reversed(listed) if row.type == "tool")
    index = listed.index(tool)

    for name in (tool.id, f"{tool.execution}.{tool.tool_call_id}"):
        page = await traces.read_index(database, identity, row=name, limit=3)
        assert (page.offset, page.rows) == (index, listed[index : index + 3])
    aligned = await traces.read_index(database, identity, row=tool.id, align=10)
    assert aligned.offset == index - index % 10
    by_entry = await traces.read_index(database, identity, row=f"entry-{tool.seq}", limit=1)
    assert by_entry.rows[0].seq == tool.seq
    assert (await traces.read_index(database, identity, row="no such row", offset=2)).offset == 2

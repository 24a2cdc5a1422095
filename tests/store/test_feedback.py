"""Feedback: one opinion a person, as long as the transcript is there; on a real Postgres."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.api.investigations import exports
from tarsy.store.base import audit, databases
from tarsy.store.operations import deletion, feedback, measures, purge, retention
from tarsy.store.queue import questions
from tarsy.store.reads import changes, listing, summaries, verdicts
from tarsy.transcript import entries

ANNA, BEN = (audit.Caller(who=who, address="192.0.2.1") for who in ("anna", "ben"))
QUERY: dict[str, Any] = {"namespaces": {"tarsy": ""}}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def ended(database: databases.Database, name: str = "web-crash") -> UUID:
    identity = await queue.admit(database, queue.subject(name))
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.run_ended(final_analysis="root cause"))
    return identity


async def give(
    database: databases.Database,
    identity: UUID,
    verdict: verdicts.Verdict,
    *,
    by: audit.Caller = ANNA,
    cause: str = "",
    note: str = "",
) -> feedback.Refusal | None:
    return await feedback.give(database, identity, verdict=verdict, cause=cause, note=note, by=by)


async def opinions(database: databases.Database, identity: UUID) -> list[tuple[str, str, str, str]]:
    details = await summaries.details(database, identity)
    assert details
    return [(each.author, each.verdict, each.cause, each.note) for each in details.feedback_by_person]


async def audited(database: databases.Database) -> list[tuple[Any, ...]]:
    select = """
      SELECT who, action, detail ->> 'former_verdict', detail ->> 'verdict' FROM audit
      WHERE action LIKE 'feedback%' ORDER BY at
    """
    return await queue.rows(database, select)


async def document(database: databases.Database, identity: UUID) -> str:
    details = await summaries.details(database, identity)
    assert details
    return b"".join([part async for part in exports.as_markdown(database, details)]).decode()


async def listed(database: databases.Database, **query: Any) -> list[str]:
    page = await listing.page(database, listing.Query(**QUERY, **query), limit=9)
    assert sum(page.counts.values()) == len(page.items)
    return [row.name for row in page.items]


async def test_each_user_has_one_verdict_and_each_change_is_audited_without_its_texts(
    database: databases.Database,
) -> None:
    identity = await ended(database)
    before = await changes.now(database)
    for _ in range(2):
        assert await give(database, identity, "correct", cause="memory") is None
    assert await give(database, identity, "wrong", by=BEN, note="look again") is None
    assert await give(database, identity, "partly", cause="a limit") is None
    assert await opinions(database, identity) == [("anna", "partly", "a limit", ""), ("ben", "wrong", "", "look again")]
    exported = await document(database, identity)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \| (.*) \| 20\d\d-.* UTC \|$", exported, re.MULTILINE)
    assert rows == [("anna", "partly", "`a limit`", ""), ("ben", "wrong", "", "`look again`")]
    (row,) = (await listing.page(database, listing.Query(**QUERY), limit=9)).items
    assert row.feedback == {"correct": 0, "partly": 1, "wrong": 1}
    changed = await changes.since(database, changed=before, namespaces={"tarsy": ""}, limit=9)
    assert changed
    assert [summary.id for summary in changed.summaries] == [identity], "so that open lists and pages show it"
    for _ in range(2):
        assert await feedback.withdraw(database, identity, by=ANNA) is None
    assert await opinions(database, identity) == [("ben", "wrong", "", "look again")]
    assert await audited(database) == [
        ("anna", "feedback", None, "correct"),
        ("ben", "feedback", None, "wrong"),
        ("anna", "feedback", "correct", "partly"),
        ("anna", "feedback/withdraw", "partly", None),
    ]
    assert await queue.rows(database, "SELECT 1 FROM audit WHERE CAST(detail AS text) ~ 'memory|limit|look'") == []


async def test_feedback_is_taken_only_on_ended_and_readable_investigations(database: databases.Database) -> None:
    assert await give(database, UUID(int=5), "wrong") == "unknown"
    waiting = await queue.admit(database, queue.subject("waiting"))
    for _ in range(2):  # it waits, it runs
        assert await give(database, waiting, "wrong") == "running"
        assert await feedback.withdraw(database, waiting, by=ANNA) == "running"
        await queue.claim(database)
    identity = await ended(database)
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=BEN) == 1
    assert await give(database, identity, "wrong") is None, "while a question about it is open"
    answering = await queue.opened(database, await queue.claimed(database))
    await answering.commit(entries.RunEnded(run=1, ending="Completed", reason="Answered"))
    assert await deletion.hold(database, identity, "incident", by=BEN) is None
    assert await give(database, identity, "correct") is None, "a hold keeps, it does not close"
    assert await deletion.release(database, identity, by=BEN) is None
    assert await deletion.delete(database, identity, by=BEN) is None
    assert await give(database, identity, "wrong") == await feedback.withdraw(database, identity, by=ANNA) == "unknown"
    assert await listed(database, feedback="correct") == []
    assert await verdicts.judged(database, verdicts=["correct"], since=LONG_AGO, limit=9) == []
    assert (await measures.read(database)).feedback == {}
    assert await deletion.restore(database, identity, by=BEN) is None
    assert [verdict for _, verdict, *_ in await opinions(database, identity)] == ["correct"]
    assert await purge.purge(database, identity, by=BEN) is None
    assert await queue.rows(database, "SELECT 1 FROM feedback") == []
    assert await give(database, identity, "wrong") == "unknown"


async def test_retention_takes_feedback_with_the_transcript_and_a_hold_keeps_it(database: databases.Database) -> None:
    held, other = await ended(database, "held"), await ended(database, "other")
    for identity in (held, other):
        await give(database, identity, "wrong", note="look again")
    assert await deletion.hold(database, held, "incident", by=BEN) is None
    await queue.execute(database, "UPDATE investigations SET ended_at = ended_at - interval '9 days'")
    day, never = timedelta(days=1), timedelta()
    rule = retention.Rule(
        transcripts=day, purge=never, tool_results=day, audit=never, tool_pins=never, memory=day, window=day
    )
    await queue.execute(database, "UPDATE investigations SET gone_at = now() WHERE id = :id", id=other)
    kinds = {batch.kind async for batch in retention.batches(database, rule)}
    assert kinds >= {"transcripts", "purges", "transcript_rows", "investigations"}
    assert await queue.rows(database, "SELECT investigation, note FROM feedback") == [(held, "look again")]
    assert await opinions(database, held) == [("anna", "wrong", "", "look again")]


async def test_feedback_and_purge_at_once_leave_no_feedback_behind(database: databases.Database) -> None:
    identity = await ended(database)
    submissions = [give(database, identity, "wrong", by=audit.Caller(who=f"{n}", address="")) for n in range(8)]
    refusals = await asyncio.gather(*submissions[:4], purge.purge(database, identity, by=BEN), *submissions[4:])
    assert set(refusals) <= {None, "unknown"}
    assert await queue.rows(database, "SELECT 1 FROM feedback") == []


async def test_lists_filter_by_verdict_and_verdicts_are_read_by_time_of_last_change(
    database: databases.Database,
) -> None:
    first, second, third = [await ended(database, name) for name in ("first", "second", "third")]
    await give(database, first, "wrong", cause="the disk")
    await give(database, first, "correct", by=BEN)
    await give(database, second, "wrong")
    await give(database, second, "partly")
    assert await listed(database, feedback="wrong") == ["first"]
    assert await listed(database, feedback="correct") == ["first"]
    assert await listed(database, feedback="partly", phases=("Completed",)) == ["second"]
    assert await listed(database, feedback="none") == ["third"]
    assert third
    judged = await verdicts.judged(database, verdicts=["wrong", "partly"], since=LONG_AGO, limit=9)
    assert [(each.investigation, each.name, each.verdict, each.cause) for each in judged] == [
        (second, "second", "partly", ""),
        (first, "first", "wrong", "the disk"),
    ]
    latest = judged[0].changed_at
    assert await verdicts.judged(database, verdicts=verdicts.VERDICTS, since=latest, limit=9) == judged[:1]
    assert await verdicts.judged(database, verdicts=["wrong"], since=latest + timedelta(seconds=1), limit=9) == []
    assert len(await verdicts.judged(database, verdicts=verdicts.VERDICTS, since=LONG_AGO, limit=2)) == 2


@pytest.mark.parametrize("has_synthesis", [False, True])
async def test_verdicts_are_counted_by_chain_and_the_provider_that_concluded(
    database: databases.Database, *, has_synthesis: bool
) -> None:
    identity = await ended(database)
    ends = {"collect": ("first", "agent", 1), "analysis": ("second", "agent", 2), "summary": ("third", "summary", 9)}
    if has_synthesis:
        ends["join"] = ("fourth", "synthesis", 3)
    for name, (provider, kind, at) in ends.items():
        await queue.execute(
            database,
            """
            INSERT INTO executions (investigation, id, run, stage, kind, index, parent, name, provider, ended_at)
            VALUES (CAST(:id AS uuid), :name, 0, '', :kind, 0, '', '', :provider, now() + make_interval(secs => :at))
            """,
            id=identity,
            name=name,
            kind=kind,
            provider=provider,
            at=at,
        )
    unasked = await ended(database, "unasked")
    await give(database, identity, "wrong")
    await give(database, identity, "wrong", by=BEN)
    await give(database, unasked, "correct")
    assert (await measures.read(database)).feedback == {
        ("pod-crash", "fourth" if has_synthesis else "second", "wrong"): 2,
        ("pod-crash", "", "correct"): 1,
    }
    await queue.execute(database, "UPDATE feedback SET changed_at = changed_at - interval '31 days'")
    assert (await measures.read(database)).feedback == {}

"""Deletion in two steps, holds, and what goes by itself; on a real Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import exports, queue, scrapes, stories
from tarsy import failpoints
from tarsy.api.investigations import exports as api_exports
from tarsy.api.investigations import traces
from tarsy.cli.client import transcripts
from tarsy.config.model import platforms
from tarsy.controller import database_gauges
from tarsy.controller import retention as retention_duty
from tarsy.masking import masker
from tarsy.store.base import databases
from tarsy.store.intake import originals
from tarsy.store.operations import deletion, expiry, purge, retention
from tarsy.store.queue import questions, work
from tarsy.store.reads import listing, summaries
from tarsy.telemetry import metrics
from tarsy.tools.calls import results
from tarsy.transcript import entries

DAY = timedelta(days=1)
RULE = retention.Rule(
    transcripts=90 * DAY,
    purge=7 * DAY,
    tool_results=30 * DAY,
    audit=400 * DAY,
    tool_pins=90 * DAY,
    memory=7 * DAY,
    window=7 * DAY,
    servers=("k8s",),
)
TRANSCRIPT = ("entries", "tool_results", "executions", "stages", "runs")
BY = queue.CALLER
QUERY = listing.Query(namespaces={"tarsy": ""})


async def ended(database: databases.Database, name: str = "web-crash", *, days: float = 0, **chain: Any) -> UUID:
    """An investigation that ended so many days ago, with one tool result that the log has in part."""
    identity = await queue.admit(database, queue.subject(name), chain=queue.chain(**chain))
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(
        stories.stage_started(),
        stories.started(stage="analysis"),
        asked := stories.asks("k8s.pods_log"),
        stories.ran(asked, text="part", full_text="the whole"),
        stories.ended(),
        stories.stage_ended("analysis"),
        stories.run_ended(final_analysis="root cause"),
    )
    await date_back(database, identity, days=days)
    return identity


async def date_back(database: databases.Database, identity: UUID, *, days: float) -> None:
    await queue.execute(
        database,
        """
        UPDATE investigations SET
          admitted_at = admitted_at - make_interval(secs => :seconds),
          ended_at = ended_at - make_interval(secs => :seconds),
          deleted_at = deleted_at - make_interval(secs => :seconds),
          restored_at = restored_at - make_interval(secs => :seconds)
        WHERE id = :id
        """,
        id=identity,
        seconds=days * 86_400.0,
    )


async def work_off(database: databases.Database, rule: retention.Rule = RULE) -> dict[str, int]:
    """Everything that is due; its numbers by kind."""
    counts: dict[str, int] = {}
    async for batch in retention.batches(database, rule):
        counts[batch.kind] = counts.get(batch.kind, 0) + batch.count
    return counts


async def state(database: databases.Database, identity: UUID) -> str:
    query = "SELECT deleted_at IS NOT NULL, purged_at IS NOT NULL FROM investigations WHERE id = :id"
    rows = await queue.rows(database, query, id=identity)
    return {(False, False): "visible", (True, False): "deleted", (True, True): "purged"}[rows[0]] if rows else "gone"


async def left(database: databases.Database, identity: UUID) -> set[str]:
    """The tables that have rows of its transcript."""
    query = "SELECT 1 FROM {} WHERE investigation = :id"
    return {table for table in TRANSCRIPT if await queue.rows(database, query.format(table), id=identity)}


async def actions(database: databases.Database, identity: UUID) -> list[str]:
    query = "SELECT action FROM audit WHERE investigation = :id ORDER BY at"
    return [action for (action,) in await queue.rows(database, query, id=identity)]


async def test_deleted_investigation_is_hidden_restored_and_purged(database: databases.Database) -> None:
    identity = await ended(database)
    views = ("messages", "llm_interactions", "mcp_interactions")
    assert await queue.rows(database, "SELECT DISTINCT 1 FROM messages")
    for _ in range(2):
        assert await deletion.delete(database, identity, by=BY) is None
    assert await summaries.load(database, identity) is None
    assert await summaries.location(database, identity) is None
    assert await originals.load(database, identity) is None, "nor is it copied by a retry"
    assert (await listing.page(database, QUERY, limit=9)).items == []
    assert [await queue.rows(database, f"SELECT 1 FROM {view}") for view in views] == [[], [], []]  # noqa: S608
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=BY) == "unknown"
    assert await work.stale(database, limit=9) == []
    (left_object,) = await expiry.expired(database, namespace="tarsy", limit=9)
    assert left_object == expiry.Expired(id=identity, name="web-crash", generation=None)
    await work.gone(database, identity)

    revision = "SELECT revision, changed FROM work"
    before = await queue.rows(database, revision)
    for _ in range(2):
        assert await deletion.restore(database, identity, by=BY) is None
    restored = await summaries.load(database, identity)
    assert restored is not None
    assert restored.final_analysis == "root cause"
    assert len((await listing.page(database, QUERY, limit=9)).items) == 1
    after = await queue.rows(database, revision)
    assert after[0][0] == before[0][0] + 1
    assert after[0][1] > before[0][1], "live lists learn of it"
    assert await work.stale(database, limit=9) == [], "it has no object"
    assert await queue.rows(database, "SELECT DISTINCT 1 FROM mcp_interactions")

    assert await deletion.delete(database, identity, by=BY) is None
    assert await purge.purge(database, identity, by=BY) is None
    assert await left(database, identity) == set()
    for undo in (deletion.delete, deletion.restore, deletion.release):
        assert await undo(database, identity, by=BY) == "unknown"
    assert await deletion.hold(database, identity, "late", by=BY) == "unknown"
    assert await actions(database, identity) == ["delete", "restore", "delete", "purge"]


async def test_open_investigation_and_open_question_are_not_deleted(database: databases.Database) -> None:
    identity = await queue.admit(database)
    assert await deletion.delete(database, identity, by=BY) == "running"
    writing = await queue.opened(database, await queue.claimed(database))
    assert await deletion.delete(database, identity, by=BY) == "running"
    await writing.commit(stories.run_ended())
    await date_back(database, identity, days=91)
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=BY) == 1
    assert await deletion.delete(database, identity, by=BY) == "asked"
    assert await work_off(database) == {}
    answering = await queue.opened(database, await queue.claimed(database))
    await answering.commit(entries.RunEnded(run=1, ending="Completed", reason="Answered"))
    assert await work_off(database) == {}, "its time begins with the end of the last question"
    query = "UPDATE runs SET ended_at = ended_at - interval '91 days' WHERE number = 1"
    await queue.execute(database, query)
    assert (await work_off(database))["transcripts"] == 1
    assert await deletion.delete(database, UUID(int=5), by=BY) == "unknown"


async def test_deleted_investigation_stands_for_its_alert_until_it_is_purged(database: databases.Database) -> None:
    alert: dict[str, Any] = {"fingerprint": "6eb8c03418906421", "startsAt": "2026-11-21T00:00:00Z"}
    identity = await queue.admit(database, await queue.received(database, queue.subject(**alert)))
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.run_ended())
    assert await deletion.delete(database, identity, by=BY) is None
    await work.gone(database, identity)
    await queue.execute(database, "UPDATE investigations SET ended_at = ended_at - interval '1 day'")
    new = {
        "namespace": "tarsy",
        "fingerprint": alert["fingerprint"],
        "starts_at": queue.subject(**alert).spec.starts_at,
    }
    assert await queue.repeat(database, **new) == identity
    assert await queue.rows(database, "SELECT duplicates FROM investigations") == [(1,)]
    assert await work.stale(database, limit=9) == [], "no status shows it"


@pytest.mark.parametrize(("own", "default", "days", "goes"), [
    (10, 90, 11, True),
    (100, 90, 99, False),
    (0, 90, 3000, False),
    (None, 0, 3000, False),
    (10, 0, 11, True),
])  # fmt: skip
async def test_period_of_the_chain_counts_and_0_keeps_for_ever(
    database: databases.Database, own: int | None, default: int, days: float, *, goes: bool
) -> None:
    other = await ended(database, days=days, transcriptRetentionDays=3001)
    identity = await ended(database, days=days, transcriptRetentionDays=own)
    rule = replace(RULE, transcripts=default * DAY)
    assert (await retention.due(database, rule))["transcripts"] == int(goes)
    await work_off(database, rule)
    assert await state(database, identity) == ("deleted" if goes else "visible")
    assert await state(database, other) == "visible", "its chain keeps it for 3,001 days"


async def test_hold_keeps_from_all_of_it_until_it_ends(database: databases.Database) -> None:
    held, deleted = await ended(database, days=500), await ended(database, days=500)
    assert await deletion.hold(database, held, "incident 4711", by=BY) is None
    assert await deletion.hold(database, held, "incident 4711", by=BY) is None
    assert await deletion.delete(database, deleted, by=BY) is None
    assert await deletion.hold(database, deleted, "incident 4711", by=BY) is None
    await date_back(database, deleted, days=98)
    await queue.execute(database, "UPDATE audit SET at = at - interval '401 days'")
    refused = deletion.Held("incident 4711")
    assert await deletion.delete(database, held, by=BY) == refused
    assert await purge.purge(database, held, by=BY) == refused
    assert await purge.purge(database, deleted, by=BY) == refused
    assert await work_off(database) == {}
    assert set((await retention.due(database, RULE)).values()) == {0}
    assert await left(database, held) == await left(database, deleted) == set(TRANSCRIPT)
    summary = await summaries.load(database, held)
    assert summary is not None
    assert summary.hold == "incident 4711"
    await queue.execute(database, "UPDATE investigations SET purged_at = now()")
    assert [await purge.delete_batch(database, uid) for uid in (None, held, deleted)] == [0, 0, 0], "not even then"
    await queue.execute(database, "UPDATE investigations SET purged_at = NULL")

    for uid in (held, deleted):
        assert await deletion.release(database, uid, by=BY) is None
    counts = await work_off(database)
    assert (counts["transcripts"], counts["purges"], counts["audit"]) == (1, 1, 3)
    details = await queue.rows(database, "SELECT CAST(detail AS text) FROM audit WHERE action = 'release'")
    assert details == [('{"reason": "incident 4711"}',)] * 2


async def test_retention_first_deletes_full_tool_results_and_nothing_else(database: databases.Database) -> None:
    young, old = await ended(database, days=29.9), await ended(database, days=30.1)
    assert (await retention.due(database, RULE))["tool_results"] == 1
    assert (await work_off(database)).keys() == {"tool_results"}
    assert await left(database, young) == set(TRANSCRIPT)
    assert await left(database, old) == set(TRANSCRIPT) - {"tool_results"}
    assert await work_off(database) == {}
    assert await work_off(database, replace(RULE, tool_results=timedelta())) == {}


async def test_each_view_of_a_result_shows_that_its_full_text_was_deleted(database: databases.Database) -> None:
    """With the time and the rule; not of a result that the log has in full, nor of one that was stored later."""
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log", "k8s.pods_list")
    due = entries.SummaryDue(provider="other", tokens=50, reads=1_000)
    await writing.commit(
        stories.started(stage=""),
        asked,
        stories.ran(asked, 0, text="a part", full_text="the whole", summary=due),
        stories.ran(asked, 1, text="web-0"),
        stories.summarised("0.0", text="all is well"),
        stories.ended(),
        stories.run_ended(),
    )
    before = await exports.whole(database, identity)
    deleted = [call.full_result_deleted for call in before.mcp_interactions]
    assert deleted == [None, None]
    await date_back(database, identity, days=31)
    await queue.execute(database, "UPDATE entries SET at = at - interval '31 days'")
    assert (await work_off(database)).keys() == {"tool_results"}
    ((at,),) = await queue.rows(database, "SELECT results_deleted_at FROM investigations")
    message = f"The full text, 9 characters, was deleted on {at:%Y-%m-%d %H:%M} UTC by retention.tool_results."

    exported = await exports.whole(database, identity)
    called = await traces.read_tool_call(database, identity, number=1)
    lines = (await traces.read(database, identity, after=0, limit=9)).calls
    notices = {
        "calls": [call.full_result_deleted for call in exported.mcp_interactions],
        "messages": [message.full_result_deleted for message in exported.messages if message.role == "tool"],
        "trace": [line.full_result_deleted for line in lines if line.type == "tool"],
        "call": [called.full_result_deleted, None],
    }
    expected = {"rule": "retention.tool_results", "at": at, "length": 9, "message": message}
    for reader, (first, second) in notices.items():
        assert first is not None, reader
        assert (first.model_dump(), second) == (expected, None), reader
    assert (called.cut, called.whole, called.result, called.summary) == (True, None, "a part", "all is well")
    events = [event for event in exported.timeline if event.type == "tool_result"]
    assert [event.metadata.get("full_result_deleted") for event in events] == [message, None]
    assert [transcripts.event_text(event.model_dump(mode="json")) for event in events] == [
        f"k8s.pods_log answers: a part\n({message})",
        "k8s.pods_list answers: web-0",
    ]
    asked_for_summary = await traces.read_model_call(database, identity, number=2)
    assert (asked_for_summary.request, asked_for_summary.problem) == (None, message), "it was made of the full text"
    details = await summaries.details(database, identity)
    assert details
    markdown = b"".join([part async for part in api_exports.as_markdown(database, details)]).decode()
    assert markdown.count(message) == 1

    assert await questions.ask(database, identity, "Why?", max_queued=9, by=BY) == 1
    answering = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log", execution="two")
    begun = replace(stories.started("two", stage=""), run=1, kind="chat")
    await answering.commit(begun, asked, stories.ran(asked, text="a part", full_text="new"))
    later = await exports.whole(database, identity)
    assert [call.full_result_deleted is None for call in later.mcp_interactions] == [False, True, True]


@pytest.mark.parametrize(
    "result_text", [masker.withheld(2_000_000), f"web-0\n{results.NO_TIME.format(1_900_000)}"], ids=["all", "the rest"]
)
async def test_no_view_of_a_withheld_result_shows_it_as_deleted(database: databases.Database, result_text: str) -> None:
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log")
    ran = stories.ran(asked, text=result_text, summary=entries.SummaryDue(provider="other", tokens=50, reads=1_000))
    withheld = replace(ran, runs=(replace(ran.runs[0], length=2_000_000),))
    await writing.commit(stories.started(stage=""), asked, withheld, stories.summarised("0.0", text="all is well"))
    await writing.commit(stories.ended(), stories.run_ended())
    for is_old in (False, True):
        if is_old:
            await date_back(database, identity, days=31)
            await queue.execute(database, "UPDATE entries SET at = at - interval '31 days'")
            await work_off(database)
        exported = await exports.whole(database, identity)
        called = await traces.read_tool_call(database, identity, number=1)
        assert (called.cut, called.whole, called.result, called.full_result_deleted) == (True, None, result_text, None)
        assert [call.full_result_deleted for call in exported.mcp_interactions] == [None]
        assert "deleted" not in exported.model_dump_json(include={"timeline"})
        asked_for_summary = await traces.read_model_call(database, identity, number=2)
        assert asked_for_summary.problem == "", "it was made of the text that is shown"


async def test_purge_deletes_500_rows_or_32_mib_at_a_time_and_goes_on_where_it_was_cut_off(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and bytes are counted as each statement leaves them."""
    identity = await ended(database)
    added = """
      INSERT INTO entries (investigation, seq, claim, kind, version, run, stage, execution, body)
      SELECT :id, 1000 + number, 1, 'Answered', 1, 0, '', '', '{}' FROM generate_series(1, 1100) AS number
    """
    await queue.execute(database, added, id=identity)
    before = [(count,) for (count,) in await queue.rows(database, "SELECT count(*) FROM entries")]
    monkeypatch.setattr(failpoints, "_points", failpoints.parse("purge.batch.after=raise@2"))
    failpoints._hits.clear()
    with pytest.raises(failpoints.TriggeredError):
        await purge.purge(database, identity, by=BY)
    assert await queue.rows(database, "SELECT count(*) FROM entries") == [(before[0][0] - 1000,)]
    assert await summaries.load(database, identity) is None
    monkeypatch.setattr(failpoints, "_points", {})
    await queue.execute(database, "ALTER TABLE tool_results ALTER whole SET STORAGE EXTERNAL")  # not compressed
    await queue.execute(database, "UPDATE tool_results SET whole = repeat('x', 9600000)")
    copies = """
      INSERT INTO tool_results SELECT investigation, execution, call_id || number, whole
      FROM tool_results, generate_series(1, 7) AS number
    """
    await queue.execute(database, copies)
    counts = []
    while count := await purge.delete_batch(database, identity):
        (rows,) = await queue.rows(database, "SELECT count(*) FROM tool_results")
        counts.append((count, *rows))
    entries_left = before[0][0] - 1000
    assert counts[:2] == [(entries_left + 4, 4), (4, 0)], "9.6 MB each: the fourth begins below 32 MiB"
    assert counts[2:] == [(3 + 1, 0)], "with an execution, a stage and a run, the last rows, it is marked as empty"
    assert await left(database, identity) == set()
    assert await actions(database, identity) == ["purge"]


async def test_batches_pass_over_what_others_have_locked(database: databases.Database) -> None:
    locked, free = await ended(database, days=91), await ended(database, days=91)
    async with database.begin() as connection:
        await connection.execute(
            sqlalchemy.text("SELECT 1 FROM work WHERE investigation = :id FOR UPDATE"), {"id": locked}
        )
        await work_off(database)
        assert [await state(database, uid) for uid in (locked, free)] == ["visible", "deleted"]
    await work_off(database)
    assert await state(database, locked) == "deleted"


async def test_row_of_a_purged_investigation_stays_while_its_alert_is_remembered(database: databases.Database) -> None:
    alert: dict[str, Any] = {"fingerprint": "6eb8c03418906421", "startsAt": "2026-11-21T00:00:00Z"}
    identity = await queue.admit(database, await queue.received(database, queue.subject(**alert)))
    await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
    assert await purge.purge(database, identity, by=BY) is None
    await work.gone(database, identity)
    assert await work_off(database) == {}
    await date_back(database, identity, days=8)
    assert await work_off(database) == {}, "the identity is younger"
    await queue.execute(database, "UPDATE identities SET first_seen = first_seen - interval '8 days'")
    assert await work_off(database) == {"investigations": 1}
    for table in ("investigations", "work", "identities", "receipts"):
        assert await queue.rows(database, f"SELECT 1 FROM {table}") == [], table  # noqa: S608


async def test_audit_and_pins_go_by_periods_of_their_own(database: databases.Database) -> None:
    identity = await ended(database)
    assert await deletion.hold(database, identity, "a", by=BY) is None
    assert await deletion.release(database, identity, by=BY) is None
    await queue.execute(database, "UPDATE audit SET at = at - interval '401 days' WHERE action = 'hold'")
    pins = "INSERT INTO tool_pins (server, tool, hash, seen_at) VALUES (:server, 'a', 'b', now() - interval '91 days')"
    for server in ("k8s", "gone"):
        await queue.execute(database, pins, server=server)
    assert (await retention.due(database, RULE))["tool_pins"] == 1
    assert await work_off(database) == {"audit": 1, "tool_pins": 1}
    assert await actions(database, identity) == ["release"]
    assert await queue.rows(database, "SELECT server, seen_at > now() - interval '1 hour' FROM tool_pins") == [
        ("k8s", True)
    ]
    forever = replace(RULE, audit=timedelta(), tool_pins=timedelta(), servers=())
    await queue.execute(database, "UPDATE audit SET at = at - interval '4000 days'")
    await queue.execute(database, "UPDATE tool_pins SET seen_at = seen_at - interval '4000 days'")
    assert await work_off(database, forever) == {}


class Lease:
    """The lease of the duties, and how often the duty has looked at it."""

    def __init__(self, *, held: bool) -> None:
        self.held = held
        self.looks = 0

    def until(self) -> float:
        self.looks += 1
        return time.monotonic() + 60 if self.held else 0.0


@contextlib.asynccontextmanager
async def on_duty(
    database: databases.Database, platform: platforms.Platform, lease: Lease
) -> AsyncIterator[asyncio.Task[None]]:
    """The duty, which runs in the background."""
    duty = retention_duty.Retention(database, platform=lambda: platform, leads_until=lease.until)
    running = asyncio.create_task(duty.run())
    try:
        yield running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_duty_deletes_only_while_it_has_the_lease(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_duty, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(retention_duty, "EVERY_SECONDS", 0.0)
    identity = await ended(database, days=91)
    lease = Lease(held=False)
    async with on_duty(database, platforms.Platform(), lease) as running:

        async def pass_by() -> None:
            """Wait for two looks: a pass under way has ended at the second one."""
            before = lease.looks
            while lease.looks < before + 2:
                assert not running.done()
                await asyncio.sleep(0)

        await pass_by()
        assert await state(database, identity) == "visible"
        lease.held = True
        while await state(database, identity) == "visible":
            assert not running.done()
        lease.held = False
        await pass_by()
        later = await ended(database, "later", days=91)
        await pass_by()
        assert await state(database, later) == "visible"


async def test_retention_duty_hides_after_90_days_and_purges_after_7_more_except_holds(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the platform file's defaults. A dry run only logs and counts; the duty then goes on in another replica."""
    caplog.set_level("INFO")
    monkeypatch.setattr(retention_duty, "LOOK_SECONDS", 0.0)
    ages = {
        "young": 89.0,
        "old": 91,
        "older": 98,
        "held": 98,
        "restored": 98,
        "held later": 98,
        "brief": 8,
        "lasting": 999,
    }
    days = {"brief": 7, "lasting": 0}
    ids = {
        name: await ended(database, name, days=age, transcriptRetentionDays=days.get(name))
        for name, age in ages.items()
    }
    await queue.execute(database, "UPDATE investigations SET gone_at = now()")  # their objects went long ago
    for name in ("older", "restored", "held later"):
        assert await deletion.delete(database, ids[name], by=BY) is None
        await queue.execute(
            database, "UPDATE investigations SET deleted_at = now() - interval '8 days' WHERE id = :id", id=ids[name]
        )
    assert await deletion.restore(database, ids["restored"], by=BY) is None
    for name in ("held", "held later"):
        assert await deletion.hold(database, ids[name], "incident 4711", by=BY) is None

    async def states() -> dict[str, str]:
        return {name: await state(database, identity) for name, identity in ids.items()}

    async def run_until(text: str, **settings: Any) -> None:
        caplog.clear()
        platform = platforms.Platform(retention=platforms.Retention(**settings))
        async with on_duty(database, platform, Lease(held=True)) as running:
            while text not in caplog.text:
                assert not running.done()
                await asyncio.sleep(0)

    before = await states()
    gauges = database_gauges.DatabaseGauges(
        database, platform=platforms.Platform, leads_until=lambda: time.monotonic() + 60
    )
    await gauges.read()
    exported = metrics.render("")[0].decode()
    metrics.DUTIES.end()
    due = {kind: scrapes.total(exported, "tarsy_retention_due", kind=kind) for kind in ("transcripts", "purges")}
    assert due == {"transcripts": 2, "purges": 1}
    await run_until("retention would delete: transcripts 2, purges 1, tool_results", dry_run=True)
    assert await states() == before
    assert await left(database, ids["older"]) == set(TRANSCRIPT)

    await run_until("retention: transcripts 2, purges 1,")
    rest = {"young": "visible", "held": "visible", "restored": "visible", "lasting": "visible", "held later": "deleted"}
    assert await states() == rest | {"old": "deleted", "brief": "deleted", "older": "gone"}
    assert await left(database, ids["older"]) == set()
    for identity in ids.values():
        await date_back(database, identity, days=7.1)
    await run_until("retention: transcripts 1, purges 2,")
    assert await states() == rest | dict.fromkeys(("old", "brief", "older"), "gone") | {"young": "deleted"}
    assert await left(database, ids["held"]) == await left(database, ids["held later"]) == set(TRANSCRIPT)

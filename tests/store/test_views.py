"""Views over the log for queries in SQL: the messages, model calls and tool calls that the decoder reads."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support import exports, queue, stories
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.transcript import entries, entry_versions, messages, tool_names
from tarsy.views import transcripts

VIEWS = ("messages", "llm_interactions", "mcp_interactions")
SHOWN = ("Answered", "Unanswered", "FellBack", "ToolsAnswered", "ToolSummarised")
"""Kinds of entries that views show beside the start of an execution."""
SHARED = set(transcripts.ModelCall.model_fields) - {"n"}
CALLED = set(transcripts.ToolCall.model_fields) - {"n", "excerpt", "full_result_deleted"}
STATE = messages.ProviderState(
    provider="google-default", data=[{"text": "\u0000 and \ud83d and \\u0000", "deep": [[[{}]]]}]
)
SCHEMA = {"type": "object", "properties": {"name": {"description": "naïve \u0000 \ud83d", "default": None}}}
BOTH = stories.asks(
    "k8s.pods_log", "prometheus.query.range", text="Zuerst die Pods 🔍", thinking="größer\n\t\\u0000 ?", state=STATE
)
MORE = stories.asks("bare", call_number=1)
HURRY = messages.Message(role="user", text="Hurry.")
TRIED = replace(
    stories.CALL,
    attempts=(
        entries.Attempt(
            error="503 überlastet", usage=messages.Usage(input_tokens=7), provider="google-default", code="503"
        ),
        entries.Attempt(error=""),
    ),
    cost=0.0131,
    response_model="gemini-2.5-flash-09-2025",
    response_id="Zx3k",
)
SEARCHED = messages.NativeResult(
    tool="google_search",
    content="größer\nhttps://example.com",
    details={"queries": ["größer"], "sources": [{"title": "größer", "url": "https://example.com"}]},
)
FOUND = messages.Message(role="assistant", text="Es war der Speicher.", native=(SEARCHED, SEARCHED))
LOG: tuple[entries.Entry, ...] = (
    stories.stage_started("collect"),
    replace(stories.started("b", stage="collect"), tools=(replace(stories.TOOL, parameters=SCHEMA),)),
    stories.started("a", stage="collect", index=1),
    replace(stories.started("c", stage="collect", index=2, agent=None), tools=(), messages=()),
    stories.ended("c", "Failed", "references unknown agent"),
    replace(BOTH, execution="b", call=TRIED),
    stories.unanswered(execution="a", failure=messages.Failure(kind="timeout", text="nothing within 120 s")),
    stories.ran(replace(BOTH, execution="b"), 1, text="", failed=True),
    stories.asks("k8s.pods_log", "k8s.pods_log", "k8s.scale", execution="a", call_number=1),
    stories.ran(replace(BOTH, execution="b"), 0, text='{"a": "\\u0000"}'),
    stories.ran(
        stories.asks("k8s.pods_log", "k8s.pods_log", "k8s.scale", execution="a", call_number=1),
        1,
        0,
        full_text="größer\n" * 9,
        summary=entries.SummaryDue(provider="other", tokens=50, reads=9),
    ),
    replace(MORE, execution="b"),
    stories.summarised("1.1", execution="a", call_number=2, failure=replace(stories.FATAL, code="503")),
    stories.summarised(
        "1.0", execution="a", call_number=2, text="größer, 3 times", call=replace(stories.CALL, cost=0.0)
    ),
    stories.ran(
        stories.asks("k8s.pods_log", "k8s.pods_log", "k8s.scale", execution="a", call_number=1),
        2,
        text="unknown",
        failed=True,
        in_doubt=True,
    ),
    stories.unanswered(HURRY, execution="a", call_number=2, failure=messages.Failure(kind="rejected", text="")),
    stories.ran(replace(MORE, execution="b")),
    stories.unanswered(
        stories.CONCLUDE, execution="b", call_number=2, failure=messages.Failure(kind="rejected", text="?")
    ),
    entries.Answered(execution="a", turn=3, messages=(FOUND,), call=replace(stories.CALL, cost=0.0)),
    stories.answers("root cause: größer", execution="b", call_number=3, before=(HURRY, stories.CONCLUDE)),
    stories.ended("a"),
    stories.ended("b"),
    stories.stage_ended("collect"),
    stories.stage_started("analysis"),
    stories.started("d"),
    stories.fell_back(execution="d", call=replace(TRIED, cost=0.5)),
    stories.fell_back("third", execution="d"),
    stories.unanswered(execution="d", failure=replace(stories.FATAL, code="context_overflow")),
    stories.ended("d", "Failed", stories.FATAL.text),
    stories.stage_ended("analysis", "Failed", "no answer"),
    stories.stage_ended("report", "Skipped", "skipped by failurePolicy Stop"),
    stories.run_ended("Failed", "StagesFailed", final_analysis="root cause: größer"),
)


async def write_log(database: databases.Database) -> UUID:
    """An investigation with all kinds of entries, one commit each, with takeovers among them."""
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    for number, entry in enumerate(LOG):
        if number % 7 == 6:
            await queue.let_leases_pass(database)
            writing = await queue.opened(database, await queue.claimed(database))
        await writing.commit(entry)
    return identity


async def view(database: databases.Database, name: str, identity: UUID) -> list[dict[str, Any]]:
    """The rows of one investigation in the order that people are told to use."""
    columns = [str(name) for (name,) in await queue.rows(database, _COLUMNS, view=name)]
    rows = await queue.rows(
        database,
        f"SELECT * FROM {name} WHERE investigation = :id ORDER BY seq",  # noqa: S608 - a test's own word
        id=identity,
    )
    return [dict(zip(columns, row, strict=True)) for row in rows]


_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:view AS regclass) AND attnum > 0 ORDER BY attnum"


def as_shown(row: dict[str, Any]) -> dict[str, Any]:
    """A message of the view as the API shows it, with its tool's name in two."""
    added = {"native_results": row["native"], "full_result_deleted": None}
    split = row | tool_names.fields(row["tool_name"]) | added
    return {name: split[name] for name in transcripts.Message.model_fields}


def with_cost(row: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """These columns of a call of the view, its cost as the API shows it."""
    cost = row["cost"]
    call = row | {"failed_requests": row["attempts"], "cost": None if cost is None else investigations.cost_text(cost)}
    return {name: call[name] for name in names}


async def test_messages_are_what_the_decoder_reads(database: databases.Database) -> None:
    identity = await write_log(database)
    decoded = (await exports.whole(database, identity)).messages
    rows = await view(database, "messages", identity)
    by_place = {(row["execution"], row["position"]): row for row in rows}
    assert len(by_place) == len(rows) == len(decoded)
    for message in decoded:
        row = by_place[message.execution, message.position]
        assert as_shown(row) == message.model_dump(), message


async def test_llm_interactions_are_what_the_decoder_reads(database: databases.Database) -> None:
    identity = await write_log(database)
    decoded = (await exports.whole(database, identity)).llm_interactions
    rows = await view(database, "llm_interactions", identity)
    assert [with_cost(row, SHARED) for row in rows] == [call.model_dump(include=SHARED) for call in decoded]
    assert [(row["tool_call_id"], row["context_messages"]) for row in rows if row["tool_call_id"]] == [
        ("1.1", 2),
        ("1.0", 2),
    ]
    assert {row["failure"] for row in rows} == {None, "timeout", "rejected", "fatal"}
    assert {row["failure_code"] for row in rows} == {None, "", "503", "context_overflow"}
    assert {row["cost"] for row in rows} == {None, 0.0, 0.0131, 0.5}
    assert [row["turn"] for row in rows if row["execution"] == "d"] == [0, 0, 0]


async def test_the_numbers_of_executions_and_runs_are_the_sums_of_their_calls(database: databases.Database) -> None:
    """Requests to providers that came to nothing count and cost, too."""
    identity = await write_log(database)
    summed = """
      SELECT id, iterations, executions.total_tokens, executions.cost, executions.provider,
        count(call.seq), sum(call.total_tokens), sum(call.cost)
      FROM executions LEFT JOIN llm_interactions AS call ON call.investigation = :id AND execution = id
      WHERE executions.investigation = :id GROUP BY executions.investigation, id ORDER BY id
    """
    rows = await queue.rows(database, summed, id=identity)
    assert [row[1:4] for row in rows] == [row[5:] if row[5] else (0, 0, None) for row in rows]
    by_id = {row[0]: row[3:5] for row in rows}
    own = "google-default"
    assert by_id == {"a": (0.0, own), "b": (0.0131, own), "c": (None, ""), "d": (0.5, "third")}
    export = await exports.whole(database, identity)
    assert {each.id: each.provider for each in export.executions} == {name: last for name, (_, last) in by_id.items()}
    assert export.llm_calls == len(export.llm_interactions)
    assert export.total_tokens == sum(call.total_tokens for call in export.llm_interactions)
    assert export.cost == export.runs[0].cost == "0.5131"


async def test_calls_without_a_price_add_nothing_to_a_cost_and_alone_have_none(database: databases.Database) -> None:
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.stage_started(), stories.started(), stories.unanswered())
    exported = await exports.whole(database, identity)
    assert (exported.cost, exported.runs[0].cost) == (None, None)
    await writing.commit(replace(stories.answers(call_number=1), call=TRIED))
    await writing.commit(replace(stories.answers(call_number=2), call=TRIED), stories.unanswered(call_number=3))
    exported = await exports.whole(database, identity)
    assert (exported.cost, exported.runs[0].cost) == ("0.0262", "0.0262")


WRITTEN = {
    (row["kind"], row["version"]): row
    for path in sorted((Path(__file__).parents[1] / "unit" / "recorded").glob("entries-v*.json"))
    for row in json.loads(path.read_bytes()).values()
}


@pytest.mark.parametrize(
    "version", sorted({version for kind, version in WRITTEN if kind in ("ExecutionStarted", *SHOWN)})
)
async def test_entries_of_earlier_versions_are_shown_in_their_decoded_form(
    database: databases.Database, version: int
) -> None:
    """But for attempts, which are shown as they were written."""
    identity = await queue.admit(database)
    kinds = ("ExecutionStarted", *SHOWN)
    log = [WRITTEN[kind, min(version, entry_versions.VERSIONS[kind])] for kind in kinds]
    for seq, row in enumerate(log, 1):
        await queue.execute(
            database,
            """
              INSERT INTO entries
                (investigation, seq, claim, kind, version, run, stage, execution, body, opaque, messages)
              VALUES
                (:id, :seq, 1, :kind, :version, 0, 'analysis', 'one', CAST(:body AS json), CAST(:opaque AS json), :said)
            """,
            id=identity,
            seq=seq,
            said=sum(len(json.loads(row["body"]).get(name, ())) for name in ("messages", "runs")),
            **{name: row[name] for name in ("kind", "version", "body", "opaque")},
        )
    await queue.execute(database, "UPDATE work SET log_seq = :last", last=len(log))
    decoded = await exports.whole(database, identity)
    assert not decoded.unreadable
    rows = await view(database, "messages", identity)
    by_place = sorted(rows, key=lambda row: row["position"])
    assert [as_shown(row) for row in by_place] == [message.model_dump() for message in decoded.messages]
    called = await view(database, "llm_interactions", identity)
    columns = set(transcripts.ModelCall.model_fields) - {"failed_requests", "n"}
    assert [with_cost(row, columns) for row in called] == [
        call.model_dump(include=columns) for call in decoded.llm_interactions
    ]
    assert len(called) == len(SHOWN) - 1
    assert [row["tool_call_id"] for row in called] == ["", "", "", "0.0"]
    assert len(await view(database, "mcp_interactions", identity)) == len(decoded.mcp_interactions) > 0


async def test_messages_of_a_call_are_those_before_its_number(database: databases.Database) -> None:
    """The query of the documentation: what the model saw, and what it said to it."""
    identity = await write_log(database)
    sent = await queue.rows(
        database,
        """
          SELECT call.execution, call.turn, array_agg(message.text ORDER BY message.position)
          FROM llm_interactions AS call
          JOIN messages AS message USING (investigation, execution)
          WHERE investigation = :id AND message.position < call.context_messages AND message.role = 'user'
          GROUP BY call.execution, call.turn, call.seq ORDER BY call.seq
        """,
        id=identity,
    )
    by_call = {(execution, call_number): texts[1:] for execution, call_number, texts in sent}
    assert by_call == {
        ("b", 0): [],
        ("a", 0): [],
        ("a", 1): [],
        ("b", 1): [],
        ("a", 2): ["Hurry."],
        ("b", 2): ["Conclude now."],
        ("a", 3): ["Hurry."],
        ("b", 3): ["Conclude now.", "Hurry.", "Conclude now."],
        ("d", 0): [],
    }


async def test_mcp_interactions_are_what_the_decoder_reads(database: databases.Database) -> None:
    identity = await write_log(database)
    exported = await exports.whole(database, identity)
    results = {(reply.execution, reply.tool_call_id): reply for reply in exported.messages if reply.role == "tool"}
    rows = [row | {"tool_call_id": row["call_id"]} for row in await view(database, "mcp_interactions", identity)]
    assert [{name: row[name] for name in CALLED} for row in rows] == [
        call.model_dump(include=CALLED) for call in exported.mcp_interactions
    ]
    for call in exported.mcp_interactions:
        result = results[call.execution, call.tool_call_id]
        assert (call.result, call.failed, call.in_doubt) == (result.text, result.failed, result.in_doubt)
        assert (call.server_name, call.tool_name) == (result.server_name, result.tool_name)
    assert {(row["server_name"], row["tool_name"]) for row in rows} == {
        ("k8s", "pods_log"),
        ("k8s", "scale"),
        ("prometheus", "query.range"),
        ("", "bare"),
    }


async def test_versions_and_kinds_that_a_view_does_not_know_are_not_in_it(database: databases.Database) -> None:
    identity = await write_log(database)
    before = {name: await view(database, name, identity) for name in VIEWS}
    await queue.execute(
        database,
        """
          INSERT INTO entries (investigation, seq, claim, kind, version, run, stage, execution, body)
          SELECT investigation, log_seq + number, 1, kind, version, 0, 'analysis', 'a', body
          FROM work, (
            SELECT row_number() OVER () AS number, source.kind, source.body, made.version FROM entries AS source,
              LATERAL (VALUES (CAST(CAST(:versions AS json) ->> kind AS integer) + 1), (0)) AS made (version)
          ) AS copies
        """,
        versions=json.dumps(entry_versions.VERSIONS),
    )
    await queue.execute(
        database, "UPDATE entries SET kind = 'Pondered' WHERE seq % 3 = 0 AND seq > :told", told=len(LOG)
    )
    assert {name: await view(database, name, identity) for name in VIEWS} == before

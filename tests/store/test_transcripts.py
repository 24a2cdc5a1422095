"""Messages, calls and exports of logs in Postgres: whole on pages of any size, of one moment, and never in the way."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support import exports, queue, stories
from support.transcripts import turns, written
from tarsy.api.investigations import exports as export
from tarsy.api.investigations import reads, traces
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import log_entries, summaries, transcript_pages
from tarsy.transcript import entries, messages
from tarsy.views import investigations, transcripts
from tarsy.views import traces as trace_views


def side_by_side() -> list[entries.Entry]:
    """Three agents whose entries mix."""
    dice = random.Random(7)  # noqa: S311 - which one comes next
    left = {name: turns(name, count=count) for name, count in (("a", 3), ("b", 1), ("c", 5))}
    log: list[entries.Entry] = [stories.stage_started()]
    log += [stories.started(name, index=index) for index, name in enumerate(left)]
    while left:
        name = dice.choice(sorted(left))
        log.append(left[name].pop(0))
        if not left[name]:
            del left[name]
            log.append(stories.ended(name))
    return [*log, stories.stage_ended(), stories.run_ended(final_analysis="root cause")]


async def test_pages_of_any_size_add_up_to_the_transcript_and_call_numbers_never_change(
    database: databases.Database,
) -> None:
    log = side_by_side()
    exported = await exports.whole(database, await written(database, log))
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    paged_messages: list[transcripts.Message] = []
    calls: list[trace_views.Line] = []
    page, trace = transcripts.Messages(messages=[], last=0, more=True), trace_views.Trace(calls=[], last=0, more=True)
    for size, committed in ((1, log[:5]), (2, log[5:20]), (3, log[20:30]), (500, log[30:])):
        await journal.commit(*committed)
        while page.messages or page.more:
            page = await reads.read_messages(database, identity, after=page.last, limit=size)
            paged_messages += page.messages
        while trace.calls or trace.more:
            trace = await traces.read(database, identity, after=trace.last, limit=size)
            calls += trace.calls
        page, trace = page.model_copy(update={"more": True}), trace.model_copy(update={"more": True})
    assert [message.model_dump(exclude={"created_at"}) for message in paged_messages] == [
        message.model_dump(exclude={"created_at"}) for message in exported.messages
    ]
    models, tools = ([row for row in calls if row.type == kind] for kind in ("llm", "tool"))
    assert [(row.n, row.seq) for row in models] == [(row.n, row.seq) for row in exported.llm_interactions]
    assert [(row.n, row.seq) for row in tools] == [(row.n, row.seq) for row in exported.mcp_interactions]
    for line in tools:
        tool_call = await traces.read_tool_call(database, identity, number=line.n)
        by = await traces.read_model_call(database, identity, number=tool_call.asked_by)
        assert by.answer
        assert tool_call.tool_call_id in [call.id for call in by.answer.tool_calls]
        assert (tool_call.seq, tool_call.execution, by.execution) == (line.seq, line.execution, line.execution)
    for find, kind in ((traces.read_model_call, "llm"), (traces.read_tool_call, "tool")):
        with pytest.raises(problems.Problem, match=f"the trace has no {kind} call 99 yet"):
            await find(database, identity, number=99)


async def test_an_export_is_of_the_moment_in_which_it_began(database: databases.Database) -> None:
    log = side_by_side()
    identity = await written(database, log[:30])
    head = await summaries.details(database, identity)
    assert head is not None
    journal = await queue.opened(database, await retaken(database))
    pieces = export.as_json(database, head)
    first = await anext(pieces)
    await journal.commit(*log[30:])
    rest = b"".join([piece async for piece in pieces])
    exported = investigations.Export.model_validate_json(first + rest)
    assert {message.seq for message in exported.messages} <= set(range(1, 31))
    assert max(event.seq for event in exported.timeline) <= 30
    assert None in {execution.outcome for execution in exported.executions}, "they end later"
    assert (exported.log_seq, exported.phase) == (30, "Running")
    assert (await exports.whole(database, identity)).phase == "Completed"
    assert b"c2VjcmV0" not in first + rest


async def retaken(database: databases.Database) -> work.Claim:
    await queue.let_leases_pass(database)
    return await queue.claimed(database)


async def test_export_fails_if_the_transcript_is_deleted_meanwhile(database: databases.Database) -> None:
    identity = await written(database, side_by_side())
    head = await summaries.details(database, identity)
    assert head is not None
    pieces = export.as_json(database, head)
    await anext(pieces)
    await queue.execute(database, "UPDATE investigations SET purged_at = now()")
    with pytest.raises(export.GoneError):
        async for _ in pieces:
            pass


async def test_secret_in_instructions_is_in_no_answer(database: databases.Database) -> None:
    """Chains and agents' instructions are kept as they were written: agents run with them."""
    secret = "ghp_" + "0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX"
    instruction = f"Send it to the webhook with {secret}."
    agents = [{"name": "Own", "customInstructions": instruction, "mcpServers": []}]
    chain = queue.chain(agents=agents, stages=[{"name": "analysis", "agent": "Own"}])
    identity = await queue.admit(database, chain=chain)
    agent = replace(stories.AGENT, custom_instructions=instruction, server_instructions=(("k8s", instruction),))
    prompt = messages.Message(role="system", text=f"You are an agent. {instruction}")
    log: list[entries.Entry] = [
        stories.stage_started(),
        replace(stories.started(agent=agent), messages=(prompt, stories.PROMPT[1])),
        stories.answers("root cause"),
        stories.ended(),
    ]
    await (await queue.opened(database, await queue.claimed(database))).commit(*log)
    head = await summaries.details(database, identity)
    assert head is not None
    assert secret in str(head.chain)
    assert secret in str((await log_entries.load(database, identity))[1])
    exported = await exports.whole(database, identity)
    assert exported.chain
    assert exported.chain.root["agents"][0]["name"] == "Own"
    answers = [
        exported.model_dump_json(),
        (await reads.read(database, identity)).model_dump_json(),
        (await reads.read_messages(database, identity, after=0, limit=500)).model_dump_json(),
        (await traces.read_model_call(database, identity, number=1)).model_dump_json(),
        b"".join([piece async for piece in export.as_markdown(database, head)]).decode(),
    ]
    for answer in answers:
        assert secret not in answer
        assert "[MASKED" in answer


async def test_export_has_each_event_once(database: databases.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = await written(database, side_by_side())
    exported = await exports.whole(database, identity)
    monkeypatch.setattr(transcript_pages, "BATCH_ENTRIES", 3)
    again = await exports.whole(database, identity)
    assert again == exported
    assert len({event.id for event in again.timeline}) == len(again.timeline)


WHOLE = "".join(f"line {number}, größer\n" for number in range(9_000))

DUE = entries.SummaryDue(provider="other", tokens=50, reads=1_000)


def summed_up() -> list[entries.Entry]:
    """Two long results and a short one; the first is summed up, with the second it was tried."""
    asked = replace(stories.asks("k8s.pods_log", "k8s.pods_log", "k8s.pods_list"), execution="one")
    return [
        stories.stage_started(),
        stories.started(),
        asked,
        stories.ran(asked, 0, text="line 0, größer\n[cut]\n", full_text=WHOLE, summary=DUE),
        stories.ran(asked, 1, text=f"{WHOLE[:2000]}", summary=DUE),
        stories.ran(asked, 2, text="web-0"),
        stories.summarised("0.1", failure=stories.OVERLOADED),
        stories.summarised("0.0", text="größer, 9,000 times"),
        stories.answers("so", call_number=1),
    ]


async def test_shortened_result_is_served_with_its_full_text_and_the_text_the_model_read(
    database: databases.Database,
) -> None:
    identity = await written(database, summed_up())
    first, second, third = [await traces.read_tool_call(database, identity, number=number) for number in (1, 2, 3)]
    assert (first.cut, first.whole, first.summary) == (True, WHOLE, "größer, 9,000 times")
    assert first.result == "line 0, größer\n[cut]\n"
    assert (second.cut, second.whole, second.summary, second.result) == (False, None, None, WHOLE[:2000])
    assert (third.cut, third.whole, third.summary, third.result) == (False, None, None, "web-0")


async def test_summary_is_a_model_call_of_the_trace_with_its_request(database: databases.Database) -> None:
    identity = await written(database, summed_up())
    lines = [line for line in (await traces.read(database, identity, after=0, limit=500)).calls if line.type == "llm"]
    assert [(line.n, line.tool_call_id, line.outcome) for line in lines] == [
        (1, "", "ok"),
        (2, "0.1", "failed"),
        (3, "0.0", "ok"),
        (4, "", "ok"),
    ]
    tried, summary, read = [await traces.read_model_call(database, identity, number=number) for number in (2, 3, 4)]
    assert (tried.answer, tried.failure_code) == (None, "503")
    assert summary.answer
    assert (summary.answer.text, summary.problem, summary.context_messages) == ("größer, 9,000 times", "", 2)
    for call, full_text in ((tried, WHOLE[:2000]), (summary, WHOLE)):
        assert call.request
        system, user = call.request.messages
        assert "<!-- DATA 0123abcd START -->" in system.text, "the word that it was asked with"
        assert user.text.startswith("Investigation: tarsy/web-crash\n")
        excerpt = user.text.rpartition("<!-- DATA 0123abcd START -->\n")[2]
        assert (excerpt.startswith(full_text[:300]), f"{full_text[-600:]}\n<!--" in excerpt) == (True, True)
        assert "are left out here]" in excerpt, "it was shown 1,000 characters"
    assert read.request
    texts = {sent.tool_call_id: sent.text for sent in read.request.messages if sent.role == "tool"}
    assert texts["0.0"].endswith("\ngrößer, 9,000 times"), "the agent read the summary"
    assert (texts["0.1"], texts["0.2"]) == (WHOLE[:2000], "web-0")

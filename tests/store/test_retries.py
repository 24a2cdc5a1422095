"""Investigations that run an ended one again: what is copied, what is counted, and what needs a receipt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from support import lock_waits, manifests, queue, stories
from tarsy.api.investigations import traces
from tarsy.config.check import chain_index
from tarsy.ingest import decision, manifest
from tarsy.masking import known_secrets
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.store.intake import episodes, originals, queueing, receipts
from tarsy.store.operations import purge
from tarsy.store.reads import listing, log_entries, related, transcript_pages
from tarsy.transcript import admission, entries

NAMES = ("collect", "analysis", "remedy")
CHAIN = queue.chain(stages=[manifests.stage(name) for name in NAMES])
START = datetime(2026, 11, 21, 20, 26, 18, tzinfo=UTC)
FINGERPRINT = "6eb8c03418906421"
RETRIED = replace(stories.CALL, retries=7)


async def ended(
    database: databases.Database,
    ending: entries.Ending = "Completed",
    *,
    stages: tuple[str, ...] = NAMES,
    subject: investigations.AlertInvestigation | None = None,
    runbook: str = "",
) -> UUID:
    """An investigation of which these stages have run, each with a long result of a tool and a repeated request."""
    identity = await queue.admit(database, subject, chain=CHAIN)
    journal = await queue.opened(database, await queue.claimed(database))
    if runbook:
        await journal.commit(entries.RunbookRead(url="https://wiki/runbook", origin="url", text=runbook))
    for stage in stages:
        execution = f"{identity} {stage}"
        asked = stories.asks("k8s.pods_log", execution=execution, text=f"{stage} looks")
        await journal.commit(stories.stage_started(stage), stories.started(execution, stage=stage))
        await journal.commit(replace(asked, call=RETRIED))
        await journal.commit(stories.ran(asked, text="a part", full_text=f"all that {stage} saw"))
        await journal.commit(
            stories.answers(f"{stage} found it", execution=execution, call_number=1),
            stories.ended(execution),
            stories.stage_ended(stage),
        )
    reason = "StagesCompleted" if ending == "Completed" else "StagesFailed"
    await journal.commit(stories.run_ended(ending, reason, final_analysis="the disk is full"))
    return identity


async def draft(
    database: databases.Database, identity: UUID, *, from_stage: str | None = None
) -> tuple[manifest.Draft, admission.Original]:
    original = await originals.load(database, identity)
    assert original
    drafted = manifest.draft_of_retry(
        original, from_stage=from_stage, is_chain_current=False, author="mia", idempotency_key=None
    )
    return drafted, original


async def admission_of(
    database: databases.Database, identity: UUID, *, from_stage: str | None = None, proven: bool = True
) -> admission.Admission:
    """The admission of a new object that runs `identity` again, with the receipt of the API or without one."""
    drafted, original = await draft(database, identity, from_stage=from_stage)
    word = "0" * 32
    if proven:
        fingerprint, starts_ms = drafted.episode
        receipt = await receipts.issue(
            database,
            namespace=drafted.namespace,
            fingerprint=fingerprint,
            starts_ms=starts_ms,
            name=drafted.name,
            digest=drafted.digest,
            window=queue.RULE.window,
        )
        word = receipt.word
    spec = drafted.with_receipt(name=drafted.name, word=word, pages=None).manifest["spec"]
    made = queue.subject(drafted.name).model_copy(update={"spec": investigations.Spec.model_validate(spec)})
    return decision.decide(
        made,
        chain_index.ChainIndex([], platform=queue.PLATFORM, unusable_providers={}, namespace="tarsy", own="tarsy"),
        mask=str,
        secrets=known_secrets.KnownSecrets(),
        original=original,
    )


async def retry(database: databases.Database, identity: UUID, *, from_stage: str | None = None) -> UUID:
    decided = await admission_of(database, identity, from_stage=from_stage)
    assert await queueing.admit(database, decided)
    return UUID(decided.id)


async def test_retry_begins_with_the_work_of_the_earlier_stages(database: databases.Database) -> None:
    first = await ended(database, runbook="Look at the disks.")
    again = await retry(database, first, from_stage="remedy")

    journal = await queue.opened(database, await queue.claimed(database))
    original = [row for row in await queue.log(database, first) if row.stage in NAMES[:2] or row.seq == 1]
    copied = await queue.log(database, again)
    assert [(row.stage, row.execution, row.at, row.entry) for row in copied] == [
        (row.stage, row.execution, row.at, row.entry) for row in original
    ]
    assert [(row.seq, row.claim) for row in copied] == [(seq, 1) for seq in range(1, len(original) + 1)]
    run = journal.record.runs[entries.INVESTIGATION]
    assert run.runbook
    assert run.runbook.text == "Look at the disks."
    assert {name: stage.agents[0].analysis for name, stage in run.stages.items()} == {
        "collect": "collect found it",
        "analysis": "analysis found it",
    }
    assert await transcript_pages.full_result(database, again, f"{first} collect", "0.0") == "all that collect saw"


async def test_copies_count_in_no_sum(database: databases.Database) -> None:
    first = await ended(database)
    again = await retry(database, first, from_stage="remedy")

    assert (await queue.summary(database, first)).total_tokens > 0
    summary = await queue.summary(database, again)
    sums = (summary.total_tokens, summary.input_tokens, summary.llm_calls, summary.tool_calls, summary.cost)
    assert sums == (0, 0, 0, 0, None)
    listed = (await listing.page(database, listing.Query(namespaces={"tarsy": ""}), limit=9)).items
    assert {row.id: row.total_tokens > 0 for row in listed} == {first: True, again: False}
    journal = await queue.opened(database, await queue.claimed(database))
    assert journal.record.runs[entries.INVESTIGATION].retries == 0, "the limit of repeated requests is its own"


async def test_takeover_of_a_retry_reads_the_copied_entries_and_its_own_entries(database: databases.Database) -> None:
    first = await ended(database)
    again = await retry(database, first, from_stage="analysis")
    journal = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log", execution="new")
    await journal.commit(stories.stage_started("analysis"), stories.started("new", stage="analysis"))
    await journal.commit(replace(asked, call=replace(stories.CALL, retries=2)))
    await queue.let_leases_pass(database)

    takeover = await queue.opened(database, await queue.claimed(database))
    assert takeover.record == journal.record
    assert takeover.record.runs[entries.INVESTIGATION].retries == 2
    summary = await queue.summary(database, again)
    assert (summary.llm_calls, summary.total_tokens) == (1, 123)


async def test_complete_retry_copies_no_stage_results(database: databases.Database) -> None:
    first = await ended(database, runbook="Look at the disks.")
    again = await retry(database, first)
    assert not await queue.log(database, again)
    summary = await queue.summary(database, again)
    assert summary.retry_of == related.RetryOf(id=first, name="web-crash", from_stage=None)
    assert [stage.is_copy for stage in summary.stage_list] == [False, False, False]


async def test_both_know_each_other(database: databases.Database) -> None:
    first = await ended(database)
    before = await queue.summary(database, first)
    again = await retry(database, first, from_stage="analysis")
    newest = await retry(database, first, from_stage="remedy")

    retried, original = await queue.summary(database, again), await queue.summary(database, first)
    assert retried.retry_of == related.RetryOf(id=first, name="web-crash", from_stage="analysis")
    assert [stage.is_copy for stage in retried.stage_list] == [True, False, False]
    assert original.retried_by
    assert original.retried_by.id == newest
    assert original.stale
    assert original.revision == before.revision + 2
    by_id = {row.id: row for row in await _listed(database)}
    assert by_id[again].retry_of == retried.retry_of
    assert by_id[first].retried_by == original.retried_by


async def _listed(database: databases.Database) -> list[listing.Listed]:
    return list((await listing.page(database, listing.Query(namespaces={"tarsy": ""}), limit=9)).items)


async def test_retry_of_a_retry_copies_the_copies(database: databases.Database) -> None:
    first = await ended(database)
    again = await retry(database, first, from_stage="remedy")
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(
        entries.StageStarted(stage="remedy", clock=0),
        stories.started("new", stage="remedy"),
        stories.ended("new", "Failed", "no answer"),
        stories.stage_ended("remedy", "Failed", "no answer"),
        stories.run_ended("Failed", "StagesFailed"),
    )
    third = await retry(database, again, from_stage="remedy")
    assert [row.entry for row in await queue.log(database, third)] == [
        row.entry for row in (await queue.log(database, again))[: len(await queue.log(database, third))]
    ]
    assert (await queue.summary(database, third)).retry_of == related.RetryOf(
        id=again, name=(await queue.summary(database, again)).name, from_stage="remedy"
    )


async def test_object_without_a_receipt_is_refused_and_gets_nothing(database: databases.Database) -> None:
    first = await ended(database)
    decided = await admission_of(database, first, from_stage="remedy", proven=False)
    assert await queueing.admit(database, decided)

    summary = await queue.summary(database, decided.id)
    assert (summary.phase, summary.reason, summary.message) == ("Failed", "RetryNotProven", queueing.UNPROVEN)
    assert (summary.chain_name, summary.retry_of) == (None, None)
    (end,) = await queue.log(database, decided.id)
    assert isinstance(end.entry, entries.RunEnded)
    assert (await queue.summary(database, first)).retried_by is None
    assert not await queue.rows(database, "SELECT * FROM stages WHERE investigation = :id", id=UUID(decided.id))


@pytest.mark.parametrize("state", ["open", "unknown stage", "unknown", "purged"])
async def test_object_without_a_receipt_learns_nothing_of_the_investigation_that_it_names(
    database: databases.Database, state: str
) -> None:
    """The refusal is the same whatever the investigation is, and names none of its stages."""
    uid = queue.subject().metadata.uid
    if state == "open":
        uid = str(await queue.admit(database, chain=CHAIN))
    elif state != "unknown":
        uid = str(await ended(database))
    if state == "purged":
        assert await purge.purge(database, UUID(uid), by=queue.CALLER) is None
    retry_of = {"name": "web-crash", "uid": uid, "fromStage": "another" if state == "unknown stage" else "remedy"}
    theirs = queue.subject("theirs", retryOf=retry_of)
    decided = decision.decide(
        theirs,
        chain_index.ChainIndex([CHAIN], platform=queue.PLATFORM, unusable_providers={}, namespace="tarsy", own="tarsy"),
        mask=str,
        secrets=known_secrets.KnownSecrets(),
        original=await originals.load(database, UUID(uid)),
    )
    assert await queueing.admit(database, decided)
    summary = await queue.summary(database, theirs.metadata.uid)
    assert (summary.reason, summary.message) == ("RetryNotProven", queueing.UNPROVEN)


async def test_copy_of_an_object_with_a_receipt_is_refused(database: databases.Database) -> None:
    first = await ended(database)
    decided = await admission_of(database, first, from_stage="remedy")
    assert await queueing.admit(database, decided)
    theirs = replace(decided, id=queue.subject().metadata.uid)
    assert await queueing.admit(database, theirs)
    assert (await queue.summary(database, theirs.id)).reason == "RetryNotProven"


@pytest.mark.parametrize("from_stage", ["remedy", None])
async def test_retry_of_a_purged_investigation_is_refused_if_it_needs_the_transcript(
    database: databases.Database, from_stage: str | None
) -> None:
    first = await ended(database)
    decided = await admission_of(database, first, from_stage=from_stage)
    assert await purge.purge(database, first, by=queue.CALLER) is None
    assert await queueing.admit(database, decided)
    summary = await queue.summary(database, decided.id)
    if from_stage:
        assert (summary.reason, summary.ending) == ("NotRetriable", "Failed")
    else:
        assert summary.phase == "Queued", "its object has the alert, and the decision has the chain"


async def test_retry_during_a_purge_gets_a_complete_copy_or_is_refused(database: databases.Database) -> None:
    for _ in range(10):
        first = await ended(database)
        decided = await admission_of(database, first, from_stage="remedy")
        _, refused = await asyncio.gather(
            queueing.admit(database, decided), purge.purge(database, first, by=queue.CALLER)
        )
        assert refused is None
        summary = await queue.summary(database, decided.id)
        log = await queue.log(database, decided.id)
        if summary.ending is None:
            assert [row.seq for row in log] == list(range(1, 15))
            journal = await queue.opened(database, await queue.claimed(database))
            assert set(journal.record.stages) == {"collect", "analysis"}
            await journal.commit(stories.run_ended("Failed", "StagesFailed"))
        else:
            assert (summary.reason, len(log)) == ("NotRetriable", 1)


async def test_audit_records_caller_and_stage_of_a_retry(database: databases.Database) -> None:
    first = await ended(database)
    again = await retry(database, first, from_stage="remedy")
    statement = (
        "SELECT action, who, detail ->> 'retry_of', detail ->> 'from_stage' FROM audit WHERE investigation = :id"
    )
    assert await queue.rows(database, statement, id=again) == [("retry", "mia", str(first), "remedy")]


async def _alert(database: databases.Database, ending: entries.Ending) -> UUID:
    wanted = queue.subject("web-alert", fingerprint=FINGERPRINT, startsAt=START)
    return await ended(database, ending, subject=await queue.received(database, wanted))


async def _end(database: databases.Database, ending: entries.Ending) -> None:
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.run_ended(ending, "StagesFailed"))


async def _stands(database: databases.Database) -> UUID | None:
    return await queue.repeat(database, fingerprint=FINGERPRINT, starts_at=START)


async def test_open_retry_stands_for_the_alert(database: databases.Database) -> None:
    first = await _alert(database, "Failed")
    assert await _stands(database) == first
    again = await retry(database, first)
    assert (await queue.summary(database, again)).alert_status == "firing"
    assert await _stands(database) == again
    resolved = await episodes.resolve(database, namespace="tarsy", fingerprint=FINGERPRINT, starts_at=START)
    assert resolved
    assert resolved.id == again


async def test_alert_that_resolves_while_a_retry_is_admitted_is_resolved_there(database: databases.Database) -> None:
    first = await _alert(database, "Completed")
    decided = await admission_of(database, first)
    resolved = await lock_waits.in_order(
        database,
        queueing.admit(database, decided),
        episodes.resolve(database, namespace="tarsy", fingerprint=FINGERPRINT, starts_at=START),
        stopped_at=f"receipts WHERE word = '{decided.receipt}'",
    )
    assert resolved
    assert str(resolved.id) == decided.id
    assert (await queue.summary(database, decided.id)).alert_status == "resolved"


async def test_retry_with_a_result_stands_for_the_alert_beyond_the_cool_down(database: databases.Database) -> None:
    first = await _alert(database, "Failed")
    again = await retry(database, first)
    await _end(database, "Completed")
    later = (
        "UPDATE investigations SET ended_at = ended_at - interval '1 day', admitted_at = admitted_at - interval '1 day'"
    )
    await queue.execute(database, later)
    assert await _stands(database) == again


@pytest.mark.parametrize("ending", ["Failed", "TimedOut", "Cancelled"])
async def test_retry_without_a_result_leaves_the_alert_to_the_original(
    database: databases.Database, ending: entries.Ending
) -> None:
    first = await _alert(database, "Completed")
    await retry(database, first)
    await _end(database, ending)
    assert await _stands(database) == first


async def test_failed_retries_do_not_use_up_the_alerts_own_investigations(database: databases.Database) -> None:
    first = await _alert(database, "Failed")
    for _ in range(episodes.DAILY_MAX + 1):
        await retry(database, first)
        await _end(database, "Failed")
    later = "UPDATE investigations SET ended_at = ended_at - interval '10 minutes'"
    await queue.execute(database, later)
    (verdict,) = await episodes.look_up(database, (FINGERPRINT, START), namespace="tarsy", rule=queue.RULE)
    assert isinstance(verdict, episodes.Begin)
    assert verdict.previous
    assert verdict.previous.id == first


async def test_original_is_read_as_it_ran(database: databases.Database) -> None:
    mcp: dict[str, object] = {"servers": []}
    subject = queue.subject(labels={"alertname": "Full", "namespace": "shop"}, severity="critical", mcp=mcp)
    first = await ended(database, stages=NAMES[:1], subject=subject)
    original = await originals.load(database, first)
    assert original
    assert original.chain
    assert original.chain.spec == CHAIN.spec
    assert original.stage_outcomes == {"collect": "Completed"}
    assert (original.severity, original.labels) == ("critical", {"alertname": "Full", "namespace": "shop"})
    drafted, _ = await draft(database, first)
    spec = investigations.Spec.model_validate(drafted.manifest["spec"])
    assert spec.mcp == subject.spec.mcp
    assert spec.alert_data == "web-0 restarts"
    again = await retry(database, first, from_stage="analysis")
    log = await log_entries.load(database, again)
    assert [type(row.entry).__name__ for row in log[:2]] == ["ToolsSelected", "StageStarted"]
    assert [row.seq for row in log] == list(range(1, len(log) + 1))


async def test_trace_has_the_calls_of_the_retry_alone_under_their_numbers_in_the_log(
    database: databases.Database,
) -> None:
    first = await ended(database)
    again = await retry(database, first, from_stage="remedy")
    journal = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log", execution="new")
    await journal.commit(stories.stage_started("remedy"), stories.started("new", stage="remedy"), asked)
    await journal.commit(stories.ran(asked))

    index = await traces.read_index(database, again)
    assert [row.id for row in index.rows] == ["stage-remedy", "execution-new", "llm-5", "tool-3"]
    assert (index.model_call_count, index.tool_call_count, index.total_tokens) == (1, 1, 123)
    original = await queue.summary(database, first)
    assert index.begins_at
    assert original.ended_at
    assert index.begins_at > original.ended_at
    call = await traces.read_model_call(database, again, number=5)
    assert call.execution == "new"

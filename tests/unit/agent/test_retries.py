"""Retries of an investigation, counted once over all its agents and takeovers, without those of its questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tarsy.config.model import platforms
from tarsy.engine import chat, investigation
from tarsy.llm import limited_model, provider
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

AGENTS = 3
USED_UP = (
    "first did not answer, and the {} retries of an investigation or a question (limits.retries) are used up; "
    "the last error: 503 overloaded"
)


class Provider:
    """Overloaded so many times, each time after a while; then it knows."""

    model = "fake-1"

    def __init__(self, overloaded: int) -> None:
        self.requests = 0
        self.overloaded = overloaded

    async def stream(self, _: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        self.requests += 1
        failed = self.requests <= self.overloaded
        await asyncio.sleep(0)
        if failed:
            raise provider.RetryableError("503 overloaded", code="503")
        yield provider.Text("It is out of memory.")
        yield provider.Finish(None)

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)


@pytest.fixture
def fallbacks() -> list[str]:
    return []


@pytest.fixture
def snapshot(snapshot: record.Snapshot, fallbacks: list[str]) -> record.Snapshot:
    """One stage of three agents."""
    stage = chains.Stage(
        name="analysis", agent="KubernetesAgent", replicas=AGENTS, llm_provider="first", fallback_providers=fallbacks
    )
    return replace(snapshot, chain=snapshot.chain.model_copy(update={"stages": [stage]}))


def equipped(runtime: ports.Runtime, *sources: Provider, retries: int) -> ports.Runtime:
    """A runtime with these providers, and so many retries."""
    limits = platforms.Limits(retries=retries)
    models = {
        name: limited_model.LimitedModel(name, source, limits=limits)
        for name, source in zip(("first", "second"), sources, strict=False)
    }
    platform = runtime.platform.model_copy(update={"limits": limits})
    return replace(runtime, platform=platform, model=models.__getitem__, toolbox=lambda *_: memory.DictToolbox({}))


def errors(journal: memory.MemoryJournal) -> list[str]:
    agents = journal.record.stages["analysis"].agents
    return [agent.ended.error for agent in agents if agent.ended]


@pytest.mark.parametrize("retries", [0, 1, 10])
async def test_retry_budget_is_exact_over_parallel_agents_and_reported_by_the_stage(
    runtime: ports.Runtime, journal: memory.MemoryJournal, retries: int
) -> None:
    source = Provider(overloaded=1000)
    await investigation.run(runtime=equipped(runtime, source, retries=retries), journal=journal)
    assert source.requests == AGENTS + retries
    assert errors(journal) == [USED_UP.format(retries)] * AGENTS
    assert journal.record.runs[0].retries == retries
    ended = journal.record.ended
    assert ended
    assert ended.ending == "Failed"
    assert USED_UP.format(retries) in ended.message


@pytest.mark.parametrize("fallbacks", [["second"]])
async def test_retry_budget_counts_retries_to_all_providers_and_allows_no_more(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    first, second = Provider(overloaded=1000), Provider(overloaded=1000)
    await investigation.run(runtime=equipped(runtime, first, second, retries=AGENTS * 3 + 2), journal=journal)
    assert first.requests == AGENTS * limited_model.ATTEMPTS_BEFORE_FALLBACK
    assert second.requests == AGENTS + 2
    assert journal.record.runs[0].retries == AGENTS * 3 + 2
    assert {error.partition(" ")[0] for error in errors(journal)} == {"second"}


@pytest.mark.parametrize("fallbacks", [["second"]])
async def test_fallback_is_not_asked_once_the_retries_are_used_up(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    first, second = Provider(overloaded=1000), Provider(overloaded=0)
    await investigation.run(runtime=equipped(runtime, first, second, retries=1), journal=journal)
    assert (first.requests, second.requests) == (AGENTS + 1, 0)
    assert errors(journal) == [USED_UP.format(1)] * AGENTS


@pytest.mark.parametrize("fallbacks", [["second"]])
async def test_takeover_goes_on_counting_where_the_record_ends(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    """Also of what was repeated in vain: calls that were answered, that were not, and that ended with a fallback."""
    runtime = equipped(runtime, Provider(overloaded=0), retries=10)
    await investigation.run(runtime=runtime, journal=journal)
    opened = [fact for fact in journal.facts if isinstance(fact, entries.StageStarted | entries.ExecutionStarted)][:4]
    ids = [fact.execution for fact in opened if isinstance(fact, entries.ExecutionStarted)]
    call = entries.ModelCall(provider="first", model="m", seconds=0.0)
    no = messages.Failure(kind="rejected", text="no")
    answer_messages = (messages.Message(role="assistant", text="so"),)
    second = memory.MemoryJournal(
        journal.record.snapshot,
        *opened,
        entries.Unanswered(execution=ids[0], turn=0, failure=no, call=replace(call, retries=1)),
        entries.FellBack(execution=ids[1], turn=0, provider="second", failure=no, call=replace(call, retries=2)),
        entries.Answered(execution=ids[2], turn=0, messages=answer_messages, call=replace(call, retries=4)),
    )
    assert second.record.runs[0].retries == 7
    sources = Provider(overloaded=1000), Provider(overloaded=1000)
    await investigation.run(runtime=equipped(runtime, *sources, retries=10), journal=second)
    assert sum(source.requests for source in sources) == 2 + 1 + 3, "two agents, a synthesis, and what was left"
    assert [end.ended.outcome for end in second.record.stages["analysis"].agents if end.ended] == [
        "Failed",
        "Failed",
        "Completed",
    ]


async def test_each_question_has_its_own_retry_budget(runtime: ports.Runtime, journal: memory.MemoryJournal) -> None:
    await investigation.run(runtime=equipped(runtime, Provider(overloaded=3), retries=3), journal=journal)
    assert journal.record.runs[0].retries == 3
    await journal.commit(entries.RunStarted(run=1, question="Why?"), entries.RunStarted(run=2, question="Sure?"))
    for run, overloaded, ending in ((1, 3, "Completed"), (2, 4, "Failed")):
        source = Provider(overloaded=overloaded)
        await chat.run(runtime=equipped(runtime, source, retries=3), journal=journal, run=run)
        ended = journal.record.runs[run].ended
        assert ended
        assert (ended.ending, source.requests, journal.record.runs[run].retries) == (ending, 4, 3)

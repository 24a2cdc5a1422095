"""Many agents and few slots: the time of an agent counts its work and leaves out its wait for a slot.

The synthesis behind them has what is left to the agent that ended last, unless one of them was timed out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tarsy.config.model import platforms
from tarsy.engine import investigation, timeouts
from tarsy.llm import limited_model, provider
from tarsy.resources import chains
from tarsy.transcript import entries, memory, ports, record

pytestmark = pytest.mark.leaps

AGENTS = 6
SLOTS = 2
ANSWER_SECONDS = 0.1
SYNTHESIS_SECONDS = 0.05
LEFT = 0.25
"""Seconds that a stage has: enough for an answer, and not for three after one another."""
BEGUN = entries.StageStarted(stage="analysis", clock=0.0)


class Provider:
    """Answers agents, each time after a while, a synthesis sooner; or for ever says nothing, to the first so many."""

    model = "fake-1"

    def __init__(self, *, silent: int = 0) -> None:
        self.silent = silent
        self.requests = 0

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        self.requests += 1
        seconds = SYNTHESIS_SECONDS if "SynthesisAgent" in request.messages[0].text else ANSWER_SECONDS
        await asyncio.sleep(seconds if self.requests > self.silent else 60)
        yield provider.Text("It is out of memory.")
        yield provider.Finish(None)

    async def close(self) -> None:
        """There is nothing to close."""


def outcomes(journal: memory.MemoryJournal) -> Counter[str]:
    """How many agents ended how."""
    ends = [agent.ended.outcome for agent in journal.record.stages["analysis"].agents if agent.ended]
    assert len(ends) == AGENTS
    return Counter(ends)


def outcome(journal: memory.MemoryJournal) -> str:
    """How their stage ended."""
    ended = journal.record.stages["analysis"].ended
    assert ended
    return ended.outcome


@pytest.fixture
def journal(snapshot: record.Snapshot) -> memory.MemoryJournal:
    """One stage of many agents, that has begun and has LEFT seconds left."""
    stage = chains.Stage(name="analysis", agent="KubernetesAgent", replicas=AGENTS, timeout_seconds=60)
    spec = snapshot.chain.model_copy(update={"stages": [stage]})
    journal = memory.MemoryJournal(replace(snapshot, chain=spec), BEGUN)
    journal.passed = 60 - LEFT
    return journal


async def run(runtime: ports.Runtime, journal: memory.MemoryJournal, source: Provider, *, iteration: str) -> None:
    """Run the investigation with that provider and its few slots."""
    limits = platforms.Limits.model_validate({"provider_calls": SLOTS, "iteration": iteration})
    limited = limited_model.LimitedModel("first", source, limits=limits)
    await investigation.run(
        runtime=replace(runtime, model=lambda _: limited, toolbox=lambda *_: memory.DictToolbox({})), journal=journal
    )


async def test_a_wait_for_a_slot_is_no_time_of_an_iterations_or_of_a_stages(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    await run(runtime, journal, Provider(), iteration=f"{LEFT * 1000:g}ms")
    assert journal.clock() - 60 > 0.04, "the stage took longer than it may"
    assert (outcomes(journal), outcome(journal)) == (Counter(Completed=AGENTS), "Completed")


async def test_slow_request_releases_its_slot_to_waiting_requests(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    source = Provider(silent=SLOTS)
    await run(runtime, journal, source, iteration="1m")
    assert outcomes(journal) == Counter(Completed=AGENTS - SLOTS, TimedOut=SLOTS)
    assert (source.requests, outcome(journal)) == (AGENTS, "CompletedWithErrors"), "no time is left to join them"


async def test_waiting_for_a_slot_gives_a_request_no_extra_time(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    source = Provider(silent=AGENTS)
    await run(runtime, journal, source, iteration="1m")
    assert source.requests == AGENTS
    assert (outcomes(journal), outcome(journal)) == (Counter(TimedOut=AGENTS), "TimedOut")
    assert journal.clock() - (60 - LEFT) == pytest.approx(AGENTS / SLOTS * LEFT)


async def test_expired_timer_is_not_paused_by_a_new_wait() -> None:
    waited: list[bool] = []

    async def work(time: timeouts.PausableTimeout) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with time.pause():
                waited.append(True)

    assert not await timeouts.PausableTimeout(0.01).run(work)
    assert waited

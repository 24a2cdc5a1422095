"""Budgets in investigations: conclusions, refusals and skipped stages, on the fakes with the real limits of models."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.config.model import budgets, platforms, providers
from tarsy.engine import investigation
from tarsy.llm import limited_model, provider
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record, token_estimate

SPENT = "used up: budget 'calls' (model calls, per day)"


class Provider:
    """Looks each time, as long as it has tools; then it concludes."""

    model = "fake-1"

    def __init__(self, *failures: provider.ProviderError) -> None:
        self.requests: list[ports.Request] = []
        self.failures = list(failures)

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        if request.tools:
            yield provider.Text("I look.")
            yield provider.Call("k8s.get", f'{{"n": {len(self.requests)}}}')
        else:
            yield provider.Text("It is out of memory.")
        yield provider.Usage(messages.Usage(input_tokens=100, output_tokens=20, total_tokens=120))
        yield provider.Finish(None)

    async def close(self) -> None:
        """There is nothing to close."""


def spending(
    runtime: ports.Runtime, source: Provider, **budget: Any
) -> tuple[ports.Runtime, limited_model.LimitedModel]:
    """The runtime with a budget, and the one model of all providers."""
    limits = {"calls": budgets.Budget.model_validate({"scope": "all", "per": "day", **budget})}
    google = {
        name: settings.model_copy(update={"max_output_tokens": 1024})
        for name, settings in runtime.platform.llm_providers.items()
    }
    platform = runtime.platform.model_copy(update={"budgets": limits, "llm_providers": google})
    model = limited_model.LimitedModel("first", source, limits=platforms.Limits())
    return replace(runtime, platform=platform, model=lambda _: model), model


def logged(journal: memory.MemoryJournal) -> list[str]:
    return [type(fact).__name__ for fact in journal.facts]


async def test_budget_at_its_limit_allows_one_conclusion_and_no_further_stage(
    runtime: ports.Runtime, snapshot: record.Snapshot
) -> None:
    """Eighteen of twenty calls are for looking; the two that are kept are for conclusions."""
    source = Provider()
    summarised = snapshot.chain.model_copy(update={"executive_summary": chains.ExecutiveSummary(enabled=True)})
    journal = memory.MemoryJournal(replace(snapshot, chain=summarised))
    spent, _ = spending(runtime, source, model_calls=20, at_limit="Conclude")
    spent = replace(
        spent,
        platform=spent.platform.model_copy(
            update={"defaults": spent.platform.defaults.model_copy(update={"max_iterations": 100})}
        ),
    )
    await investigation.run(runtime=spent, journal=journal)
    assert len(source.requests) == 19
    assert journal.ledgers == {("calls", ""): Decimal(19)}
    conclusion = source.requests[-1]
    assert not conclusion.tools
    assert conclusion.messages[-1].text.startswith(f"U{SPENT[1:]}. Call no more tools.")
    ended = journal.record.ended
    assert ended is not None
    assert (ended.ending, ended.message) == ("CompletedWithErrors", f"{SPENT}; the stages after it were skipped")
    assert ended.final_analysis == "It is out of memory."
    assert not ended.summary
    stages = {name: stage.ended and stage.ended.outcome for name, stage in journal.record.stages.items()}
    assert stages == {"data-collection": "Completed", "analysis": "Skipped"}


async def test_agent_without_findings_makes_no_conclusion_call_at_budget_limit(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    source = Provider()
    journal.ledgers["calls", ""] = Decimal(18)
    await investigation.run(runtime=spending(runtime, source, model_calls=20)[0], journal=journal)
    assert source.requests == []
    assert journal.record.ended is not None
    assert (journal.record.ended.ending, journal.record.ended.message) == (
        "Failed",
        f"stage 'data-collection' failed: {SPENT}; the stages after it were skipped",
    )


async def test_agent_concludes_when_its_next_request_exceeds_the_budget(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    """The second request alone is larger than what looking may spend; the conclusion is not."""
    source = Provider()
    probe, _ = spending(runtime, source, model_calls=3, at_limit="Refuse")
    await investigation.run(runtime=probe, journal=memory.MemoryJournal(journal.record.snapshot))
    first, second, *_ = (token_estimate.utf8_bytes(request) + 1024 for request in source.requests)
    assert first + 1 < second
    bounded = Provider()
    limit = (second - 1) * 10 // 9
    await investigation.run(runtime=spending(runtime, bounded, tokens=limit)[0], journal=journal)
    assert [bool(request.tools) for request in bounded.requests] == [True, False]
    assert journal.record.ended is not None
    assert journal.record.ended.final_analysis == "It is out of memory."


class SlowProvider(Provider):
    """Answers agents side by side: each answer comes after the requests of the others."""

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        self.requests.append(request)
        for _ in range(10):
            await asyncio.sleep(0)
        if request.tools:
            yield provider.Call("k8s.get", f'{{"n": {len(self.requests)}}}')
        else:
            yield provider.Text("It is out of memory.")
        tokens = 2000 if request.tools else 10
        yield provider.Usage(messages.Usage(input_tokens=tokens, total_tokens=tokens))
        yield provider.Finish(None)


async def test_conclusions_of_parallel_agents_share_the_reserved_part_of_the_budget(
    runtime: ports.Runtime, snapshot: record.Snapshot
) -> None:
    """A tenth has room for one conclusion, which needs far less than it reserves: the next one waits for it."""
    stage = chains.Stage(name="look", agent="KubernetesAgent", replicas=5, llm_provider="first")
    chain = snapshot.chain.model_copy(update={"stages": [stage]})
    journal = memory.MemoryJournal(replace(snapshot, chain=chain))
    source = SlowProvider()
    await investigation.run(runtime=spending(runtime, source, tokens=50_000)[0], journal=journal)
    conclusions = [request for request in source.requests if not request.tools]
    assert min(token_estimate.utf8_bytes(request) + 1024 for request in conclusions) > 2500
    agents = [run for run in journal.record.executions.values() if run.started.kind == "agent"]
    assert [agent.ended and agent.ended.outcome for agent in agents] == 5 * ["Completed"]
    assert len(conclusions) == 5
    assert 40_000 <= journal.ledgers["calls", ""] <= 50_000


async def test_budget_that_refuses_ends_agents_without_a_conclusion(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    source = Provider()
    await investigation.run(runtime=spending(runtime, source, model_calls=3, at_limit="Refuse")[0], journal=journal)
    assert len(source.requests) == 3
    assert journal.record.ended is not None
    assert journal.record.ended.ending == "Failed"


async def test_takeover_after_the_limit_concludes_the_same(runtime: ports.Runtime, snapshot: record.Snapshot) -> None:
    """Whatever entry is the last one that was committed."""
    settings = {"model_calls": 10, "at_limit": "Conclude"}
    full_journal = memory.MemoryJournal(snapshot)
    await investigation.run(runtime=spending(runtime, Provider(), **settings)[0], journal=full_journal)
    at = next(index for index, fact in enumerate(full_journal.facts) if isinstance(fact, entries.Unanswered))
    for count in range(at, len(full_journal.facts)):
        if isinstance(full_journal.facts[count - 1], entries.ExecutionEnded | entries.StageEnded):
            continue  # they are committed together with what follows
        journal = memory.MemoryJournal(snapshot, *full_journal.facts[:count])
        journal.ledgers["calls", ""] = Decimal(9)
        await investigation.run(runtime=spending(runtime, Provider(), **settings)[0], journal=journal)
        assert journal.record.ended == full_journal.record.ended, count


async def test_retries_are_charged_and_stay_spent_without_a_count(
    runtime: ports.Runtime, journal: memory.MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)
    source = Provider(provider.RetryableError("503"), provider.RetryableError("503"))
    await investigation.run(runtime=spending(runtime, source, tokens=100_000, at_limit="Refuse")[0], journal=journal)
    counted = sum(fact.call.usage.total_tokens for fact in journal.facts if isinstance(fact, entries.Answered))
    lost = 2 * (token_estimate.utf8_bytes(source.requests[0]) + 1024)
    assert journal.ledgers == {("calls", ""): Decimal(counted + lost)}


async def test_request_without_a_maximum_is_not_sent(runtime: ports.Runtime, journal: memory.MemoryJournal) -> None:
    source = Provider()
    bounded, _ = spending(runtime, source, tokens=10**9)
    platform = bounded.platform.model_copy(update={"llm_providers": runtime.platform.llm_providers})
    await investigation.run(runtime=replace(bounded, platform=platform), journal=journal)
    assert source.requests == []
    assert journal.record.ended is not None
    why = "budget 'calls' cannot be kept: provider 'first' has no max_output_tokens"
    assert why in journal.record.ended.message


def test_native_tools_have_no_maximum() -> None:
    limits = {"b": budgets.Budget(scope="all", per="day", tokens=10**9)}
    google = providers.GoogleProvider(type="google", model="gemini-2.5-flash", max_output_tokens=1024)
    charge = functools.partial(budgets.charges, limits, SUBJECT, provider="first", settings=google, request_bytes=7)
    assert charge()[0].amount == 1031
    with pytest.raises(budgets.UnboundedError, match="is asked for native tools, whose tokens are in no request"):
        charge(native_tools=True)


async def test_investigation_waits_for_the_next_period(runtime: ports.Runtime, journal: memory.MemoryJournal) -> None:
    """Earlier answers stay, and no request is made meanwhile."""
    source = Provider()
    spent, _ = spending(runtime, source, model_calls=3, at_limit="Wait")
    before = datetime.now(UTC)
    await investigation.run(runtime=spent, journal=journal)
    (wait,) = journal.waits.values()
    assert (wait.reason, wait.message) == ("BudgetSpent", SPENT)
    assert wait.until in (budgets.period_end("day", before), budgets.period_end("day", datetime.now(UTC)))
    assert (len(source.requests), journal.record.ended) == (3, None)


async def test_alert_that_joins_opens_the_reserve_of_its_severity(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    source, reserve = Provider(), {"severity": "critical", "share": 75}
    spent, _ = spending(runtime, source, model_calls=8, at_limit="Wait", reserve=reserve)
    await investigation.run(runtime=spent, journal=journal)
    assert (len(source.requests), len(journal.waits)) == (2, 1)
    for severity, requests in (("warning", 2), ("critical", 8)):
        journal.joining.append(ports.JoinedAlert(alert_type="Other", severity=severity, labels={}))
        journal.waits.clear()
        await investigation.run(runtime=spent, journal=journal)
        assert (len(source.requests), len(journal.waits)) == (requests, 1), severity


async def test_request_that_no_period_has_room_for_does_not_wait(
    runtime: ports.Runtime, journal: memory.MemoryJournal
) -> None:
    await investigation.run(runtime=spending(runtime, Provider(), tokens=1024, at_limit="Wait")[0], journal=journal)
    assert journal.record.ended is not None
    assert journal.record.ended.ending == "Failed"


def test_budget_that_never_renews_cannot_be_waited_for() -> None:
    with pytest.raises(ValueError, match="Wait would be for ever"):
        budgets.Budget(scope="all", per="investigation", tokens=1, at_limit="Wait")


@given(st.datetimes(timezones=st.timezones()), st.sampled_from(["hour", "day", "month"]))
def test_period_ends_at_the_next_boundary_in_utc(at: datetime, per: Any) -> None:
    if not datetime(2, 1, 1, tzinfo=UTC) < at < datetime(9998, 1, 1, tzinfo=UTC):
        return
    end = budgets.period_end(per, at)
    assert end is not None
    form = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}[per]
    assert end > at
    assert (end.minute, end.second, end.microsecond, end.utcoffset()) == (0, 0, 0, timedelta(0))
    last = end - timedelta(microseconds=1)
    assert last.strftime(form) == at.astimezone(UTC).strftime(form) != end.strftime(form)


@given(
    limit=st.integers(1, 10**6), share=st.none() | st.integers(1, 80), at_limit=st.sampled_from(["Conclude", "Refuse"])
)
def test_low_severity_investigations_never_spend_the_reserve_of_a_budget(
    limit: int, share: int | None, at_limit: Any
) -> None:
    reserve = None if share is None else budgets.Reserve(severity="critical", share=share)
    budget = budgets.Budget(scope="all", per="day", tokens=limit, at_limit=at_limit, reserve=reserve)
    noise, outage = (budget.most(severity=severity, concludes=True) for severity in ("warning", "critical"))
    assert outage == limit
    assert noise == limit - Decimal(limit * (share or 0)) / 100
    for severity in ("warning", "critical"):
        kept_share = budget.most(severity=severity, concludes=True) - budget.most(severity=severity, concludes=False)
        assert kept_share == (Decimal(limit) / 10 if at_limit == "Conclude" else 0)
        assert budget.most(severity=severity, concludes=False) > 0


SUBJECT = budgets.Subject(investigation="i", namespace="shop", chain="tarsy/pod-crash", severity="warning")


@pytest.mark.parametrize(
    ("budget", "key"),
    [
        ({"scope": "all"}, ""),
        ({"scope": "namespace"}, "shop"),
        ({"scope": "namespace", "of": "shop"}, "shop"),
        ({"scope": "namespace", "of": "bank"}, None),
        ({"scope": "chain"}, "tarsy/pod-crash"),
        ({"scope": "chain", "of": "tarsy/pod-crash"}, "tarsy/pod-crash"),
        ({"scope": "chain", "of": "shop/pod-crash"}, None),
        ({"scope": "provider"}, "first"),
        ({"scope": "provider", "of": "second"}, None),
        ({"scope": "all", "per": "investigation"}, "i"),
        ({"scope": "namespace", "of": "bank", "per": "investigation"}, None),
        ({"scope": "provider", "per": "investigation"}, "i first"),
    ],
)
def test_budget_covers_its_scope(budget: dict[str, str], key: str | None) -> None:
    limit = budgets.Budget.model_validate({"per": "day", "model_calls": 5, **budget})
    charged = budgets.charges({"b": limit}, SUBJECT, provider="first", settings=None, request_bytes=7)
    assert [charge.subject for charge in charged] == ([] if key is None else [key])


@given(st.text(max_size=200), st.text(max_size=50))
def test_text_never_has_fewer_bytes_than_are_charged(text: str, arguments: str) -> None:
    call = messages.ToolCall(id="0.0", name="k8s.get", arguments=messages.storable(arguments))
    message = messages.Message(role="assistant", text=messages.storable(text), calls=(call,))
    sent = ports.Request(messages=(message,), tools=(messages.ToolSpec(name="k8s.get"),))
    assert token_estimate.utf8_bytes(sent) >= len(f"{message.text}{call.arguments}k8s.getk8s.get".encode())

"""Compaction of a conversation that is too large: only results give way, oldest first, no more than it takes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import hypothesis
import pytest
from hypothesis import strategies
from support import steps, stories
from tarsy.agent import context, dialects
from tarsy.config.model import context_windows, platforms
from tarsy.transcript import entries, entry_versions, messages, ports, record, token_estimate
from tarsy.transcript.kinds import registry

ALERT = stories.PROMPT
AGAIN = messages.Message(role="user", text="Conclude now.")
READS, WRITES = "k8s.pods_log", "k8s.restart"
"""`stories.TOOL` is the first."""
LINE_MAX = 160
"""Characters of what stands for a result, with room for a long name."""
SHORTEST = context.LEAST_SHOWN + 96
"""Characters of a result of the last turn that is cut as short as may be."""


@dataclass(frozen=True)
class Turn:
    """An answer that asks for results of these lengths, and the tokens that its provider counted, if it did."""

    results: Sequence[int]
    counted: int = 0
    tool: str = READS
    text: str = ""


def execution(snapshot: record.Snapshot, turns: Sequence[Turn], *, strategy: str = "native-thinking") -> record.Record:
    """The record of an investigation whose one agent has made these turns."""
    agent = replace(stories.AGENT, strategy=strategy)  # type: ignore[arg-type]
    facts: list[entries.Entry] = [stories.stage_started(), stories.started(agent=agent)]
    for number, step in enumerate(turns):
        calls = tuple(
            messages.ToolCall(id=f"{number}.{index}", name=step.tool, arguments='{"name": "web-0"}')
            for index in range(len(step.results))
        )
        answer = messages.Message(role="assistant", text=step.text, calls=calls)
        call = replace(stories.CALL, usage=messages.Usage(input_tokens=step.counted))
        facts.append(entries.Answered(execution="one", turn=number, messages=(answer,), call=call))
        runs = [
            entries.ToolRun(call=call, result=result(call, length), seconds=0.1)
            for call, length in zip(calls, step.results, strict=True)
        ]
        facts.append(entries.ToolsAnswered(execution="one", runs=tuple(runs)))
    return registry.fold(snapshot, facts)


def result(call: messages.ToolCall, length: int) -> messages.Message:
    return messages.Message(role="tool", call_id=call.id, tool_name=call.name, text=f"{call.id}|".ljust(length, "x"))


def build_context(investigation: record.Record, *added: messages.Message) -> context.Context:
    first_execution = investigation.executions["one"]
    return context.build(
        first_execution, (*messages.conversation(first_execution.log), *added), first_execution.started.tools
    )


def compact(investigation: record.Record, due: context.Compaction) -> None:
    """Note what gave way, as the loop does."""
    registry.apply(
        investigation,
        entries.ContextCompacted(
            execution="one", turn=9, results=due.results, cut=due.cut, shown=due.shown, tokens=due.tokens, limit=0
        ),
    )


def lengths(investigation: record.Record) -> dict[str, int]:
    return {call: len(text) for call, text in texts(investigation).items()}


def texts(investigation: record.Record) -> dict[str, str]:
    return {
        message.call_id: message.text for message in build_context(investigation).visible() if message.role == "tool"
    }


def test_the_oldest_results_give_way_to_a_line_each_and_no_more_of_them_than_it_takes(
    snapshot: record.Snapshot,
) -> None:
    investigation = execution(snapshot, [Turn([3000, 3000]), Turn([3000, 3000]), Turn([3000])])
    assert build_context(investigation).compaction(None) is None
    assert build_context(investigation).compaction(build_context(investigation).tokens) is None
    due = build_context(investigation).compaction(4500)
    assert due == context.Compaction(
        results=("0.0", "0.1"), cut=(), shown=0, tokens=build_context(investigation).tokens
    )
    compact(investigation, due)
    assert build_context(investigation).tokens < 4500 * context.TARGET
    visible_texts = texts(investigation)
    line = "[compacted to save space: 3,000 characters of k8s.pods_log; call the tool again if they are needed]"
    assert (visible_texts["0.0"], visible_texts["0.1"]) == (line, line)
    assert {length for call, length in lengths(investigation).items() if call > "1"} == {3000}
    log = investigation.executions["one"].log
    assert all(len(entry.text) == 3000 for entry in record.results(log)), "the log keeps them whole"


def test_tool_that_may_not_be_called_again_is_not_named_as_if_it_might(snapshot: record.Snapshot) -> None:
    investigation = execution(snapshot, [Turn([9000], tool=WRITES), Turn([9000], tool=WRITES)])
    due = build_context(investigation).compaction(2000)
    assert due
    compact(investigation, due)
    visible_texts = texts(investigation)
    assert visible_texts["0.0"] == "[compacted to save space: 9,000 characters of k8s.restart]"
    assert re.search(
        r"x\n\[cut to save space: [\d,]+ characters of a line are left out here\]\nx", visible_texts["1.0"]
    )


@pytest.mark.parametrize("name", ["a" * 100_000, "k8s.\n\n\nrestart", " " * 5000, ""])
def test_compacted_result_is_one_short_line_for_any_tool_name(snapshot: record.Snapshot, name: str) -> None:
    investigation = execution(snapshot, [Turn([9000], tool=name), Turn([10])])
    due = build_context(investigation).compaction(2000)
    assert due
    assert due.results == ("0.0",)
    compact(investigation, due)
    assert len(texts(investigation)["0.0"]) < LINE_MAX
    assert "\n" not in texts(investigation)["0.0"]


def test_compacted_error_result_remains_an_error(snapshot: record.Snapshot) -> None:
    investigation = execution(snapshot, [Turn([9000]), Turn([10])])
    log = investigation.executions["one"].log
    log[:] = [replace(e, failed=True) if isinstance(e, messages.Message) and e.role == "tool" else e for e in log]
    due = build_context(investigation).compaction(2000)
    assert due
    compact(investigation, due)
    (error_message, _) = (message for message in build_context(investigation).visible() if message.role == "tool")
    assert (error_message.failed, "9,000 characters of an error of k8s.pods_log" in error_message.text) == (True, True)


def test_longest_results_of_a_too_large_last_turn_are_cut_to_the_same_length(
    snapshot: record.Snapshot,
) -> None:
    investigation = execution(snapshot, [Turn([9000]), Turn([50_000, 100, 20_000, 3000])])
    due = build_context(investigation).compaction(5000)
    assert due
    assert (due.results, due.cut) == (("0.0",), ("1.0", "1.2"))
    compact(investigation, due)
    assert build_context(investigation).tokens < 5000
    visible_texts = texts(investigation)
    assert visible_texts["1.0"].startswith("1.0|xxx")
    marker = f"[cut to save space: {50_000 - due.shown:,} characters of a line are left out here; ask for less]"
    head, tail = visible_texts["1.0"].split(f"\n{marker}\n")
    assert (len(head), len(head) + len(tail)) == (due.shown // 3, due.shown), "its end is twice as long"
    assert (len(visible_texts["1.1"]), len(visible_texts["1.3"])) == (100, 3000)
    assert 3000 < due.shown < 6000


def test_tokens_are_corrected_by_what_the_provider_counted(snapshot: record.Snapshot) -> None:
    """Its count stands for what it has counted; of the rest it makes more, where there were more, and never less."""
    alone = build_context(execution(snapshot, [Turn([30_000])])).tokens
    for counted, rate in ((alone * 2, 2.0), (alone * 3 // 4, 0.75), (alone * 50, 3.0), (1, 0.5), (0, 1.0)):
        investigation = execution(snapshot, [Turn([30_000]), Turn([30_000], counted=counted, text="y" * 30_000)])
        expected = alone * rate + 20_000 * max(1.0, rate)
        assert build_context(investigation).tokens == pytest.approx(expected, rel=0.02), (counted, rate)


def test_results_that_gave_way_are_not_in_what_the_provider_counted_afterwards(snapshot: record.Snapshot) -> None:
    investigation = execution(snapshot, [Turn([30_000]), Turn([30_000])])
    due = build_context(investigation).compaction(15_000)
    assert due
    compact(investigation, due)
    full_tokens, visible_tokens = 20_000, 10_000
    assert build_context(investigation).tokens == pytest.approx(visible_tokens, rel=0.03)
    call = replace(stories.CALL, usage=messages.Usage(input_tokens=20_000))
    answer = messages.Message(role="assistant", text="so")
    registry.apply(investigation, entries.Answered(execution="one", turn=2, messages=(answer,), call=call))
    assert build_context(investigation).tokens == pytest.approx(full_tokens, rel=0.03), (
        "twice as many a character as by estimate"
    )


def test_a_refused_request_is_halved_by_old_results_and_then_by_the_last_until_nothing_is_left(
    snapshot: record.Snapshot,
) -> None:
    investigation = execution(snapshot, [Turn([20_000] * 4), Turn([20_000] * 3), Turn([20_000] * 4)])
    sizes = [build_context(investigation).tokens]
    counts = []
    while due := build_context(investigation).compaction(10**9, refused=True):
        compact(investigation, due)
        sizes.append(build_context(investigation).tokens)
        counts.append((len(due.results), len(due.cut)))
    assert counts[:3] == [(6, 0), (1, 0), (0, 4)], "not all that is old is half of what was sent the second time"
    assert sizes[1] < sizes[0] / 2
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert len(counts) < 10
    assert max(lengths(investigation).values()) <= SHORTEST


RESULTS = strategies.lists(strategies.sampled_from([0, 20, 99, 150, 1000, 7000, 30_000]), max_size=6)
TURNS = strategies.lists(
    strategies.builds(
        Turn,
        results=RESULTS.filter(bool),
        counted=strategies.sampled_from([0, 0, 1, 300, 5000, 10**6]),
        tool=strategies.sampled_from([READS, WRITES, "no such tool"]),
        text=strategies.sampled_from(["", "Action: k8s.pods_log\nAction Input: {}\n", "y" * 4000]),
    ),
    max_size=6,
)
LIMITS = strategies.integers(min_value=1000, max_value=60_000)
ADDED = strategies.sampled_from([(), (AGAIN,)])
in_any_conversation = hypothesis.given(
    turns=TURNS, limits=strategies.lists(LIMITS, min_size=1, max_size=3), added=ADDED
)
quick = hypothesis.settings(
    max_examples=100,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


@quick
@in_any_conversation
def test_compaction_removes_only_tool_results_and_those_of_the_last_turn_last(
    snapshot: record.Snapshot, turns: list[Turn], limits: list[int], added: tuple[messages.Message, ...]
) -> None:
    investigation = execution(snapshot, turns)
    full_context = build_context(investigation, *added)
    last = f"{len(turns) - 1}."
    for limit in limits:
        before = lengths(investigation)
        due = build_context(investigation, *added).compaction(limit)
        if due is None:
            continue
        compact(investigation, due)
        now = build_context(investigation, *added)
        assert [replace(message, text="") for message in now.visible()] == [
            replace(message, text="") for message in full_context.conversation
        ]
        other_messages = [message for message in now.visible() if message.role != "tool"]
        assert other_messages == [message for message in full_context.conversation if message.role != "tool"]
        after = lengths(investigation)
        assert all(after[call] <= before[call] for call in before), "nothing comes back"
        assert all(call.startswith(last) for call in due.cut)
        assert not any(call.startswith(last) for call in due.results)
        compacted_calls = [call for call in before if call in due.results]
        longer = [call for call in before if not call.startswith(last) and before[call] > LINE_MAX]
        assert compacted_calls == list(due.results), "in their order"
        assert [call for call in longer if call in compacted_calls] == longer[
            : len(set(longer) & set(compacted_calls))
        ], "oldest first"
        if due.cut:
            assert set(longer) <= set(compacted_calls), "all that is old had given way"
            assert all(len(texts(investigation)[call]) >= context.LEAST_SHOWN for call in due.cut)
        assert build_context(investigation, *added).compaction(limit) is None, "once is enough"


@quick
@in_any_conversation
def test_request_is_within_its_limit_or_as_small_as_it_can_be(
    snapshot: record.Snapshot, turns: list[Turn], limits: list[int], added: tuple[messages.Message, ...]
) -> None:
    investigation = execution(snapshot, turns)
    for limit in limits:
        if due := build_context(investigation, *added).compaction(limit):
            compact(investigation, due)
        now = build_context(investigation, *added)
        if now.tokens <= limit:
            continue
        last = f"{len(turns) - 1}."
        for call, length in lengths(investigation).items():
            assert length <= (SHORTEST if call.startswith(last) else LINE_MAX)


@quick
@hypothesis.given(turns=TURNS, limit=LIMITS, strategy=strategies.sampled_from(["native-thinking", "react"]))
def test_request_in_each_dialect_has_the_estimated_size_and_the_alert_and_last_turn(
    snapshot: record.Snapshot, turns: list[Turn], limit: int, strategy: str
) -> None:
    investigation = execution(snapshot, [replace(step, counted=0) for step in turns], strategy=strategy)
    dialect: dialects.Dialect = dialects.REACT if strategy == "react" else dialects.NATIVE
    tools = dialect.declared_tools(investigation.executions["one"].started.tools)
    if due := build_context(investigation).compaction(limit):
        compact(investigation, due)
    now = replace(build_context(investigation), tools=tools)
    request = ports.Request(tools=tools, messages=dialect.render(now.visible()))
    assert token_estimate.tokens(request) <= now.tokens + len(turns) * 10
    assert [prompt_message.text for prompt_message in request.messages[:2]] == [
        alert_message.text for alert_message in ALERT
    ]
    sent = "\n".join(message.text for message in request.messages)
    for call in [
        f"{len(turns) - 1}.{index}|" for index, length in enumerate(turns[-1].results if turns else ()) if length
    ]:
        assert call in sent


@quick
@in_any_conversation
def test_takeover_sends_the_same(
    snapshot: record.Snapshot, turns: list[Turn], limits: list[int], added: tuple[messages.Message, ...]
) -> None:
    investigation = execution(snapshot, turns)
    again = execution(snapshot, turns)
    for limit in limits:
        due = build_context(investigation, *added).compaction(limit)
        assert build_context(again, *added).compaction(limit) == due
        if due is None:
            continue
        compacted = entries.ContextCompacted(
            execution="one", turn=9, results=due.results, cut=due.cut, shown=due.shown, tokens=due.tokens, limit=limit
        )
        read = entry_versions.decode(entry_versions.encode(compacted), run=0, stage="analysis", execution="one")
        assert isinstance(read, entries.ContextCompacted)
        registry.apply(investigation, compacted)
        registry.apply(again, read)
        assert build_context(again, *added).visible() == build_context(investigation, *added).visible()


def test_compaction_takes_few_steps_for_any_number_of_results(snapshot: record.Snapshot) -> None:
    investigation = execution(snapshot, [Turn([20_000] * 100, counted=100_000)] * 20)
    assert steps.count(lambda: build_context(investigation).compaction(128_000)) < 150_000


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"type": "google", "model": "gemini-2.5-flash"}, 1_048_576),
        ({"type": "google", "model": "gemini-2.5-flash", "context_tokens": 5000}, 5000),
        ({"type": "openai", "model": "gpt-5"}, 272_000),
        ({"type": "openai", "model": "qwen3:8b"}, None),
        ({"type": "anthropic", "model": "claude-sonnet-4-5"}, 200_000 - 16_384),
        (
            {
                "type": "anthropic",
                "model": "claude-sonnet-4-5",
                "max_output_tokens": 8000,
                "thinking": {"budget": 4000},
            },
            192_000,
        ),
        ({"type": "anthropic", "model": "claude-sonnet-4-5", "max_output_tokens": 300_000}, 1000),
        ({"type": "xai", "model": "grok-4-fast-reasoning"}, 2_000_000),
        ({"type": "langchain", "model_provider": "mistralai", "model": "mistral-large-latest"}, None),
    ],
    ids=lambda value: value["model"] if isinstance(value, dict) else str(value),
)
def test_request_limit_comes_from_the_platform_file_or_the_known_model_size(
    settings: dict[str, object], limit: int | None
) -> None:
    platform = platforms.Platform.model_validate({"llm_providers": {"one": settings}})
    assert context_windows.context_tokens(platform.llm_providers["one"]) == limit

"""Long results are read as excerpts, and our own tools look into all of them: in any stage, in their limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from support import executions, timelines
from support.executions import ID
from tarsy.agent import excerpting, requests, result_tools, templates
from tarsy.config import resolve
from tarsy.config.model import platforms, tool_filters
from tarsy.resources import tool_patterns
from tarsy.transcript import entries, line_excerpts, memory, messages, record
from tarsy.transcript.kinds import registry

EARLIER = "0123456789abcdef"
LINES = [f"level=info msg=ok path=/healthz n={number}" for number in range(1, 4_001)]
LINES[2_344] = "the cache of web-0 is as cold as ice"
LINES[3_210] = "level=info msg=ok path=/healthz n=3211 and password of nobody"
LONG = "\n".join(LINES)
OWN = list(tool_patterns.RESULT_TOOLS)


def asks(*calls: tuple[str, Mapping[str, Any] | str]) -> messages.Message:
    asked = (
        executions.asks(name, arguments=text if isinstance(text, str) else json.dumps(text)) for name, text in calls
    )
    return messages.Message(role="assistant", text="I look.", calls=tuple(answer.calls[0] for answer in asked))


CONCLUDES = messages.Message(role="assistant", text="It is cold.")
GETS = asks(("k8s.log", {}))


@pytest.fixture
def toolbox() -> memory.DictToolbox:
    return memory.DictToolbox({"k8s.log": LONG, "k8s.get": "Running"})


def started(toolbox: memory.DictToolbox, execution: str = ID, **settings: Any) -> entries.ExecutionStarted:
    begun = executions.started(toolbox, execution=execution, **settings)
    assert begun.agent
    return replace(begun, result_tools=result_tools.specs(begun.agent))


@pytest.fixture
def journal(snapshot: record.Snapshot, toolbox: memory.DictToolbox) -> memory.MemoryJournal:
    return memory.MemoryJournal(replace(snapshot, alert_data='{"labels": {"pod": "web-0"}}'), started(toolbox))


async def run(
    journal: memory.MemoryJournal,
    toolbox: memory.DictToolbox,
    *script: messages.Message,
    execution: str = ID,
    excerpt: int | None = 4_000,
    limit: int = 64_000,
    **more: Any,
) -> memory.ScriptedModel:
    model = memory.ScriptedModel(*script)
    await executions.run(
        journal,
        model,
        toolbox,
        execution=execution,
        excerpt_limit=lambda server, *_: excerpt if server == "k8s" else None,
        result_limit=lambda _: limit,
        **more,
    )
    return model


def results(journal: memory.MemoryJournal, execution: str = ID) -> dict[str, messages.Message]:
    log = journal.record.executions[execution].log
    return {entry.call_id: entry for entry in log if isinstance(entry, messages.Message) and entry.role == "tool"}


async def call_result(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, name: str, arguments: Mapping[str, Any] | str
) -> messages.Message:
    """The result of one call of our tools, after a long result and a short one."""
    await run(journal, toolbox, asks(("k8s.log", {}), ("k8s.get", {})), asks((name, arguments)), CONCLUDES)
    return results(journal)["1.0"]


async def test_model_reads_an_excerpt_and_finds_the_rest_with_tools_that_it_gets_then(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    model = await run(
        journal,
        toolbox,
        GETS,
        asks(("result.search", {"call": f"{ID}/0.0", "pattern": "password", "context": 0})),
        asks(("result.read", {"call": "0.0", "from": 3_210, "to": 3_212})),
        CONCLUDES,
    )
    tools = [[tool.name for tool in request.tools] for request in model.requests]
    assert tools == [["k8s.log", "k8s.get"], *[["k8s.log", "k8s.get", *OWN]] * 3], "not before there is a need"
    read = results(journal)
    assert len(read["0.0"].text) <= 4_000
    assert read["0.0"].text.startswith(f"[an excerpt of {len(LONG)} characters in 4000 lines: ")
    assert f'"call": "{ID}/0.0"' in read["0.0"].text
    assert ("as cold as ice" in read["0.0"].text, "password" in read["0.0"].text) == (True, True)
    assert read["1.0"].text.endswith("\n3211: level=info msg=ok path=/healthz n=3211 and password of nobody")
    assert read["2.0"].text == "[lines 3210-3212 of 4000]\n" + "\n".join(LINES[3_209:3_212])
    assert len(toolbox.called) == 1, "no server is asked for what is there"
    assert await journal.whole(ID, "0.0") == LONG


async def test_model_requests_are_rebuilt_from_the_log_word_for_word(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    script = (GETS, asks(("result.read", {"call": "0.0"})), CONCLUDES)
    model = await run(journal, toolbox, *script)
    execution, logged_requests = record.begun(started(toolbox)), []
    for fact in journal.facts[1:]:
        if isinstance(fact, entries.Answered):
            logged_requests.append(requests.request_of(execution, fact)[1])
        registry.add(execution, fact)
    assert logged_requests == model.requests


async def test_takeover_reads_the_same_and_calls_no_tool_again(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    script = (GETS, asks(("result.search", {"call": "0.0", "pattern": "password"})), CONCLUDES)
    await run(journal, toolbox, *script)
    results_before = results(journal)
    for count in range(2, len(journal.facts)):
        taken = memory.MemoryJournal(journal.record.snapshot, *journal.facts[:count])
        box = memory.DictToolbox(toolbox.answers)
        await run(taken, box, *script)
        assert results(taken) == results_before
        assert len(box.called) == (count < 3)


async def test_later_execution_reads_full_and_excerpted_results_of_earlier_executions(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    await run(journal, toolbox, asks(("k8s.log", {}), ("k8s.get", {})), CONCLUDES)
    await journal.commit(started(toolbox, EARLIER))
    await run(
        journal,
        toolbox,
        GETS,
        asks(
            ("result.search", {"call": f"{ID}/0.0", "pattern": "as cold as"}),
            ("result.read", {"call": f"{ID}/0.1"}),
            ("result.read", {"call": "0.1"}),
        ),
        CONCLUDES,
        execution=EARLIER,
    )
    read = results(journal, EARLIER)
    assert "2345: the cache of web-0 is as cold as ice" in read["1.0"].text
    assert read["1.1"].text == "[line 1 of 1]\nRunning"
    assert (read["1.2"].failed, "no result of a call '0.1'" in read["1.2"].text) == (True, True)


@pytest.mark.parametrize(
    "call", ["9.9", "e9/0.0", f"{EARLIER}/0.0", "", "/", "0.0/0.0", "../e0/0.0", "💥" * 999, "e0/"]
)
async def test_calls_that_are_made_up_or_of_another_investigation_are_refused(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, call: str
) -> None:
    result = await call_result(journal, toolbox, "result.read", {"call": call})
    assert result.failed
    assert result.text.startswith("There is no result of a call '")
    assert "Your own calls with results: 0.0, 0.1" in result.text
    assert len(result.text) < 400


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("result.read", "no json", "The arguments of result.read must be a JSON object, such as "),
        ("result.search", {"call": "0.0"}, "'pattern' is missing"),
        ("result.read", {"call": "0.0", "from": 0}, "'from' must be a whole number from 1"),
        ("result.read", {"call": "0.0", "lines": 5}, "result.read has no argument 'lines'. It has: call, from"),
        ("result.write", {"call": "0.0"}, "There is no tool 'result.write'. Available tools: k8s.log, k8s.get, result"),
    ],
)
async def test_wrong_arguments_are_answered_with_what_would_be_right(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, name: str, arguments: Any, problem: str
) -> None:
    result = await call_result(journal, toolbox, name, arguments)
    assert (result.failed, problem in result.text) == (True, True), result.text


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=40),
    st.sampled_from(["0.0", f"{ID}/0.0", f"{ID}/0.1", "e9/0.0"]),
    st.sampled_from(["(a+)+$", "(", "a{1,999}", ".*", "\\C", "\ud83d", "\x00"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
ARGUMENTS = st.one_of(
    st.dictionaries(st.sampled_from(["call", "pattern", "context", "from", "to", "character", "more"]), VALUES).map(
        json.dumps
    ),
    st.text(max_size=60),
    st.just("[" * 100_000),
)


@hypothesis.settings(
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(asked=st.lists(st.tuples(st.sampled_from(OWN), ARGUMENTS), min_size=1, max_size=5))
async def test_result_tools_answer_any_call_within_bounds_from_own_investigation_only(
    snapshot: record.Snapshot, asked: list[tuple[str, str]]
) -> None:
    box = memory.DictToolbox({"k8s.log": LONG, "k8s.get": "Running"})
    journal = memory.MemoryJournal(snapshot, started(box))
    await run(journal, box, asks(("k8s.log", {}), ("k8s.get", {})), asks(*asked), CONCLUDES)
    answers = [result for call, result in results(journal).items() if call.startswith("1.")]
    assert len(answers) == len(asked)
    for answer in answers:
        assert len(answer.text) <= result_tools.OUTPUT_MAX
        answer.text.encode()  # what is stored and sent
    assert len(box.called) == 2, "no server is asked"
    assert journal.record.executions[ID].ended


@pytest.mark.parametrize("limit", [2_000, 64_000])
async def test_answers_of_these_tools_are_bounded_and_never_excerpts(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, limit: int
) -> None:
    script = (
        GETS,
        asks(("result.read", {"call": "0.0"}), ("result.search", {"call": "0.0", "pattern": "", "context": 20})),
        asks(("result.search", {"call": "0.0", "pattern": ".", "context": 20})),
        CONCLUDES,
    )
    await run(journal, toolbox, *script, limit=limit, excerpt=1_000)
    read = results(journal)
    assert max(len(result.text) for call, result in read.items() if call != "0.0") <= min(
        limit, result_tools.OUTPUT_MAX
    )
    runs = [run for fact in journal.facts if isinstance(fact, entries.ToolsAnswered) for run in fact.runs]
    assert [run.excerpt is not None for run in runs] == [True, False, False, False]
    assert [run.whole is not None for run in runs] == [True, False, False, False]


async def test_calls_of_these_tools_count_as_any_do(snapshot: record.Snapshot, toolbox: memory.DictToolbox) -> None:
    budget = resolve.Budget(at_once=8, calls=4, of_one_tool=2, failed=5)
    limited = memory.MemoryJournal(snapshot, started(toolbox, budget=budget))
    reads = [asks(("result.read", {"call": "0.0", "from": number})) for number in range(1, 9)]
    await run(limited, toolbox, GETS, *reads, CONCLUDES)
    read = results(limited)
    assert [result.failed for result in read.values()] == [False, False, False, True]
    assert read["3.0"].text == templates.fill("refused", why="One tool was called 2 times, as often as it may be.")


async def test_result_that_a_compaction_takes_away_is_looked_into_the_same_way(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    script = (
        GETS,
        asks(("k8s.get", {})),
        asks(("result.read", {"call": f"{ID}/0.0", "from": 2_345, "to": 2_345})),
        CONCLUDES,
    )
    model = await run(journal, toolbox, *script, excerpt=20_000, context_tokens=lambda _: 1_200)
    compacted = [fact for fact in journal.facts if isinstance(fact, entries.ContextCompacted)]
    assert compacted
    seen = [message.text for request in model.requests for message in request.messages if message.role == "tool"]
    assert any(f"result.search and result.read have them: call {ID}/0.0]" in text for text in seen) or any(
        f"; result.read has it: {ID}/0.0]" in text for text in seen
    )
    assert results(journal)["2.0"].text == f"[line 2345 of 4000]\n{LINES[2_344]}"


async def test_result_without_excerpts_is_cut_and_names_the_way_to_the_rest(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    await run(journal, toolbox, GETS, asks(("result.search", {"call": "0.0", "pattern": "ice"})), CONCLUDES,
              excerpt=None, limit=2_000)  # fmt: skip
    read = results(journal)
    assert f"are left out here; result.read has it: {ID}/0.0]" in read["0.0"].text
    assert "2345: the cache of web-0 is as cold as ice" in read["1.0"].text


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ((tool_filters.Filter(allow=("k8s.*",)),), OWN),
        ((tool_filters.Filter(deny=("result.search",)),), ["result.read"]),
        ((tool_filters.Filter(allow=("k8s.*",), deny=("result.*",)),), []),
        ((tool_filters.Filter(deny=("*",)),), []),
    ],
)
async def test_allow_does_not_concern_these_tools_and_deny_takes_them_away(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox, filters: Any, names: list[str]
) -> None:
    journal = memory.MemoryJournal(snapshot, started(toolbox, tools=filters))
    model = await run(journal, toolbox, GETS, asks(("result.search", {"call": "0.0", "pattern": "ice"})), CONCLUDES)
    assert [tool.name for tool in model.requests[1].tools] == ["k8s.log", "k8s.get", *names]
    assert results(journal)["1.0"].failed == ("result.search" not in names)
    assert results(journal)["0.0"].text.partition("\n")[0].endswith("ask for less]" if not names else "any of them]")


async def test_event_of_a_tool_result_names_the_lines_that_its_excerpt_shows(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    await run(journal, toolbox, GETS, CONCLUDES)
    (event,) = [event for event in timelines.of_facts(journal.facts, execution=ID) if event.type == "tool_result"]
    excerpt = event.metadata["excerpt"]
    assert (excerpt["lines"], excerpt["length"]) == (4_000, len(LONG))
    assert (excerpt["shown"][0][0], excerpt["shown"][-1][1]) == (1, 4_000)


# Which results get an excerpt, and of how many characters.


def platform(**summarization: Any) -> platforms.Platform:
    google = {"type": "google", "model": "gemini-2.5-flash"}
    return platforms.Platform.model_validate(
        {
            "llm_providers": {"first": google, "short": google | {"max_tool_result_tokens": 2_000}},
            "mcp_servers": {"k8s": {"transport": {"type": "stdio", "command": "k"}, "summarization": summarization}},
        }
    )


@pytest.mark.parametrize(
    ("written", "provider", "limit"),
    [
        ({}, "first", 20_000),
        ({}, "short", 8_000),
        ({"size_threshold_tokens": 100}, "first", line_excerpts.LEAST),
        ({"size_threshold_tokens": 50_000}, "first", 65_536),
        ({"mode": "off"}, "first", None),
        ({"enabled": False}, "first", None),
        ({"enabled": True}, "first", 40_000),
        ({"mode": "summary"}, "first", 40_000),
        ({"mode": "summary"}, "short", 8_000),
        ({"llm_provider": "short"}, "first", 8_000),
        ({"summary_max_token_limit": 500}, "first", 40_000),
    ],
)
def test_mode_decides_on_the_limit_of_an_excerpt(written: dict[str, Any], provider: str, limit: int | None) -> None:
    assert excerpting.limit(platform(**written), "k8s", provider, 10**6) == limit
    assert excerpting.limit(platform(**written), "gone", provider, 10**6) is None


def test_result_that_is_short_enough_for_no_summary_gets_no_excerpt_in_its_stead() -> None:
    long_enough = platform(mode="summary", size_threshold_tokens=20_000)
    assert excerpting.limit(long_enough, "k8s", "first", 60_000) is None


def test_words_of_an_alert_are_those_of_its_values() -> None:
    alert = json.dumps(
        {"labels": {"alertname": "KubePodCrashLooping", "pod": "web-7d4b9c"}, "n": [{"deep": ["größer"]}, 5]}
    )
    assert excerpting.alert_words(alert) == {"kubepodcrashlooping", "web-7d4b9c", "größer"}
    assert excerpting.alert_words("pod web-0 restarts") == {"web-0", "restarts"}
    assert excerpting.alert_words("[" * 100_000) == frozenset()


async def test_large_results_are_looked_through_in_a_thread(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    async def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        threads.append(function.__name__)
        return function(*arguments)

    monkeypatch.setattr("asyncio.to_thread", to_thread)
    assert len(LONG) > excerpting.ON_LOOP_MAX
    await call_result(journal, toolbox, "result.read", {"call": "0.0"})
    assert threads == ["_excerpt", "<lambda>"]

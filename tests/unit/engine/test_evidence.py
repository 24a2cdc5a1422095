"""Grounds of a result: folded from what was looked at, what failed, and what analyses name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import steps, stories
from tarsy.agent import templates
from tarsy.engine import evidence
from tarsy.transcript import entries, messages, record

Ran = tuple[str, str, bool]
"""A call's arguments, what came of it, and whether that is an error."""
CUT = "a part of it"
"""Mark of a result of which more was kept than was read."""


def execution(
    identity: str,
    *calls: Ran,
    analysis: str = "It is out of memory.",
    index: int = 0,
    kind: entries.ExecutionKind = "agent",
    problems: Sequence[str] = (),
    ungrounded: bool = False,
) -> record.Execution:
    """One that made these calls of k8s.get, each in a turn of its own, and completed with `analysis`."""
    log: messages.Log = []
    for call_number, (arguments, text, failed) in enumerate(calls):
        call = messages.ToolCall(id=f"{call_number}.0", name="k8s.get", arguments=arguments)
        log.append(messages.Message(role="assistant", calls=(call,)))
        log.append(messages.Message(role="tool", call_id=call.id, tool_name="k8s.get", text=text, failed=failed))
    log.append(messages.Message(role="assistant", text=analysis))
    started = replace(
        stories.started(identity, index=index), kind=kind, agent=replace(stories.AGENT, problems=tuple(problems))
    )
    ended = entries.ExecutionEnded(execution=identity, outcome="Completed", ungrounded=ungrounded)
    cut = {f"{call_number}.0": 100_000 for call_number, (_, text, _) in enumerate(calls) if text == CUT}
    return record.Execution(started=started, log=log, ended=ended, cut=cut)


def run(*stages: Sequence[record.Execution]) -> record.Run:
    return record.Run(
        stages={
            f"stage-{number}": record.Stage(
                started=stories.stage_started(f"stage-{number}"),
                executions={stage_execution.started.execution: stage_execution for stage_execution in executions},
                ended=stories.stage_ended(f"stage-{number}"),
            )
            for number, executions in enumerate(stages)
        }
    )


LOOKED: Ran = ("{}", "CrashLoopBackOff", False)
DENIED: Ran = ("{}", "403 Forbidden", True)


@pytest.mark.parametrize(
    ("finished", "expected"),
    [
        (run([execution("a", LOOKED)]), "Inspected"),
        (run([execution("a", LOOKED, analysis="It is [tool 0.0].")]), "Inspected"),
        (run([execution("a", DENIED)]), "NothingInspected"),
        (run([execution("a")]), "NothingInspected"),
        (run([execution("a", ungrounded=True)]), "NothingInspected"),
        (run([execution("a", LOOKED, ('{"n": 1}', "403", True))]), "InspectedWithGaps"),
        (run([execution("a", ("{}", CUT, False))]), "InspectedWithGaps"),
        (run([execution("a", LOOKED, problems=["MCP server 'aws' cannot be reached: no"])]), "InspectedWithGaps"),
        (run([execution("a", LOOKED, analysis="It is [tool 3.1].")]), "UnknownReferences"),
        (run([execution("a", DENIED, analysis="It is [tool 3.1].")]), "NothingInspected"),
        (run([execution("a", analysis="")]), None),
        (run(), None),
    ],
)
def test_grounds_of_a_result_are_those_of_the_table(finished: record.Run, expected: entries.Grounds | None) -> None:
    assert evidence.grounds(finished) == expected


def away(
    before: record.Execution, *servers: str, calls: Sequence[str] = (), has: Sequence[str] = ("k8s",)
) -> record.Execution:
    """The same with these servers away, of those that it has, and these calls that reached none."""
    agent = replace(stories.AGENT, servers=tuple(has))
    tools = (replace(stories.TOOL, name="k8s.get"),)
    started = replace(before.started, agent=agent, tools=tools)
    return replace(before, started=started, away=set(servers), unreached=set(calls))


REPEATED: Ran = ("{}", templates.text("repeated"), True)
REFUSED: Ran = ("{}", templates.fill("refused", why="3 calls in a row failed."), True)


@pytest.mark.parametrize(
    ("blind", "servers"),
    [
        (execution("a"), ()),
        (away(execution("a"), "k8s"), ("k8s",)),
        (away(execution("a"), "k8s", has=["k8s", "aws"]), ()),
        (away(execution("a"), "aws", "k8s", has=["k8s", "aws"]), ("k8s", "aws")),
        (away(execution("a"), has=[]), ()),
        (away(execution("a", LOOKED), "k8s"), ()),
        (away(execution("a", DENIED), "k8s"), ()),
        (away(execution("a", DENIED), "k8s", calls=["0.0"]), ("k8s",)),
        (away(execution("a", DENIED, DENIED), "k8s", calls=["0.0"]), ()),
        (away(execution("a", DENIED, REPEATED, REFUSED), "k8s", calls=["0.0"]), ("k8s",)),
    ],
)
def test_servers_of_an_execution_were_away_if_none_answered_a_call(
    blind: record.Execution, servers: tuple[str, ...]
) -> None:
    assert evidence.servers_away(blind) == servers
    assert evidence.grounds(run([blind])) == (
        "ServersAway" if servers else "Inspected" if record.results(blind.log) else "NothingInspected"
    )


def test_line_of_what_could_not_be_looked_at_is_short_and_names_each_server_once() -> None:
    names = [f"server-{number}" for number in range(8)]
    blind = away(execution("a"), *names, has=names)
    finished = run([blind], [execution("b", LOOKED)], [blind])
    assert evidence.away_notice(finished) == (
        "Could not be looked at: MCP servers server-0, server-1, server-2, server-3, server-4 and 3 more "
        "could not be reached (stages stage-0, stage-2)."
    )
    assert evidence.away_notice(run([execution("b")])) == ""


def test_a_call_that_failed_and_then_answered_is_no_gap() -> None:
    assert evidence.gaps(run([execution("a", DENIED, LOOKED)])) == ()


def test_each_gap_names_tool_and_reason_and_is_reported_once() -> None:
    finished = run(
        [
            execution(
                "a",
                LOOKED,
                ('{"n": 1}', "403\n  Forbidden", True),
                ('{"n": 2}', "403\n  Forbidden", True),
                ('{"n": 3}', CUT, False),
                problems=["MCP server 'aws' cannot be reached: no", "MCP server 'gcp' is not connected yet"],
                analysis="It is [tool 9.9].",
            )
        ]
    )
    assert evidence.gaps(finished) == (
        entries.Gap(
            tool="[tool 9.9]", reason="there was no such call: it is named in the analysis of KubernetesAgent-1"
        ),
        entries.Gap(tool="aws", reason="cannot be reached: no"),
        entries.Gap(tool="gcp", reason="is not connected yet"),
        entries.Gap(tool="k8s.get", reason="403 Forbidden"),
        entries.Gap(tool="k8s.get", reason="its result was cut"),
    )


def test_gaps_are_ten_at_most_and_short() -> None:
    finished = run([execution("a", *((f'{{"n": {n}}}', f"{n} " + "x" * 10_000, True) for n in range(50)))])
    gaps = evidence.gaps(finished)
    assert len(gaps) == 10
    assert all(len(gap.reason) <= evidence.REASON_MAX for gap in gaps)


def test_calls_of_earlier_stages_may_be_named_and_those_of_a_sibling_may_not() -> None:
    three = execution("a", LOOKED, LOOKED, LOOKED)
    own = execution("b", LOOKED, analysis="See [tool 2.0].", index=1)
    assert evidence.grounds(run([three], [own])) == "Inspected"
    assert evidence.grounds(run([three, own])) == "UnknownReferences", "it has not seen what its sibling did"
    joined = execution("s", analysis="See [tools 2.0, 0.0].", kind="synthesis")
    assert evidence.grounds(run([three, execution("b", LOOKED, index=1), joined])) == "Inspected", (
        "a synthesis has seen all"
    )


def test_a_call_without_a_result_shows_nothing() -> None:
    asked = execution("a", LOOKED, LOOKED, analysis="See [tool 1.0].")
    unanswered = [entry for entry in asked.log if not (isinstance(entry, messages.Message) and entry.call_id == "1.0")]
    assert evidence.grounds(run([replace(asked, log=unanswered)])) == "UnknownReferences"


@pytest.mark.parametrize(
    "text",
    ["[tool]", "[tool 1]", "[tool one.two]", "tool 7.7", "[tool 7.7", "[tool 7.7.7]", "[tool x 7.7]", "[tooling 7.7]"],
)
def test_text_that_is_no_reference_is_no_gap(text: str) -> None:
    assert evidence.grounds(run([execution("a", LOOKED, analysis=f"It is {text}.")])) == "Inspected"


@pytest.mark.parametrize(
    "text",
    ["[tool 7.7]", "[Tool 7.7]", "[tools 0.0, 7.7]", "[tool 0.0, tool 7.7]", "[tool 0.0 and 7.7]", "[tool call 7.7]"],
)
def test_reference_to_nonexistent_tool_call_is_found_in_any_notation(text: str) -> None:
    finished = run([execution("a", LOOKED, analysis=f"It is {text}.")])
    assert evidence.grounds(finished) == "UnknownReferences"
    assert [gap.tool for gap in evidence.gaps(finished)] == ["[tool 7.7]"]


def test_ungrounded_conclusion_is_not_grounded_by_tool_calls_of_a_failed_agent() -> None:
    looked = execution("a", LOOKED)
    failed = replace(looked, ended=replace(looked.ended, outcome="Failed"))  # type: ignore[type-var]
    assert evidence.grounds(run([failed, execution("b", ungrounded=True, index=1)])) == "NothingInspected"
    assert evidence.grounds(run([looked], [execution("b", ungrounded=True)])) == "InspectedWithGaps"


def test_note_in_place_of_repeated_call_is_neither_evidence_nor_gap() -> None:
    note = ("{}", templates.text("repeated"), True)
    assert evidence.grounds(run([execution("a", DENIED, DENIED, note)])) == "NothingInspected"
    assert [gap.reason for gap in evidence.gaps(run([execution("a", DENIED, DENIED, note)]))] == ["403 Forbidden"]
    assert evidence.grounds(run([execution("a", LOOKED, LOOKED, note)])) == "Inspected"


def test_ten_references_are_looked_for_in_an_analysis_of_nothing_but_references() -> None:
    analysis = "".join(f"[tool {number}.7]" for number in range(1, 100_000))
    finished = run(
        [execution("a", LOOKED, analysis=analysis), execution("b", LOOKED, analysis="[tool " * 150_000, index=1)]
    )
    gaps = evidence.gaps(finished)
    assert [gap.tool for gap in gaps] == [f"[tool {number}.7]" for number in range(1, 11)]
    assert steps.count(lambda: evidence.gaps(finished)) < 1_000


@given(st.text(), st.lists(st.tuples(st.text(), st.text(), st.booleans()), max_size=5))
def test_gaps_of_any_analysis_are_bounded_and_never_raise(analysis: str, calls: list[Ran]) -> None:
    finished = run([execution("a", *calls, analysis=analysis)])
    assert len(evidence.gaps(finished)) <= 10
    assert (evidence.grounds(finished) is None) == (not analysis)

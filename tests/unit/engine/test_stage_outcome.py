"""What a stage's agents make of it: every row of the table in `engine.stage`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tarsy.config import resolve
from tarsy.engine import handover, stage
from tarsy.resources import chains
from tarsy.transcript import entries, messages, record

OUTCOMES: dict[str, entries.Outcome] = {"C": "Completed", "F": "Failed", "T": "TimedOut", "X": "Cancelled"}
WHY = {"C": "", "F": "no model", "T": "Stage look timed out after 60 s", "X": "by the user"}

TABLE = """
agents  any        all
C       Completed  Completed
F       Failed     Failed
T       TimedOut   TimedOut
X       Failed     Failed
CC      Completed  Completed
CF      Completed  Failed
CT      Completed  Failed
FC      Completed  Failed
FF      Failed     Failed
FT      Failed     Failed
TC      Completed  Failed
TF      Failed     Failed
TT      TimedOut   TimedOut
TX      Failed     Failed
CCC     Completed  Completed
CCF     Completed  Failed
CCT     Completed  Failed
CFC     Completed  Failed
CFF     Completed  Failed
CFT     Completed  Failed
CTC     Completed  Failed
CTF     Completed  Failed
CTT     Completed  Failed
FCC     Completed  Failed
FCF     Completed  Failed
FCT     Completed  Failed
FFC     Completed  Failed
FFF     Failed     Failed
FFT     Failed     Failed
FTC     Completed  Failed
FTF     Failed     Failed
FTT     Failed     Failed
TCC     Completed  Failed
TCF     Completed  Failed
TCT     Completed  Failed
TFC     Completed  Failed
TFF     Failed     Failed
TFT     Failed     Failed
TTC     Completed  Failed
TTF     Failed     Failed
TTT     TimedOut   TimedOut
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()[1:]]


def agent(*lacks: str) -> resolve.ResolvedAgent:
    return resolve.ResolvedAgent(
        name="A",
        provider="first",
        strategy="native-thinking",
        max_iterations=20,
        servers=(),
        custom_instructions="",
        server_instructions=(),
        problems=lacks,
    )


def ended(letters: str, *, lacks: Sequence[tuple[str, ...]] = ()) -> record.Stage:
    """A stage whose agents have ended like this, in this order."""
    executions = {}
    for index, letter in enumerate(letters):
        name = f"e{index}"
        said: messages.Log = [messages.Message(role="assistant", text=f"A-{index + 1} knows.")]
        executions[name] = record.Execution(
            started=entries.ExecutionStarted(
                stage="look",
                execution=name,
                index=index,
                name=f"A-{index + 1}",
                agent=agent(*lacks[index]) if lacks else None,
            ),
            log=said if letter == "C" else [],
            ended=entries.ExecutionEnded(execution=name, outcome=OUTCOMES[letter], error=WHY[letter]),
        )
    return record.Stage(started=entries.StageStarted(stage="look", clock=0.0), executions=executions)


def test_the_table_has_every_row_of_up_to_three_agents() -> None:
    assert sorted(row[0] for row in ROWS if "X" not in row[0]) == sorted(
        {"C", "F", "T"}
        | {a + b for a in "CFT" for b in "CFT"}
        | {a + b + c for a in "CFT" for b in "CFT" for c in "CFT"}
    )


@pytest.mark.parametrize(("agents", "of_any", "of_all"), ROWS, ids=[row[0] for row in ROWS])
def test_a_stages_outcome_is_that_of_the_table(agents: str, of_any: str, of_all: str) -> None:
    policies: list[tuple[chains.SuccessPolicy, str]] = [("any", of_any), ("all", of_all)]
    for policy, outcome in policies:
        end = stage.end_of(ended(agents), policy=policy)
        assert (end.stage, end.run, end.outcome, end.lacks) == ("look", 0, outcome, ())
        failed = [(f"A-{index}: ", WHY[letter]) for index, letter in enumerate(agents, 1) if WHY[letter]]
        if outcome == "TimedOut":
            assert end.message == WHY["T"], "it is one and the same for all of them"
        elif len(agents) == 1:
            assert end.message == "".join(why for _, why in failed), "there is only one whom it can be about"
        else:
            assert end.message == "; ".join(name + why for name, why in failed)


@pytest.mark.parametrize("policy", ["any", "all"])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_outcome_is_the_same_whichever_began_first(policy: chains.SuccessPolicy, reverse: bool) -> None:
    found = ended("CFT")
    found.executions = dict(sorted(found.executions.items(), reverse=reverse))
    assert stage.end_of(found, policy=policy) == stage.end_of(ended("CFT"), policy=policy)


@pytest.mark.parametrize(
    ("agents", "lacks", "told"),
    [
        ("C", [("no tools",)], ("no tools",)),
        ("CF", [("no tools",), ("no tools", "nor those")], ("no tools", "nor those")),
        ("CC", [(), ("nor those",)], ("nor those",)),
        ("FF", [(), ()], ()),
    ],
)
def test_what_the_agents_had_to_do_without_is_told_once_and_apart_from_what_failed(
    agents: str, lacks: list[tuple[str, ...]], told: tuple[str, ...]
) -> None:
    end = stage.end_of(ended(agents, lacks=lacks), policy="any")
    assert end.lacks == told
    assert not any(lack in end.message for lack in told)
    assert end.message == stage.end_of(ended(agents), policy="any").message


@pytest.mark.parametrize(
    ("agents", "result"),
    [
        ("C", "A-1 knows."),
        ("F", ""),
        ("CC", "#### Agent 1: A-1\n\nA-1 knows.\n\n#### Agent 2: A-2\n\nA-2 knows."),
        ("FCT", "#### Agent 2: A-2\n\nA-2 knows."),
        ("FT", ""),
    ],
)
def test_the_result_of_a_stage_is_what_its_agents_found_under_their_names(agents: str, result: str) -> None:
    assert handover.analysis(ended(agents)) == result


def joined(letters: str, letter: str) -> record.Stage:
    """The same, with what joins their results, which has ended like this."""
    found = ended(letters)
    said: messages.Log = [messages.Message(role="assistant", text="All of it.")]
    start = entries.ExecutionStarted(
        stage="look", execution="s", kind="synthesis", index=0, name="SynthesisAgent", agent=agent("no tools at all")
    )
    end = entries.ExecutionEnded(execution="s", outcome=OUTCOMES[letter], error=WHY[letter])
    joining = record.Execution(started=start, log=said if letter == "C" else [], ended=end)
    return replace(found, executions={"s": joining, **found.executions})


@pytest.mark.parametrize("policy", ["any", "all"])
@pytest.mark.parametrize(
    ("agents", "synthesis", "outcome", "message"),
    [
        ("CC", "C", "Completed", ""),
        ("CC", "F", "CompletedWithErrors", "synthesis by SynthesisAgent: no model"),
        ("CC", "T", "CompletedWithErrors", "synthesis by SynthesisAgent: Stage look timed out after 60 s"),
        ("CCC", "X", "CompletedWithErrors", "synthesis by SynthesisAgent: by the user"),
    ],
)
def test_a_synthesis_that_fails_takes_nothing_but_a_flaw_to_its_stage(
    policy: chains.SuccessPolicy, agents: str, synthesis: str, outcome: str, message: str
) -> None:
    end = stage.end_of(joined(agents, synthesis), policy=policy)
    assert (end.outcome, end.message, end.lacks) == (outcome, message, ())


@pytest.mark.parametrize("synthesis", ["F", "T", "X"])
def test_what_failed_of_the_agents_is_told_before_what_failed_of_their_synthesis(synthesis: str) -> None:
    end = stage.end_of(joined("CF", synthesis), policy="any")
    assert (end.outcome, end.message) == (
        "CompletedWithErrors",
        f"A-2: no model; synthesis by SynthesisAgent: {WHY[synthesis]}",
    )


@pytest.mark.parametrize(
    ("agents", "synthesis", "result"),
    [
        ("CF", "C", "All of it."),
        ("CF", "F", "#### Agent 1: A-1\n\nA-1 knows."),
        ("CC", "T", "#### Agent 1: A-1\n\nA-1 knows.\n\n#### Agent 2: A-2\n\nA-2 knows."),
    ],
)
def test_the_result_of_a_stage_is_its_synthesis_if_there_is_one(agents: str, synthesis: str, result: str) -> None:
    assert handover.analysis(joined(agents, synthesis)) == result


def test_they_are_told_by_their_places_whichever_began_first() -> None:
    found, backwards = ended("CFC"), ended("CFC")
    backwards.executions = dict(reversed(found.executions.items()))
    assert handover.analysis(backwards) == handover.analysis(found)
    for one in (found, backwards):
        one.ended = stage.end_of(one, policy="any")
    told = [handover.earlier_stages(record.Run(stages={"look": one}), reads="results") for one in (found, backwards)]
    assert told[0] == told[1]
    assert told[0].index("#### Agent 1: A-1") < told[0].index("#### Agent 2: A-2") < told[0].index("#### Agent 3: A-3")

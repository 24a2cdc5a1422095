"""The outcomes of stages and runs: every row of the tables in `engine.outcomes`, and the fold of executions' ends."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.config import resolve
from tarsy.engine import handover, outcomes
from tarsy.resources import chains
from tarsy.transcript import entries, messages, record
from tarsy.transcript.kinds import registry

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
FF      Failed     Failed
FT      Failed     Failed
TT      TimedOut   TimedOut
TX      Failed     Failed
CCC     Completed  Completed
CCF     Completed  Failed
CCT     Completed  Failed
CFF     Completed  Failed
CFT     Completed  Failed
CTT     Completed  Failed
FFF     Failed     Failed
FFT     Failed     Failed
FTT     Failed     Failed
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


def stage_spec(members: int, policy: chains.SuccessPolicy = "any", *, name: str = "look") -> chains.Stage:
    return chains.Stage.model_validate({"name": name, "agent": "A", "replicas": members, "successPolicy": policy})


def stage_end(stage: record.Stage, *, policy: chains.SuccessPolicy = "any") -> entries.StageEnded:
    return outcomes.stage_end(stage_spec(len(stage.agents), policy), stage)


def ended(letters: str, *, lacks: Sequence[tuple[str, ...]] = ()) -> record.Stage:
    """A stage whose agents have ended like this, in this order."""
    executions = {}
    for index, letter in enumerate(letters):
        name = f"e{index}"
        answer_log: messages.Log = [messages.Message(role="assistant", text=f"A-{index + 1} knows.")]
        executions[name] = record.Execution(
            started=entries.ExecutionStarted(
                stage="look",
                execution=name,
                index=index,
                name=f"A-{index + 1}",
                agent=agent(*lacks[index]) if lacks else None,
            ),
            log=answer_log if letter == "C" else [],
            ended=entries.ExecutionEnded(execution=name, outcome=OUTCOMES[letter], error=WHY[letter]),
        )
    return record.Stage(started=entries.StageStarted(stage="look", clock=0.0), executions=executions)


def test_the_table_has_every_row_of_up_to_three_agents() -> None:
    combinations = [itertools.combinations_with_replacement("CFT", number) for number in (1, 2, 3)]
    expected = {"".join(letters) for letters in itertools.chain(*combinations)}
    assert {row[0] for row in ROWS if "X" not in row[0]} == expected


@pytest.mark.parametrize(("agents", "of_any", "of_all"), ROWS, ids=[row[0] for row in ROWS])
def test_a_stages_outcome_is_that_of_the_table(agents: str, of_any: str, of_all: str) -> None:
    policies: list[tuple[chains.SuccessPolicy, str]] = [("any", of_any), ("all", of_all)]
    for (policy, outcome), letters in itertools.product(policies, set(itertools.permutations(agents))):
        end = stage_end(ended("".join(letters)), policy=policy)
        assert (end.stage, end.run, end.outcome, end.lacks) == ("look", 0, outcome, ())
        failed = [(f"A-{index}: ", WHY[letter]) for index, letter in enumerate(letters, 1) if WHY[letter]]
        if outcome == "TimedOut":
            assert end.message == WHY["T"], "it is one and the same for all of them"
        elif len(agents) == 1:
            assert end.message == "".join(why for _, why in failed), "there is only one whom it can be about"
        else:
            assert end.message == "; ".join(name + why for name, why in failed)


@pytest.mark.parametrize(
    ("agents", "lacks", "expected"),
    [
        ("C", [("no tools",)], ("no tools",)),
        ("CF", [("no tools",), ("no tools", "nor those")], ("no tools", "nor those")),
        ("CC", [(), ("nor those",)], ("nor those",)),
        ("FF", [(), ()], ()),
    ],
)
def test_missing_tools_of_agents_are_reported_once_and_apart_from_failures(
    agents: str, lacks: list[tuple[str, ...]], expected: tuple[str, ...]
) -> None:
    end = stage_end(ended(agents, lacks=lacks))
    assert end.lacks == expected
    assert not any(lack in end.message for lack in expected)
    assert end.message == stage_end(ended(agents)).message


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
def test_stage_result_lists_findings_of_agents_under_their_names(agents: str, result: str) -> None:
    assert handover.analysis(ended(agents)) == result


def joined(letters: str, letter: str) -> record.Stage:
    """The same, with what joins their results, which has ended like this."""
    stage = ended(letters)
    answer_log: messages.Log = [messages.Message(role="assistant", text="All of it.")]
    start = entries.ExecutionStarted(
        stage="look", execution="s", kind="synthesis", index=0, name="SynthesisAgent", agent=agent("no tools at all")
    )
    end = entries.ExecutionEnded(execution="s", outcome=OUTCOMES[letter], error=WHY[letter])
    joining = record.Execution(started=start, log=answer_log if letter == "C" else [], ended=end)
    return replace(stage, executions={"s": joining, **stage.executions})


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
    end = stage_end(joined(agents, synthesis), policy=policy)
    assert (end.outcome, end.message, end.lacks) == (outcome, message, ())


@pytest.mark.parametrize("synthesis", ["F", "T", "X"])
def test_stage_message_names_agent_failures_before_synthesis_failure(synthesis: str) -> None:
    end = stage_end(joined("CF", synthesis))
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
def test_stage_result_is_the_synthesis_result_if_synthesis_ran(agents: str, synthesis: str, result: str) -> None:
    assert handover.analysis(joined(agents, synthesis)) == result


RUNS = """
stages  Continue             Stop
C       Completed            Completed
CC      Completed            Completed
E       CompletedWithErrors  CompletedWithErrors
CE      CompletedWithErrors  CompletedWithErrors
F       Failed               Failed
T       Failed               Failed
FF      Failed               Failed
TF      Failed               Failed
CF      CompletedWithErrors  Failed
FC      CompletedWithErrors  Failed
TE      CompletedWithErrors  Failed
ECT     CompletedWithErrors  Failed
"""
STAGE_OUTCOMES: dict[str, entries.StageOutcome] = {**OUTCOMES, "E": "CompletedWithErrors"}


def chain(stages: Sequence[chains.Stage], policy: str) -> chains.Spec:
    return chains.Spec.model_validate(
        {"alertTypes": ["A"], "failurePolicy": policy, "stages": [stage.model_dump(by_alias=True) for stage in stages]}
    )


@pytest.mark.parametrize(("stages", "of_continue", "of_stop"), [line.split() for line in RUNS.strip().splitlines()[1:]])
def test_outcome_of_a_run_is_that_of_the_table(stages: str, of_continue: str, of_stop: str) -> None:
    run = record.Run()
    for number, letter in enumerate(stages):
        stage = ended("C" if letter in "CE" else letter)
        stage.ended = replace(stage_end(stage), stage=f"s{number}", outcome=STAGE_OUTCOMES[letter])
        run.stages[f"s{number}"] = stage
    specs = [stage_spec(1, name=name) for name in run.stages]
    for policy, ending in (("Continue", of_continue), ("Stop", of_stop)):
        end = outcomes.run_end(chain(specs, policy), run)
        assert (end.ending, end.reason) == (ending, "StagesCompleted" if ending == "Completed" else "StagesFailed")


SNAPSHOT = record.Snapshot(
    id="1",
    namespace="n",
    name="i",
    alert_type="A",
    alert_data="{}",
    chain_name="c",
    chain=chain([stage_spec(1)], "Stop"),
)
LETTERS = st.sampled_from("CFT")


class Play:
    """An investigation whose executions end one after the other, each with the ends that follow."""

    def __init__(self, spec: chains.Spec) -> None:
        self.record = registry.fold(replace(SNAPSHOT, chain=spec), [])

    def begin(self, stage: str, kind: entries.ExecutionKind, index: int = 0) -> str:
        identity = f"{stage}-{kind}-{index}"
        self.add(
            entries.ExecutionStarted(
                stage=stage, execution=identity, kind=kind, index=index, name=f"A-{index}", agent=agent()
            )
        )
        return identity

    def end(self, identity: str, letter: str) -> None:
        end = entries.ExecutionEnded(execution=identity, outcome=OUTCOMES[letter], error=WHY[letter])
        answer_log: messages.Log = [messages.Message(role="assistant", text=f"{identity} knows.")]
        self.record.executions[identity].log.extend(answer_log)
        after = replace(self.record.executions[identity], ended=end)
        follow = outcomes.ends_with(self.record, after)
        self.stop()
        self.add(end, *follow)

    def stop(self) -> None:
        """Check that a cancel at this moment would end all that is open."""
        stopped = copy.deepcopy(self.record)
        for entry in outcomes.stopped(stopped, 0, "Cancelled", reason="Cancelled", message="by the user"):
            registry.apply(stopped, entry)
        assert stopped.order.open == {}

    def add(self, *added: entries.Entry) -> None:
        for entry in added:  # an OutOfOrderError says that one cannot follow
            registry.apply(self.record, entry)


@given(data=st.data(), policy=st.sampled_from(["Continue", "Stop"]))
def test_stage_and_run_end_with_their_last_execution_in_any_order(data: st.DataObject, policy: str) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["any", "all"])), min_size=1, max_size=3))
    specs = [stage_spec(size, success, name=f"s{number}") for number, (size, success) in enumerate(sizes)]  # type: ignore[arg-type]
    play = Play(chain(specs, policy))
    for spec in specs:
        if play.record.ended:
            break
        play.add(entries.StageStarted(stage=spec.name, clock=0.0))
        members = [play.begin(spec.name, "agent", index) for index in range(len(spec.members))]
        letters = {identity: data.draw(LETTERS) for identity in members}
        for identity in data.draw(st.permutations(members)):
            assert play.record.stages[spec.name].ended is None
            play.end(identity, letters[identity])
        if outcomes.synthesis_is_due(spec, play.record.stages[spec.name]):
            assert len(members) > 1
            play.end(play.begin(spec.name, "synthesis"), data.draw(LETTERS))
        end = play.record.stages[spec.name].ended
        assert end == outcomes.stage_end(spec, play.record.stages[spec.name])
        is_last = spec is specs[-1] or (policy == "Stop" and end.outcome in ("Failed", "TimedOut"))
        assert (play.record.ended is not None) == is_last
    assert play.record.order.open == {}
    assert list(play.record.stages) == [spec.name for spec in specs]
    assert play.record.ended == outcomes.run_end(play.record.snapshot.chain, play.record.runs[0])

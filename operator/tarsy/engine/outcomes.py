"""The ends of stages and runs: pure functions of the chain and the record.

An execution's end is committed together with all that ends with it (`ends_with`): its stage, the stages that are
skipped, its run.

    successPolicy   the stage's agents              the stage
    any             one or more Completed           Completed; its message names those that did not
    all             all Completed                   Completed
    either          all TimedOut                    TimedOut
    either          anything else                   Failed

A completed stage is CompletedWithErrors if the synthesis of its agents' results failed, or if an agent could call none
of its MCP servers because they were away.

    the run's stages                    failurePolicy Continue      failurePolicy Stop
    all Completed                       Completed                   Completed
    no failure, one or more errors      CompletedWithErrors         CompletedWithErrors
    a failure, one or more completed    CompletedWithErrors         Failed
    none completed                      Failed                      Failed

A failure is Failed or TimedOut. With failurePolicy Stop the stages after it are skipped.

If a budget is used up, the open executions end, with or without a conclusion. There is no synthesis and no summary, and
the stages after it are skipped; that is an error of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tarsy.engine import evidence, handover
from tarsy.resources import chains
from tarsy.transcript import entries, excerpts, messages, record

SHOWN_OF_A_STAGE = 203
"""The maximum length of a stage's result, or error, in the account of the stages: 200 characters and `...`."""
SUMMARY_LINES_MAX, SUMMARY_MAX = 4, 1024
"""The maximum lines and characters of a stored summary."""


def ends_with(so_far: record.Record, *ended: record.Execution) -> list[entries.Entry]:
    """Return the ends that follow when executions of one stage end, or a summary, or an answer.

    `ended` are the states of these executions after their ends, which the record need not hold yet. The result has the
    end of their stage, of skipped stages, and of the run, in this order, as far as they end.
    """
    started = ended[0].started
    chain, run = so_far.snapshot.chain, so_far.runs[started.run]
    if started.kind == "chat":
        return [answer_end(ended[0])]
    if started.kind == "summary":
        return [replace(run_end(chain, run), summary=_summary(run, ended[0].analysis))]
    spec = next(stage for stage in chain.stages if stage.name == started.stage)
    before = run.stages[spec.name].executions if spec.name in run.stages else {}
    stage = record.Stage(started=None, executions={**before, **{end.started.execution: end for end in ended}})
    if not is_done(spec, stage):
        return []
    stage.ended = stage_end(spec, stage)
    after = record.Run(stages=run.stages | {spec.name: stage})
    skipped = skipped_stages(chain, after)
    after.stages |= {end.stage: record.Stage(started=None, ended=end) for end in skipped}
    run_ended = [run_end(chain, after)] if len(after.stages) == len(chain.stages) else []
    return [stage.ended, *skipped, *run_ended]


def stopped(
    so_far: record.Record, run: int, ending: entries.Outcome, *, reason: str, message: str
) -> list[entries.Entry]:
    """Return the ends of a run that is cancelled, or whose deadline has passed, and of all that is open in it.

    At its deadline an investigation of which only the summary is missing ends as its stages ended: the work is done.
    """
    chain, run_so_far = so_far.snapshot.chain, so_far.runs[run]
    has_ended = [name for name, stage in run_so_far.stages.items() if stage.ended]
    if ending == "TimedOut" and run == entries.INVESTIGATION and len(has_ended) == len(chain.stages):
        ends = ends_of_open(run_so_far, "TimedOut", message="the investigation's deadline came first")
        return [*ends, run_end(chain, run_so_far)]
    gaps = evidence.gaps(run_so_far)
    return [
        *ends_of_open(run_so_far, ending, message=message),
        entries.RunEnded(run=run, ending=ending, reason=reason, message=message, gaps=gaps),
    ]


def ends_of_open(run: record.Run, outcome: entries.Outcome, *, message: str) -> list[entries.Entry]:
    """Return the ends of the executions and stages that are open in a run, each after those within it."""
    ends: list[entries.Entry] = []
    scopes: tuple[record.Run | record.Stage, ...] = (run, *run.stages.values())
    for scope in scopes:
        ends += [
            entries.ExecutionEnded(execution=identity, outcome=outcome, error=message)
            for identity, execution in scope.executions.items()
            if execution.ended is None
        ]
        if isinstance(scope, record.Stage) and scope.started and scope.ended is None:
            started = scope.started
            ends.append(entries.StageEnded(run=started.run, stage=started.stage, outcome=outcome, message=message))
    return ends


def is_done(spec: chains.Stage, stage: record.Stage) -> bool:
    """Return whether all agents of a stage have ended, and the synthesis of their results if there is to be one."""
    has_all = len(stage.agents) == len(spec.members)
    return has_all and all(run.ended for run in stage.executions.values()) and not synthesis_is_due(spec, stage)


def synthesis_is_due(spec: chains.Stage, stage: record.Stage) -> bool:
    """Return whether the results of several agents, of a stage that completed, have still to be joined."""
    agents = stage.agents
    if len(agents) < max(2, len(spec.members)) or not all(agent.ended for agent in agents):
        return False
    is_joined = stage.synthesis is not None and stage.synthesis.ended is not None
    if any(messages.budget_used_up(agent.log) for agent in agents):
        return False
    return not is_joined and agents_outcome(spec, agents) == "Completed"


def agents_outcome(spec: chains.Stage, agents: Sequence[record.Execution]) -> entries.StageOutcome:
    """Return the outcome of a stage whose agents have all ended: the first table above."""
    outcomes = [agent.ended.outcome for agent in agents if agent.ended]
    completed = outcomes.count("Completed")
    if completed == len(outcomes) or (completed and spec.success_policy != "all"):
        return "Completed"
    return "TimedOut" if outcomes.count("TimedOut") == len(outcomes) else "Failed"


def stage_end(spec: chains.Stage, stage: record.Stage) -> entries.StageEnded:
    """Return the end of a stage whose executions have all ended."""
    agents, synthesis = stage.agents, stage.synthesis
    outcome = agents_outcome(spec, agents)
    ends = [(agent.started.name, agent.ended.error) for agent in agents if agent.ended and agent.ended.error]
    if len(agents) > 1 and outcome != "TimedOut":
        errors = [f"{name}: {error}" for name, error in ends]
    else:
        errors = list(dict.fromkeys(error for _, error in ends))
    for agent in agents:
        if agent.analysis and (servers := evidence.servers_away(agent)):
            outcome = "CompletedWithErrors" if outcome == "Completed" else outcome
            errors.append(f"{agent.started.name}: none of its MCP servers could be reached: {', '.join(servers)}")
    if synthesis and synthesis.ended and synthesis.ended.outcome != "Completed":
        outcome = "CompletedWithErrors"
        errors.append(f"synthesis by {synthesis.started.name}: {synthesis.ended.error}")
    problems = (problem for agent in agents if agent.started.agent for problem in agent.started.agent.problems)
    return entries.StageEnded(
        run=agents[0].started.run,
        stage=spec.name,
        outcome=outcome,
        message="; ".join(errors),
        lacks=tuple(dict.fromkeys(problems)),
    )


def skipped_stages(chain: chains.Spec, run: record.Run) -> list[entries.StageEnded]:
    """Return the ends of the stages that are left after a failure, or once a budget is used up."""
    failed = [end for end in _ends(run) if _has_failed(end)]
    if used_up := budget_used_up(run):
        message = f"skipped: {used_up}"
    elif failed and chain.failure_policy == "Stop":
        message = f"skipped by failurePolicy Stop: {_problem(failed[0])}"
    else:
        return []
    left = [stage.name for stage in chain.stages if stage.name not in run.stages]
    return [entries.StageEnded(stage=name, outcome="Skipped", message=message) for name in left]


def budget_used_up(run: record.Run) -> str:
    """Return how a budget ended executions of a run's stages; "" if none did."""
    logs = (execution.log for stage in run.stages.values() for execution in stage.executions.values())
    return next((failure.text for log in logs if (failure := messages.budget_used_up(log))), "")


def run_end(chain: chains.Spec, run: record.Run) -> entries.RunEnded:
    """Return the end of an investigation whose stages have all ended: the second table above.

    The result is the last analysis, with any outcome. Before it is a notice about MCP servers that could not be looked
    at and, after a failure, an account of the stages.
    """
    ends = _ends(run)
    failed = [end for end in ends if _has_failed(end)]
    completed = [end for end in ends if _has_completed(end)]
    problems = [_problem(end) for end in ends if _has_failed(end) or end.outcome == "CompletedWithErrors"]
    used_up = budget_used_up(run)
    if used_up and not any(used_up in problem for problem in problems):
        problems.append(used_up)
    if len(failed) + len(completed) < len(ends):
        problems.append("the stages after it were skipped" + ("" if used_up else " (failurePolicy Stop)"))
    ending: entries.Ending = "CompletedWithErrors" if problems else "Completed"
    if not completed or (failed and chain.failure_policy == "Stop"):
        ending = "Failed"
    analysis = handover.analysis(run.stages[completed[-1].stage]) if completed else ""
    parts = [evidence.away_notice(run), account(run) if failed else "", analysis]
    return entries.RunEnded(
        ending=ending,
        reason="StagesFailed" if problems else "StagesCompleted",
        message="; ".join(problems),
        final_analysis="\n\n".join(filter(None, parts)),
        gaps=evidence.gaps(run),
        grounds=evidence.grounds(run),
    )


def summary_is_due(chain: chains.Spec, run_ended: entries.RunEnded, run: record.Run, *ended: record.Execution) -> bool:
    """Return whether an investigation gets an executive summary before `run_ended`, the end of `run`, is committed.

    `ended` are the states of executions after their ends, which the record need not hold yet.
    """
    used_up = budget_used_up(run) or any(messages.budget_used_up(execution.log) for execution in ended)
    return chain.is_summarised and run_ended.grounds is not None and not used_up


def answer_end(answer: record.Execution) -> entries.RunEnded:
    """Return the end of a question's run, whose only execution has ended."""
    ended, run = answer.ended, answer.started.run
    assert ended  # noqa: S101 - that is when it is asked for
    if ended.outcome == "Completed":
        return entries.RunEnded(run=run, ending="Completed", reason="Answered", final_analysis=answer.analysis)
    return entries.RunEnded(run=run, ending="Failed", reason="NotAnswered", message=ended.error)


def account(run: record.Run) -> str:
    """Return the outcome of each stage, in the words of the founding documents."""
    ends = _ends(run)
    lines = [
        "Chain Execution Summary:",
        f"- Total stages: {len(ends)}",
        f"- Successful: {sum(map(_has_completed, ends))}",
        f"- Failed: {sum(map(_has_failed, ends))}",
        "",
        "Stage Results:",
    ]
    return "\n".join([*lines, *(_account_line(run.stages[end.stage], end) for end in ends)])


def _account_line(stage: record.Stage, end: entries.StageEnded) -> str:
    if end.outcome == "Skipped":
        return f"⏭️ {end.stage}: skipped"
    text = end.message if _has_failed(end) else handover.analysis(stage)
    line = excerpts.one_line(text, SHOWN_OF_A_STAGE, mark="...")
    return f"❌ {end.stage}: {line}" if _has_failed(end) else f"✅ {end.stage}: {line or 'Completed successfully'}"


def _summary(run: record.Run, analysis: str) -> str:
    """Return the lines of a summary as they are stored, after the MCP servers that could not be looked at."""
    lines = [line.strip() for line in analysis.splitlines() if line.strip()]
    if lines and (notice := evidence.away_notice(run)):
        lines.insert(0, notice)
    return "\n".join(lines[:SUMMARY_LINES_MAX])[:SUMMARY_MAX]


def _ends(run: record.Run) -> list[entries.StageEnded]:
    return [stage.ended for stage in run.stages.values() if stage.ended]


def _has_failed(end: entries.StageEnded) -> bool:
    return end.outcome in ("Failed", "TimedOut")


def _has_completed(end: entries.StageEnded) -> bool:
    return end.outcome in ("Completed", "CompletedWithErrors")


def _problem(end: entries.StageEnded) -> str:
    """Return the failure of a stage, or its errors, in words that name it."""
    if end.outcome == "TimedOut":  # its message names the stage
        return end.message
    what = "completed with errors" if end.outcome == "CompletedWithErrors" else "failed"
    return f"stage {end.stage!r} {what}: {end.message}"

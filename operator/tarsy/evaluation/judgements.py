"""The judgement of a run that has ended: its verdict, its evidence, its claims and its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tarsy.evaluation import checks, results, scenarios, stands, verdicts, worlds
from tarsy.resources import chains
from tarsy.store.reads import phase_rules
from tarsy.transcript import entries


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run that is judged."""

    scenario: scenarios.Scenario
    world: worlds.World
    chain: chains.AgentChain
    provider: str
    repeat: int


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The results of the tools of a run, and the texts that its models read."""

    results: Sequence[str]
    """The results of calls, as models got them."""
    wholes: Sequence[str]
    """The whole results of calls of which models got a part."""
    transcript: str
    """All texts of the run: prompts, answers, calls, results."""


def visible_evidence(logged: Iterable[entries.Logged], wholes: Sequence[str]) -> Shown:
    """Return what a log shows. Raises ValueError for an entry that this program cannot read."""
    read: list[str] = []
    texts: list[str] = []
    for each in logged:
        match each.entry:
            case entries.ExecutionStarted(messages=messages) | entries.Answered(messages=messages):
                for message in messages:
                    texts += [message.text, message.thinking, *(call.arguments for call in message.calls)]
            case entries.ToolsAnswered(runs=runs):
                read += [run.result.text for run in runs]
            case entries.ToolSummarised(text=text):
                read.append(text)
            case entries.Unreadable(problem=problem):
                raise ValueError(problem)
    return Shown(results=read, wholes=wholes, transcript="\n".join([*texts, *read, *wholes]))


def judge(subject: Subject, ended: stands.Ended) -> results.Result:
    """Return the result of a run."""
    summary, document = ended.details.summary, subject.scenario.document
    seen = visible_evidence(ended.logged, ended.wholes)
    analysis = summary.final_analysis
    verdict = verdicts.judge(analysis, document.cause, subject.world.objects())
    misses = tuple(dict.fromkeys(miss for text in seen.results for miss in worlds.MISS.findall(text)))
    state: results.State = "right" if verdict.is_right else "wrong"
    problem = ""
    if not analysis:
        state, problem = "failed", summary.message or f"{summary.phase}, without an analysis"
    elif state == "wrong" and misses:
        state, problem = "no-verdict", f"the world has no answer for: {'; '.join(misses)}"
    return results.Result(
        scenario=subject.scenario.name,
        title=document.title,
        tags=document.tags,
        scenario_digest=subject.scenario.digest,
        chain=subject.chain.metadata.name,
        chain_digest=subject.chain.digest(),
        provider=subject.provider,
        repeat=subject.repeat,
        state=state,
        problem=problem,
        phase=summary.phase,
        claimed=verdict.claimed,
        expected=document.cause.cause_class,
        is_entity_named=verdict.is_entity_named,
        precision=verdict.precision,
        recall=verdict.recall,
        evidence=tuple(evidence_result(evidence, seen, analysis) for evidence in document.evidence),
        false_claims=tuple(claim.because for claim in verdicts.false_claims(analysis, document.forbidden_claims)),
        leaked_secrets=sum(checks.has_secret(seen.transcript + analysis, secret) for secret in document.secrets),
        grounded=phase_rules.is_grounded(summary.grounds),
        gaps=len(summary.gaps),
        misses=misses,
        llm_calls=summary.llm_calls,
        tool_calls=summary.tool_calls,
        total_tokens=summary.total_tokens,
        cost=summary.cost,
        seconds=(summary.ended_at - summary.started_at).total_seconds()
        if summary.ended_at and summary.started_at
        else 0.0,
        investigation=summary.name,
        analysis=analysis,
    )


def evidence_result(evidence: scenarios.Evidence, seen: Shown, analysis: str) -> results.EvidenceResult:
    """Return what became of a piece of evidence."""
    return results.EvidenceResult(
        shows=evidence.shows,
        seen=any(verdicts.matches(evidence.matches, text) for text in seen.results),
        reachable=any(verdicts.matches(evidence.matches, text) for text in (*seen.results, *seen.wholes)),
        cited=verdicts.matches(evidence.cited or evidence.matches, analysis),
    )

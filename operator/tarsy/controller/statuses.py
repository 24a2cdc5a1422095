"""The status of an investigation: a pure function of the store's row."""

from __future__ import annotations

import bisect
import json
from datetime import UTC, datetime, timedelta

from tarsy.controller import headline
from tarsy.masking import known_secrets
from tarsy.resources import base, investigations
from tarsy.store.reads import phase_rules, summaries
from tarsy.transcript import control_characters

FINAL_ANALYSIS_MAX = 8192
SUMMARY_MAX = 1024
GAP_MAX, GAP_CHARACTERS = 800, 253
"""The bounds of a gap's tool and of its reason, each: bytes, and characters."""


def build(summary: summaries.Summary) -> investigations.Status:
    """The status that shows `summary`."""
    started = {stage.name: stage for stage in summary.stages}
    analysis = control_characters.escape(known_secrets.KNOWN.text(summary.final_analysis))
    excerpt = _cut(analysis, FINAL_ANALYSIS_MAX)
    return investigations.Status(
        sequence=summary.revision,
        observed_generation=summary.generation,
        phase=summary.phase,
        conditions=_conditions(summary),
        author=_cut(summary.author, investigations.AUTHOR_MAX) or None,
        chain=_chain(summary),
        progress=summary.progress if summary.stage_names else None,
        current_stage=summary.current_stage,
        stages=[
            _stage(name, started.get(name), agents=agents, of=summary)
            for name, agents in zip(summary.stage_names, summary.stage_agents, strict=True)
        ],
        usage=investigations.Usage(
            input_tokens=summary.input_tokens,
            output_tokens=summary.output_tokens,
            thinking_tokens=summary.thinking_tokens,
            total_tokens=summary.total_tokens,
            llm_calls=summary.llm_calls,
            tool_calls=summary.tool_calls,
            cost=None if summary.cost is None else investigations.cost_text(summary.cost),
        ),
        target=_cut(summary.target, investigations.TARGET_MAX) or None,
        headline=_headline(summary) or None,
        summary=_cut(summary.summary, SUMMARY_MAX) or None,
        gaps=[
            investigations.Gap(
                tool=_cut(gap["tool"], GAP_MAX)[:GAP_CHARACTERS], reason=_cut(gap["reason"], GAP_MAX)[:GAP_CHARACTERS]
            )
            for gap in summary.gaps
        ],
        final_analysis=excerpt or None,
        final_analysis_truncated=excerpt != analysis or None,
        message=_cut(summary.shown_message, base.MESSAGE_MAX) or None,
        attempts=summary.attempts,
        duplicates=summary.duplicates,
        alert_status=summary.alert_status,
        previous=_previous(summary),
        start_time=summary.started_at,
        completion_time=summary.ended_at,
        duration=_duration(summary.started_at, summary.ended_at),
        transcript=f"/api/v1/investigations/{summary.id}",
    )


def _headline(summary: summaries.Summary) -> str:
    """The result of `summary` in one short line; of what has failed, or has no result, its message."""
    has_result = summary.ending in ("Completed", "CompletedWithErrors")
    texts = (summary.summary, summary.final_analysis) if has_result else ()
    sentence = next(filter(None, (headline.headline(known_secrets.KNOWN.text(text)) for text in texts)), "")
    return sentence or headline.cut(known_secrets.KNOWN.text(summary.shown_message))


def _time(at: datetime) -> str:
    """A time in UTC, to the second (RFC 3339)."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(summary: summaries.Summary) -> list[base.Condition]:
    def condition(kind: str, *, true: bool, reason: str, at: datetime, message: str = "") -> base.Condition:
        return base.Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=_cut(message, base.MESSAGE_MAX),
            last_transition_time=at,
            observed_generation=summary.generation,
        )

    accepted = summary.chain_name is not None
    refusal = "" if accepted else summary.message
    conditions = [
        condition(
            "Accepted",
            true=accepted,
            reason="Admitted" if accepted else summary.reason,
            at=summary.admitted_at,
            message=refusal,
        )
    ]
    if summary.ended_at is None:
        at = summary.started_at or summary.admitted_at
        # A status that stands still looks like work, unless it says when it was true.
        as_of = f"as of {_time(summary.committed_at or at)}, the last commit"
        message = "; ".join(filter(None, [as_of, summary.waits_for or "; ".join(summary.retrying)]))
        return [*conditions, condition("Reconciling", true=True, reason=summary.phase, at=at, message=message)]
    outcome = {"Failed": "Failed", "TimedOut": "Failed", "Cancelled": "Cancelled"}.get(summary.ending or "", "Complete")
    ends = ["Finished", outcome, *(["Stalled"] if outcome == "Failed" else [])]
    conditions += [
        condition(kind, true=True, reason=summary.reason, at=summary.ended_at, message=summary.message) for kind in ends
    ]
    if summary.grounds:
        true = bool(phase_rules.is_grounded(summary.grounds))
        gaps = "; ".join(f"{gap['tool']}: {gap['reason']}" for gap in summary.gaps)
        conditions.append(condition("Grounded", true=true, reason=summary.grounds, at=summary.ended_at, message=gaps))
    return conditions


def _chain(summary: summaries.Summary) -> investigations.ChainReference | None:
    if summary.chain_name is None:
        return None
    return investigations.ChainReference(
        name=summary.chain_name,
        namespace=summary.chain_namespace or "",
        generation=summary.chain_generation or 0,
        hash=summary.chain_hash or "",
    )


def _previous(summary: summaries.Summary) -> investigations.Previous | None:
    if summary.previous is None:
        return None
    return investigations.Previous(name=summary.previous.name, uid=str(summary.previous.id))


def _stage(
    name: str, stage: summaries.StageSummary | None, *, agents: int, of: summaries.Summary
) -> investigations.StageStatus:
    if stage is None:
        return investigations.StageStatus(
            name=name, phase="Cancelled" if of.ended_at else "Pending", agents=f"0/{agents}"
        )
    phases: dict[str | None, investigations.StagePhase] = {
        "Completed": "Completed",
        "CompletedWithErrors": "CompletedWithErrors",
        "Failed": "Failed",
        "TimedOut": "TimedOut",
        "Cancelled": "Cancelled",
        "Skipped": "Skipped",
        None: "Running",
    }
    return investigations.StageStatus(
        name=name,
        phase=phases[stage.outcome],
        agents=f"{stage.completed}/{agents}",
        start_time=stage.started_at,
        completion_time=stage.ended_at if stage.started_at else None,
        duration=_duration(stage.started_at, stage.ended_at),
        iterations=stage.iterations,
        tool_calls=stage.tool_calls,
        tokens=stage.total_tokens,
        message=_cut("; ".join(filter(None, [stage.message, *stage.lacks])), base.MESSAGE_MAX) or None,
    )


def _cut(text: str, longest: int) -> str:
    """Return the beginning of `text` that fits into `longest` bytes of JSON, printable and without known secrets."""
    text = control_characters.escape(known_secrets.KNOWN.text(text))[:longest]

    def size(end: int) -> int:
        return len(json.dumps(text[:end], ensure_ascii=False).encode()) - len('""')

    return text[: bisect.bisect_right(range(1, len(text) + 1), longest, key=size)]


def _duration(start: datetime | None, end: datetime | None) -> str | None:
    """Whole seconds as Kubernetes prints them (`1m32s`), None until both are known."""
    if start is None or end is None:
        return None
    seconds = round((end - start) / timedelta(seconds=1))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + f"{seconds}s"

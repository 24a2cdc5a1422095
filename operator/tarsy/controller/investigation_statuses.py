"""The status of an investigation: a pure function of its summary in the store."""

from __future__ import annotations

import bisect
import json
from datetime import UTC, datetime, timedelta

from tarsy.controller import unreadable_objects
from tarsy.ingest import subject
from tarsy.kube import objects
from tarsy.masking import known_secrets
from tarsy.resources import base, investigations
from tarsy.store.reads import group_alerts, phase_rules, summaries
from tarsy.transcript import control_characters
from tarsy.views import first_sentence

FINAL_ANALYSIS_MAX = 8192
SUMMARY_MAX = 1024
GAP_BYTES, GAP_CHARACTERS = 800, 253
"""The limits of a gap's tool and of its reason: bytes of JSON, and characters."""


def build(
    summary: summaries.Summary, *, secrets: known_secrets.KnownSecrets, pages: str | None = None
) -> investigations.Status:
    """Return the status that shows `summary`, without the known `secrets`; `pages` is the address of the pages."""
    started = {stage.name: stage for stage in summary.stages}
    analysis = control_characters.escape(secrets.mask(summary.final_analysis))
    excerpt = _excerpt(analysis, FINAL_ANALYSIS_MAX, secrets)
    chain = previous = retry_of = retried_by = split_from = None
    if summary.chain_name is not None:
        chain = investigations.ChainReference(
            name=summary.chain_name,
            namespace=summary.chain_namespace or "",
            generation=summary.chain_generation or 0,
            hash=summary.chain_hash or "",
        )
    if summary.previous is not None:
        previous = investigations.Previous(name=summary.previous.name, uid=str(summary.previous.id))
    if summary.retry_of is not None:
        retry_of = investigations.RetryOf(
            name=summary.retry_of.name, uid=str(summary.retry_of.id), from_stage=summary.retry_of.from_stage
        )
    if summary.retried_by is not None:
        retried_by = investigations.Previous(name=summary.retried_by.name, uid=str(summary.retried_by.id))
    if summary.split_from is not None:
        split_from = investigations.Previous(name=summary.split_from.name, uid=str(summary.split_from.id))
    split_into = [investigations.Previous(name=part.name, uid=str(part.id)) for part in summary.split_into]
    return investigations.Status(
        sequence=summary.revision,
        observed_generation=summary.generation,
        phase=summary.phase,
        conditions=_conditions(summary, secrets),
        author=_excerpt(summary.author, investigations.AUTHOR_MAX, secrets) or None,
        chain=chain,
        progress=summary.progress if summary.stage_names else None,
        current_stage=summary.current_stage,
        stages=[
            _stage(name, started.get(name), agents=agents, has_ended=summary.ended_at is not None, secrets=secrets)
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
        target=_excerpt(summary.target, investigations.TARGET_MAX, secrets) or None,
        headline=first_sentence.headline(summary, mask=secrets.mask) or None,
        summary=_excerpt(summary.summary, SUMMARY_MAX, secrets) or None,
        gaps=[
            investigations.Gap(
                tool=_excerpt(gap["tool"], GAP_BYTES, secrets)[:GAP_CHARACTERS],
                reason=_excerpt(gap["reason"], GAP_BYTES, secrets)[:GAP_CHARACTERS],
            )
            for gap in summary.gaps
        ],
        final_analysis=excerpt or None,
        final_analysis_truncated=excerpt != analysis or None,
        message=_excerpt(summary.shown_message, base.MESSAGE_MAX, secrets) or None,
        attempts=summary.attempts,
        duplicates=summary.duplicates,
        alert_status=summary.alert_status,
        alerts=None if summary.alerts is None else _alerts(summary.alerts, secrets),
        previous=previous,
        retry_of=retry_of,
        retried_by=retried_by,
        split_from=split_from,
        split_into=split_into or None,
        start_time=summary.started_at,
        completion_time=summary.ended_at,
        duration=_duration(summary.started_at, summary.ended_at),
        transcript=f"{pages}/investigations/{summary.id}" if pages else f"/api/v1/investigations/{summary.id}",
    )


def build_unreadable(unreadable: objects.Unreadable, *, now: datetime) -> investigations.Status:
    """Return the status of an investigation whose object cannot be read: Failed, until a later generation can be."""
    conditions = [
        unreadable_objects.condition(unreadable, kind, true=kind != "Accepted", now=now)
        for kind in ("Accepted", "Finished", "Failed", "Stalled")
    ]
    return investigations.Status(
        sequence=0,  # if the object is admitted later, the store's sequence is not lower
        observed_generation=unreadable.metadata.generation,
        phase="Failed",
        conditions=conditions,
        message=unreadable.message[: base.MESSAGE_MAX],
        completion_time=now,
    )


LOST = (
    "the database has no transcript of it: it is another database, or was restored to an earlier time. What it did is "
    "not known, so it is not run again: create it again to have its alert investigated"
)
"""The message of an investigation that another database has known."""


def build_lost(fetched: investigations.AlertInvestigation, *, now: datetime) -> investigations.Status:
    """Return the status of an open investigation that the database does not know, although one has: Failed."""
    conditions = [
        base.Condition(
            type=kind,
            status="True",
            reason="TranscriptLost",
            message=LOST,
            last_transition_time=now,
            observed_generation=fetched.metadata.generation,
        )
        for kind in ("Accepted", "Finished", "Failed", "Stalled")
    ]
    return investigations.Status(
        sequence=fetched.written.sequence + 1,
        observed_generation=fetched.metadata.generation,
        phase="Failed",
        conditions=conditions,
        message=LOST,
        completion_time=now,
    )


def _conditions(summary: summaries.Summary, secrets: known_secrets.KnownSecrets) -> list[base.Condition]:
    def condition(kind: str, *, true: bool = True, reason: str, at: datetime, message: str = "") -> base.Condition:
        return base.Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=_excerpt(message, base.MESSAGE_MAX, secrets),
            last_transition_time=at,
            observed_generation=summary.generation,
        )

    if summary.chain_name is None:
        refusal = summary.message
        accepted = condition("Accepted", true=False, reason=summary.reason, at=summary.admitted_at, message=refusal)
    else:
        accepted = condition("Accepted", reason="Admitted", at=summary.admitted_at)
    undelivered = [
        condition(
            "Delivered",
            true=False,
            reason="GivenUp",
            at=latest.at,
            message="; ".join(message.line for message in summary.undelivered),
        )
        for latest in summary.undelivered[:1]
    ]
    if summary.ended_at is None:
        at = summary.started_at or summary.admitted_at
        # Without its time, a status that no longer changes would look like work in progress.
        commit_time = (summary.committed_at or at).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reconciling = [f"as of {commit_time}, the last commit", summary.waits_for or "; ".join(summary.retrying)]
        message = "; ".join(filter(None, reconciling))
        open_conditions = [
            accepted,
            condition("Reconciling", reason=summary.phase, at=at, message=message),
            *undelivered,
        ]
        if summary.phase == "Waiting":
            since = summary.committed_at or at
            reason = summary.wait_reason or summary.phase
            open_conditions.append(condition("Waiting", reason=reason, at=since, message=summary.waits_for))
        return open_conditions
    outcome = {"Failed": "Failed", "TimedOut": "Failed", "Cancelled": "Cancelled"}.get(summary.ending or "", "Complete")
    ends = ["Finished", outcome, *(["Stalled"] if outcome == "Failed" else [])]
    conditions = [
        accepted,
        *(condition(kind, reason=summary.reason, at=summary.ended_at, message=summary.message) for kind in ends),
        *undelivered,
    ]
    if summary.grounds:
        grounded = bool(phase_rules.is_grounded(summary.grounds))
        gaps = "; ".join(f"{gap['tool']}: {gap['reason']}" for gap in summary.gaps)
        conditions.append(
            condition("Grounded", true=grounded, reason=summary.grounds, at=summary.ended_at, message=gaps)
        )
    return conditions


def _stage(
    name: str,
    stage: summaries.StageSummary | None,
    *,
    agents: int,
    has_ended: bool,
    secrets: known_secrets.KnownSecrets,
) -> investigations.StageStatus:
    """Return the status of a stage. `stage` is None if it has not started; `has_ended` is about the investigation."""
    if stage is None:
        phase = phase_rules.stage_phase(None, has_begun=False, has_ended=has_ended)
        return investigations.StageStatus(name=name, phase=phase, agents=f"0/{agents}")
    return investigations.StageStatus(
        name=name,
        phase=phase_rules.stage_phase(stage.outcome, has_begun=True, has_ended=has_ended),
        agents=f"{stage.completed}/{agents}",
        start_time=stage.started_at,
        completion_time=stage.ended_at if stage.started_at else None,
        duration=_duration(stage.started_at, stage.ended_at),
        iterations=stage.iterations,
        tool_calls=stage.tool_calls,
        tokens=stage.total_tokens,
        message=_excerpt("; ".join(filter(None, [stage.message, *stage.lacks])), base.MESSAGE_MAX, secrets) or None,
    )


def _alerts(alerts: group_alerts.Alerts, secrets: known_secrets.KnownSecrets) -> investigations.Alerts:
    def short(text: str) -> str:
        return _excerpt(text, investigations.TARGET_MAX, secrets)

    return investigations.Alerts(
        total=alerts.total,
        firing=alerts.firing,
        types=[
            investigations.AlertTypeCount(alert_type=short(counted.alert_type), count=counted.count)
            for counted in alerts.types
        ],
        newest=[
            investigations.JoinedAlert(
                alert_type=short(alert.alert_type),
                fingerprint=alert.fingerprint[:64],
                target=short(subject.target(alert.labels)) or None,
                status=alert.status,
                starts_at=alert.starts_at,
            )
            for alert in alerts.newest
        ],
    )


def _excerpt(text: str, limit: int, secrets: known_secrets.KnownSecrets) -> str:
    """Return the beginning of `text` that has at most `limit` bytes of JSON, printable and without known secrets."""
    text = control_characters.escape(secrets.mask(text))[:limit]

    def size(end: int) -> int:
        return len(json.dumps(text[:end], ensure_ascii=False).encode()) - len('""')

    return text[: bisect.bisect_right(range(1, len(text) + 1), limit, key=size)]


def _duration(start: datetime | None, end: datetime | None) -> str | None:
    """Return the time between two times as Kubernetes prints it (`1m32s`), or None until both are known."""
    if start is None or end is None:
        return None
    seconds = round((end - start) / timedelta(seconds=1))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + f"{seconds}s"

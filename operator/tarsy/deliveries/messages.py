"""The message about an investigation: the shape `tarsy.dev/v1 investigation`, and its title and text for people.

All texts are masked again and have no control characters. Lists and texts are bounded, so a message has a few dozen
KB at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import Field

from tarsy import templating
from tarsy.config.model import budgets, deliveries
from tarsy.ingest import dashboards, subject
from tarsy.masking import known_secrets
from tarsy.resources import investigations
from tarsy.store.operations import budget_messages
from tarsy.store.reads import phase_rules, summaries
from tarsy.transcript import control_characters, entries
from tarsy.views import base, first_sentence

TITLE_MAX = 120
TEXT_MAX = 2000
ANALYSIS_MAX = 8192
SUMMARY_MAX = 4096
FINDING_MAX = 400
MESSAGE_MAX = 1024
LINE_MAX = 253
GAPS_MAX = 20
URL_MAX = 2048

TEXT = """\
{% set ended = investigation.ended_at -%}
{% if not ended -%}
Investigation started{{ " by chain " ~ investigation.chain_name if investigation.chain_name }}
{%- if not investigation.progress.startswith("0/") %}; {{ investigation.progress }} stages have ended{% endif %}.
{% else -%}
{{ {"Failed": "Failed: ", "Cancelled": "Cancelled: ", "TimedOut": "Timed out: "}.get(investigation.phase, "") }}
{{- "Resolved. " if investigation.alert_status == "resolved" }}
{{- "Not grounded: " if investigation.grounded is false }}{{ investigation.finding }}
{% endif %}
{% if investigation.alerts %}
{{ investigation.alerts.total }} alerts, {{ investigation.alerts.firing }} firing:
{%- for type in investigation.alerts.types[:5] %}
 {{ type.count }} {{ type.alert_type }}{{ "," if not loop.last }}
{%- endfor %}

{% endif %}
{% if ended -%}
{% set basis = {
    "Inspected": "Based on what its agents inspected",
    "InspectedWithGaps": "Based on what its agents inspected",
    "NothingInspected": "Its agents inspected nothing",
    "ServersAway": "Its MCP servers were away",
    "UnknownReferences": "It refers to tool calls that were not made"
    }.get(investigation.grounds, "") -%}
{{ "Some stages failed. " if investigation.phase == "CompletedWithErrors" }}{{ basis }}
{%- for tool in investigation.gaps|map(attribute="tool")|unique if tool[:1] not in ["", "-", "["] %}
{{- (("; not" if basis else "Not") ~ " inspected: " if loop.first else ", ") ~ tool if loop.index < 6 }}
{%- endfor %}{{ "." if basis or investigation.gaps }}
{% endif %}
{% if investigation.links.runbook -%}
Runbook: {{ investigation.links.runbook }}
{% endif %}
{{ investigation.links.page or "" }}
"""
"""The built-in template of the text."""


class Gap(base.View):
    """Something that could not be inspected."""

    tool: str
    reason: str


class Stage(base.View):
    """A stage of the chain, also one that has not begun."""

    name: str
    phase: investigations.StagePhase
    message: str
    """The errors of the stage; the first 300 characters."""


class Dashboard(base.View):
    """The dashboard of Grafana that the alert names."""

    uid: str
    panel: int | None
    """The number of a panel on it."""


class Links(base.View):
    """Pages about the investigation and its alert; None for those that are unknown."""

    page: str | None
    """The page of the investigation, if `api.public_url` is set and the pages are enabled."""
    runbook: str | None
    generator: str | None
    """The page of the alert's rule."""
    sender: str | None
    """The page of the notification's sender."""


class AlertTypeCount(base.View):
    """The number of alerts of a type."""

    alert_type: str
    count: int


class Alert(base.View):
    """An alert of several."""

    alert_type: str
    severity: str
    status: Literal["firing", "resolved"]
    target: str
    """The subject of the alert, on one line."""


class Alerts(base.View):
    """The alerts of an investigation that others have joined."""

    total: int
    firing: int
    types: list[AlertTypeCount]
    """The most frequent types."""
    newest: list[Alert]
    """The newest alerts, the newest first."""


class Investigation(base.View):
    """An investigation as it is when the message is sent."""

    id: UUID
    namespace: str
    name: str
    revision: int
    """Rises with every change: of two messages the one with the higher revision is newer."""
    phase: investigations.Phase
    reason: str
    message: str
    alert_type: str
    alert_status: Literal["firing", "resolved"] | None
    alert_summary: str
    alerts: Alerts | None
    """Its alerts, if others have joined the first; the fields beside are of that."""
    severity: str | None
    labels: dict[str, str]
    """The labels that identify the alert."""
    target: str
    """The subject of the alert, on one line."""
    chain_name: str | None
    author: str
    progress: str
    """The number of ended stages, of all stages, such as 1/3."""
    stages: list[Stage]
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    """From start to end."""
    headline: str
    """The result in one line, or the reason that there is none."""
    finding: str
    """The result for people, or the reason that there is none; plain text of a few lines, 400 characters at most."""
    summary: str
    """The final analysis in a few lines of Markdown; 4,096 characters at most."""
    final_analysis: str
    """Markdown; 8,192 characters at most."""
    final_analysis_truncated: bool
    grounded: bool | None
    """Whether the result rests on something that was inspected; None without a result."""
    grounds: entries.Grounds | None
    gaps: list[Gap]
    """The first 20 things that could not be inspected."""
    total_tokens: int
    cost: base.Cost | None
    duplicates: int
    """The number of repeats of its alert that were counted on it."""
    links: Links
    dashboard: Dashboard | None
    """None if the alert names none."""


class BudgetUse(base.View):
    """A budget of which a threshold is spent in a period; amounts are in its unit."""

    name: str
    subject: str
    """The namespace, the chain (`namespace/name`) or the provider; "" for all."""
    unit: budgets.Unit
    limit: float
    threshold: int
    """The percentage of the limit that is spent or reserved: 50, 80 or 100."""
    per: budgets.Period
    period: str
    """The hour, day or month in UTC, such as 2026-11."""
    renews_at: datetime | None
    """The end of the period."""
    at_limit: budgets.AtLimit


class BudgetMessage(base.View):
    """A message about a budget."""

    version: Literal["tarsy.dev/v1"] = "tarsy.dev/v1"
    """As that of a message about an investigation."""
    kind: Literal["budget"] = "budget"
    id: Annotated[str, Field(max_length=64)]
    """The same for each attempt to send this message."""
    event: Literal["budget"] = "budget"
    receiver: str
    """The name of the receiver in the platform file."""
    title: str
    """The budget and the threshold in one line; plain text, 120 characters at most."""
    text: str
    """The rest for people; plain text."""
    budget: BudgetUse


class Message(base.View):
    """A message about an investigation."""

    version: Literal["tarsy.dev/v1"] = "tarsy.dev/v1"
    """Rises if programs that read the message have to change."""
    kind: Literal["investigation"] = "investigation"
    id: Annotated[str, Field(max_length=64)]
    """The same for each attempt to send this message, so that a receiver can drop doubles."""
    event: deliveries.EventName
    receiver: str
    """The name of the receiver in the platform file."""
    title: str
    """The alert in one line for people; plain text, 120 characters at most."""
    text: str
    """The rest for people; plain text of a few lines, with links; 2,000 characters at most."""
    investigation: Investigation


def investigation(
    details: summaries.Details, *, secrets: known_secrets.KnownSecrets, pages: str | None
) -> Investigation:
    """Return the investigation without the known `secrets`; `pages` is the public address of the pages."""
    summary = details.summary

    def clean(text: str, limit: int) -> str:
        return control_characters.escape(secrets.mask(text))[:limit]

    def link(url: str | None) -> str | None:
        return clean(url, URL_MAX) if url and url.startswith(("https://", "http://")) else None

    analysis = control_characters.escape(secrets.mask(summary.final_analysis))
    dashboard = dashboards.find(details.alert_data)
    return Investigation(
        id=summary.id,
        namespace=summary.namespace,
        name=summary.name,
        revision=summary.revision,
        phase=summary.phase,
        reason=summary.reason,
        message=clean(summary.shown_message, MESSAGE_MAX),
        alert_type=clean(summary.alert_type, LINE_MAX),
        alert_status=summary.alert_status,
        alert_summary=clean(summary.alert_summary, LINE_MAX),
        alerts=None
        if summary.alerts is None
        else Alerts(
            total=summary.alerts.total,
            firing=summary.alerts.firing,
            types=[
                AlertTypeCount(alert_type=clean(counted.alert_type, LINE_MAX), count=counted.count)
                for counted in summary.alerts.types
            ],
            newest=[
                Alert(
                    alert_type=clean(alert.alert_type, LINE_MAX),
                    severity=clean(alert.severity, LINE_MAX),
                    status=alert.status,
                    target=clean(subject.target(alert.labels), LINE_MAX),
                )
                for alert in summary.alerts.newest
            ],
        ),
        severity=None if details.severity is None else clean(details.severity, LINE_MAX),
        labels={clean(key, LINE_MAX): clean(value, LINE_MAX) for key, value in summary.labels.items()},
        target=clean(summary.target, LINE_MAX),
        chain_name=summary.chain_name,
        author=clean(summary.author, LINE_MAX),
        progress=summary.progress,
        stages=[
            Stage(name=stage.name, phase=stage.phase, message=clean(stage.message, MESSAGE_MAX))
            for stage in summary.stage_list
        ],
        admitted_at=summary.admitted_at,
        started_at=summary.started_at,
        ended_at=summary.ended_at,
        seconds=base.seconds(summary.started_at, summary.ended_at),
        headline=first_sentence.headline(summary, mask=secrets.mask),
        finding=control_characters.escape(first_sentence.brief(summary, mask=secrets.mask, limit=FINDING_MAX)),
        summary=clean(summary.summary, SUMMARY_MAX),
        final_analysis=analysis[:ANALYSIS_MAX],
        final_analysis_truncated=len(analysis) > ANALYSIS_MAX,
        grounded=phase_rules.is_grounded(summary.grounds),
        grounds=summary.grounds,
        gaps=[
            Gap(tool=clean(gap["tool"], LINE_MAX), reason=clean(gap["reason"], LINE_MAX))
            for gap in summary.gaps[:GAPS_MAX]
        ],
        total_tokens=summary.total_tokens,
        cost=summary.cost,
        duplicates=summary.duplicates,
        links=Links(
            page=f"{pages}/investigations/{summary.id}" if pages else None,
            runbook=link(details.runbook_url),
            generator=link(details.generator_url),
            sender=link(details.external_url),
        ),
        dashboard=None if dashboard is None else Dashboard(uid=dashboard.uid, panel=dashboard.panel),
    )


def message(
    about: Investigation, *, event: deliveries.EventName, receiver: str, identity: str, template: str | None
) -> Message:
    """Return the message of an event. Raises templating.TemplateError if `template` fails."""
    values: dict[str, Any] = {
        "event": event,
        "receiver": receiver,
        "investigation": about.model_dump(mode="json"),
    }
    text = templating.render(template or TEXT, values, limit=TEXT_MAX)
    text = control_characters.escape("\n".join(filter(None, map(str.rstrip, text.splitlines()))))
    return Message(
        id=identity,
        event=event,
        receiver=receiver,
        title=title(about),
        text=text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…",
        investigation=about,
    )


_AT_LIMIT: Mapping[budgets.AtLimit, str] = {
    "Conclude": "At the limit, investigations conclude early.",
    "Refuse": "At the limit, investigations fail and new alerts are ignored.",
    "Wait": "At the limit, investigations wait until it renews.",
}


def budget_message(
    budget: budgets.Budget,
    key: budget_messages.Key,
    *,
    threshold: int,
    receiver: str,
    secrets: known_secrets.KnownSecrets,
) -> BudgetMessage:
    """Return the message about a threshold of a budget's ledger."""
    subject = control_characters.escape(secrets.mask(key.subject))[:LINE_MAX]
    about = BudgetUse(
        name=key.budget,
        subject=subject,
        unit=budget.unit,
        limit=float(budget.limit),
        threshold=threshold,
        per=budget.per,
        period=key.period,
        renews_at=budgets.renewal(budget.per, key.period),
        at_limit=budget.at_limit,
    )
    of = f" of {subject}" if subject else ""
    line = f"Budget {key.budget}{of}: {threshold} % of {about.limit:,g} {budget.unit.replace('_', ' ')}"
    renews = f" It renews at {about.renews_at:%Y-%m-%d %H:%M} UTC." if about.renews_at else ""
    return BudgetMessage(
        id=f"{uuid5(NAMESPACE_URL, f'{key.text}/{receiver}')}-{threshold}",
        receiver=receiver,
        title=line if len(line) <= TITLE_MAX else f"{line[: TITLE_MAX - 1]}…",
        text=f"{threshold} % are spent or reserved in {key.period} (UTC).{renews} {_AT_LIMIT[budget.at_limit]}",
        budget=about,
    )


def title(about: Investigation) -> str:
    """Return the alert in one line of at most TITLE_MAX characters, what fired first: a phone shows about 40."""
    others = f" (+{about.alerts.total - 1})" if about.alerts else ""
    subject_line = about.target or about.alert_summary or f"{about.namespace}/{about.name}"
    severity = f" [{about.severity}]" if about.severity else ""
    line = " ".join(f"{about.alert_type}{others}: {subject_line}{severity}".split())
    return line if len(line) <= TITLE_MAX else f"{line[: TITLE_MAX - 1]}…"


def lines_without_links(message: Message) -> list[str]:
    """Return the lines of the text, without those that a receiver shows as links of its own."""
    links = message.investigation.links
    return [line for line in message.text.splitlines() if line not in (links.page, f"Runbook: {links.runbook}")]

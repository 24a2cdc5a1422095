"""`tarsy list`: investigations from the API, or from the objects in the cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from tarsy.cli import feedback
from tarsy.cli.client import failures, formats, kubectl, remote, sessions, terminal, times, views

PHASES = (
    "Queued",
    "Running",
    "Waiting",
    "Suspended",
    "Cancelling",
    "Completed",
    "CompletedWithErrors",
    "Failed",
    "Cancelled",
    "TimedOut",
)
SORTS = {
    "age": "admitted_at",
    "created": "admitted_at",
    "ended": "ended_at",
    "alert": "alert_type",
    "chain": "chain",
    "author": "author",
    "name": "name",
    ".metadata.creationTimestamp": "admitted_at",
    ".metadata.name": "name",
    ".spec.alertType": "alert_type",
}
API_ONLY = ("chain", "severity", "feedback", "deleted", "since", "search")
"""Filters that the cluster has not."""
PAGE_MAX = 100
COLUMNS = ("NAME", "ALERT", "CHAIN", "PHASE", "GROUNDED", "PROGRESS", "SUMMARY", "AGE")
WIDE = ("SEVERITY", "ALERTS", "STAGE", "DURATION", "TOKENS", "COST", "UID")
SUMMARY_MAX = 60
"""The maximum width of a summary; twice as wide with `-o wide`."""


@click.command(
    help="List investigations, newest first.",
    epilog="Examples:\n\n\b\n  tarsy list\n  tarsy list --phase Failed --since 1d -o wide",
)
@click.option(
    "-A",
    "--all-namespaces",
    is_flag=True,
    help="List all served namespaces in which you may list; with -l, all of the cluster.",
)
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=click.Choice(PHASES, case_sensitive=False),
    help="Only investigations in this phase; may be repeated.",
)
@click.option("--alert", metavar="TYPE", help="Only this alert type.")
@click.option("--chain", metavar="NAME", help="Only this chain.")
@click.option("--severity", metavar="WORD", help="Only alerts of this severity.")
@click.option(
    "--feedback",
    type=click.Choice([*feedback.VERDICTS, feedback.NONE]),
    help="Only investigations with this verdict of at least one person, or without feedback.",
)
@click.option("--deleted", is_flag=True, help="Only deleted investigations, which `tarsy restore` brings back.")
@click.option(
    "--since",
    type=times.Moment(),
    metavar="TIME",
    help="Only investigations admitted since TIME: 15m, 2d, or an RFC 3339 time.",
)
@click.option(
    "--search", metavar="WORDS", help="Only investigations with these words in the alert, the analysis or the summary."
)
@click.option("-l", "--selector", metavar="LABELS", help="Only objects with these labels.")
@click.option(
    "--field-selector",
    metavar="FIELDS",
    help="Only objects that match these fields: spec.alertType, spec.fingerprint, status.phase, metadata.name.",
)
@click.option(
    "--sort-by",
    type=click.Choice([*SORTS, *(f"-{key}" for key in SORTS)]),
    metavar="KEY",
    help="Sort by age, ended, alert, chain, author or name; -KEY reverses the order. The default is -age.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=25,
    show_default=True,
    help="The maximum number of investigations; 0 lists all.",
)
@click.option("--cursor", metavar="TEXT", help="Continue an earlier list, which printed this cursor.")
@formats.option("wide", "name", "json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def command(*, session: sessions.Session, form: str | None, no_headers: bool, **filters: Any) -> None:
    """List investigations."""
    reads_objects = filters["selector"] or filters["field_selector"]
    if reads_objects:
        pages = _objects(session, filters)
    else:
        try:
            session.api  # noqa: B018 - raises a Failure if it cannot be used
            pages = _rows(session, filters)
            first = next(pages, None)
        except (failures.Unreachable, failures.Refused) as error:
            if isinstance(error, failures.Refused) and "may not list" in error.message:
                raise
            _refuse_filters_of_api(filters, error)
            session.note(f"Without the API, this is one page of the cluster's objects, by name: {error.message}")
            filters["limit"] = min(filters["limit"] or PAGE_MAX, PAGE_MAX)
            pages = ((documents, page_views, "") for documents, page_views, _ in _objects(session, filters))
            first = next(pages, None)
        pages = itertools.chain([] if first is None else [first], pages)
    _print(session, pages, form=form, no_headers=no_headers, all_namespaces=filters["all_namespaces"])


Page = tuple[list[dict[str, Any]], list[dict[str, Any]], str]
"""The documents as they were read, their views, and the cursor of the next page."""


def _rows(session: sessions.Session, filters: dict[str, Any]) -> Iterator[Page]:
    """Yield the API's pages."""
    since: datetime | None = filters["since"]
    sort = filters["sort_by"] or "-age"
    key = ("-" if sort.startswith("-") else "") + SORTS[sort.removeprefix("-")]
    query = {
        "namespace": None if filters["all_namespaces"] else session.namespace,
        "phase": list(filters["phases"]) or None,
        "alert_type": filters["alert"],
        "chain": filters["chain"],
        "severity": filters["severity"],
        "feedback": filters["feedback"],
        "deleted": "true" if filters["deleted"] else None,
        "since": since.isoformat() if since else None,
        "q": filters["search"],
        "sort": key,
    }
    pages = session.api.cursor_pages(
        remote.INVESTIGATIONS, limit=filters["limit"], page_max=PAGE_MAX, cursor=filters["cursor"], **query
    )
    for page in pages:
        for unchecked in page["unchecked_namespaces"]:
            name = unchecked["name"]
            session.note(f"Namespace {name} is left out: {unchecked['message']}", once=f"unchecked {name}")
        yield page["items"], page["items"], page["next"] or ""


def _objects(session: sessions.Session, filters: dict[str, Any]) -> Iterator[Page]:
    """Yield pages of the cluster's objects. Raises a UsageError for a filter that works only with the API."""
    api_only = [f"--{name.replace('_', '-')}" for name in (*API_ONLY, "sort_by") if filters[name]]
    if api_only:
        raise click.UsageError(
            f"{', '.join(api_only)} cannot be used with -l or --field-selector: the cluster has no such filter"
        )
    selected = [filters["field_selector"]] if filters["field_selector"] else []
    selected += [f"spec.alertType={filters['alert']}"] if filters["alert"] else []
    if len(filters["phases"]) > 1:
        raise click.UsageError("only one --phase can be used with -l or --field-selector, or without the API")
    selected += [f"status.phase={phase}" for phase in filters["phases"]]
    left = filters["limit"] or None
    where = None if filters["all_namespaces"] else session.namespace
    cursor = filters["cursor"]
    while True:
        listed = session.cluster.get(
            kubectl.path(where),
            labelSelector=filters["selector"],
            fieldSelector=",".join(selected),
            limit=min(left or PAGE_MAX, PAGE_MAX),
            **{"continue": cursor},
        )
        cursor = listed["metadata"].get("continue") or ""
        items = listed["items"]
        left = left - len(items) if left else None
        yield items, [views.from_object(item) for item in items], cursor
        if not cursor or (left is not None and left <= 0):
            return


def _refuse_filters_of_api(filters: dict[str, Any], error: failures.Failure) -> None:
    """Raise the API's failure if a filter works only with the API."""
    api_only = [f"--{name.replace('_', '-')}" for name in (*API_ONLY, "sort_by", "cursor") if filters[name]]
    if len(filters["phases"]) > 1:
        api_only.append("more than one --phase")
    if api_only:
        raise type(error)(f"{', '.join(api_only)} cannot be used without the API: {error.message}") from error


def _print(
    session: sessions.Session, pages: Iterator[Page], *, form: str | None, no_headers: bool, all_namespaces: bool
) -> None:
    """Print the pages one after the other."""
    items = formats.Items(form) if form and form not in ("wide", "name") else None
    widths: list[int] = []
    count, more = 0, ""
    for documents, page_views, cursor in pages:
        more = cursor
        if items:
            items.print(documents)
        elif form == "name":
            for view in page_views:
                click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(view['name'])}")
        elif page_views:
            header = None if no_headers or count else _header(form, all_namespaces=all_namespaces)
            rows = [_row(view, form, all_namespaces=all_namespaces) for view in page_views]
            for line in terminal.table(rows, header=header, widths=widths):
                click.echo(line)
        count += len(documents)
    if items:
        items.end()
    if not count:
        session.note(f"No investigations found{'' if all_namespaces else f' in namespace {session.namespace}'}.")
    elif more:
        session.note(f"There are more: add --cursor {more}, or --limit 0 for all.")


def _header(form: str | None, *, all_namespaces: bool) -> list[str]:
    return [*(["NAMESPACE"] if all_namespaces else []), *COLUMNS, *(WIDE if form == "wide" else ())]


def _row(view: dict[str, Any], form: str | None, *, all_namespaces: bool) -> list[str]:
    """Return the cells of an investigation."""
    summary = terminal.clean_line(views.headline(view))
    cells = [
        *([view["namespace"]] if all_namespaces else []),
        view["name"],
        view["alert_type"],
        view["chain_name"] or "",
        view["phase"],
        views.grounded(view),
        view["progress"],
        terminal.cut(summary, SUMMARY_MAX * (2 if form == "wide" else 1)),
        views.age(view),
    ]
    if form == "wide":
        cells += [
            view["severity"] or "",
            str(view.get("alert_count") or ""),
            view["current_stage"] or "",
            views.duration(view),
            str(view["total_tokens"]),
            view["cost"] or "",
            view["id"],
        ]
    return cells


def print_one(view: dict[str, Any], *, no_headers: bool) -> None:
    """Print an investigation as `tarsy list -o wide` does."""
    header = None if no_headers else _header("wide", all_namespaces=False)
    for line in terminal.table([_row(view, "wide", all_namespaces=False)], header=header):
        click.echo(line)

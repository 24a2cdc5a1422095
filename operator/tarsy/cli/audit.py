"""`tarsy audit`: changes, exports and sign-ins, from the API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from tarsy.cli.client import formats, sessions, terminal, times

PATH = "/api/v1/audit"
PAGE_MAX = 500
HEADER = ("TIME", "WHO", "FROM", "ACTION", "NAME", "DETAILS")
DETAILS_MAX = 60
"""The maximum width of the details."""


@click.command(
    help="Show who changed or exported what, and who signed in, newest first. It needs the right to get auditevents.",
    epilog="Examples:\n\n\b\n  tarsy audit\n  tarsy audit --action purge --since 30d -o json",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Show all namespaces in which you have the right.")
@click.option("--who", metavar="USER", help="Only what this user did.")
@click.option("--action", metavar="WORD", help="Only this action, such as create, cancel, export, purge or accept.")
@click.option("--name", metavar="NAME", help="Only the investigation or the MCP server of this name.")
@click.option("--uid", metavar="UID", help="Only the investigation with this id, which may be purged.")
@click.option("--since", type=times.Moment(), metavar="TIME", help="Only since TIME: 15m, 2d, or an RFC 3339 time.")
@click.option("--until", type=times.Moment(), metavar="TIME", help="Only before TIME.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, show_default=True, help="The maximum number; 0 shows all."
)
@formats.option("table", "json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def command(*, session: sessions.Session, form: str | None, no_headers: bool, limit: int, **filters: Any) -> None:
    """Show the audit."""
    has_all: bool = filters["all_namespaces"]
    items = formats.Items(form) if form and form != "table" else None
    widths: list[int] = []
    count = 0
    for rows in _pages(session, limit, filters):
        if items:
            items.print(rows)
        elif rows:
            header = None if no_headers or count else [*(["NAMESPACE"] if has_all else []), *HEADER]
            cells = [[*([row["namespace"]] if has_all else []), *_cells(row)] for row in rows]
            for line in terminal.table(cells, header=header, widths=widths):
                click.echo(line)
        count += len(rows)
    if items:
        items.end()
    if not count:
        session.note(f"No such row in the audit{'' if has_all else f' of namespace {session.namespace}'}.")


def _pages(session: sessions.Session, limit: int, filters: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    since: datetime | None = filters["since"]
    until: datetime | None = filters["until"]
    query = {
        "namespace": None if filters["all_namespaces"] else session.namespace,
        "who": filters["who"],
        "action": filters["action"],
        "name": filters["name"],
        "investigation": filters["uid"],
        "since": since.isoformat() if since else None,
        "until": until.isoformat() if until else None,
    }
    page = None
    for page in session.api.cursor_pages(PATH, limit=limit, page_max=PAGE_MAX, **query):
        yield page["items"]
    if page and page["next"]:
        session.note("There are more: raise --limit, or narrow the time; --limit 0 shows all.")


def _cells(row: dict[str, Any]) -> list[str]:
    details = ", ".join(f"{key}: {value}" for key, value in row["details"].items() if value is not None)
    return [
        times.parse(row["at"]).strftime("%Y-%m-%dT%H:%M:%SZ"),
        row["who"],
        row["address"],
        row["action"],
        row["name"],
        terminal.cut(terminal.clean_line(details), DETAILS_MAX),
    ]

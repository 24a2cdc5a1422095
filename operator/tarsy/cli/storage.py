"""`tarsy storage`: the size of the database, and what retention is about to delete."""

from __future__ import annotations

from typing import Any

import click

from tarsy.cli.client import formats, sessions, terminal, times

STORAGE = "/api/v1/system/storage"
_KINDS = {
    "transcripts": "transcripts to hide",
    "purges": "hidden transcripts to purge",
    "transcript_rows": "purged investigations with rows to delete",
    "tool_results": "investigations with full texts of tool results to delete",
    "investigations": "empty rows of purged investigations to delete",
    "audit": "rows of the audit to delete",
    "tool_pins": "pins of tools to delete",
}


@click.command(
    help="Show the size of TARSy's database by table, and what retention is about to delete.",
    epilog="Examples:\n\n\b\n  tarsy storage\n  tarsy storage -o jsonpath={.size}",
)
@formats.option("json", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def command(*, session: sessions.Session, form: str | None, no_headers: bool) -> None:
    """Show the size of the database."""
    storage = session.api.get(STORAGE)
    if form:
        formats.print_document(storage, form)
        return
    rows = [
        (table["name"], size_text(table["size"]), f"{table['row_count']:,}", f"{table['dead_row_count']:,}")
        for table in storage["tables"]
    ]
    rows.append(("total", size_text(storage["size"]), "", ""))
    header = None if no_headers else ("TABLE", "SIZE", "ROWS", "DEAD ROWS")
    for line in (*terminal.table(rows, header=header), *_due(storage), *_oldest(storage["oldest"])):
        click.echo(line)


def _due(storage: dict[str, Any]) -> list[str]:
    if storage["due"] is None:
        return ["", "Due: counting takes too long."]
    due = [f"  {kind['count']:,} {_KINDS.get(kind['kind'], kind['kind'])}" for kind in storage["due"] if kind["count"]]
    note = " (retention.dry_run keeps it)" if storage["dry_run"] else ""
    return ["", f"Due{note}:", *due] if due else ["", "Due: nothing."]


def _oldest(oldest: dict[str, str | None]) -> list[str]:
    names = {
        "admitted_at": "investigation",
        "deleted_at": "deletion that can be undone",
        "changed_at": "row of the audit",
    }
    return [
        f"Oldest {name}: {times.duration_text(times.since(oldest[key]))} ago"
        for key, name in names.items()
        if oldest[key]
    ]


def size_text(size: int) -> str:
    """Return a number of bytes with its unit, such as 1.5 GiB."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"

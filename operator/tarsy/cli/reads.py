"""`tarsy get`, `events` and `export`: one investigation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tarsy.cli.client import failures, formats, remote, sessions, terminal, times, views

CHUNK = 64 * 1024


def details(session: sessions.Session, reference: sessions.Reference) -> tuple[dict[str, Any], failures.Failure | None]:
    """Return the API's view of an investigation; if the API fails, the view of its object, and the failure.

    Raises the failure if there is no object.
    """
    try:
        return session.api.get(remote.below(reference.uid)), None
    except failures.Failure as error:
        if reference.object is None:
            raise
        return views.from_object(reference.object), error


def note_source(session: sessions.Session, error: failures.Failure) -> None:
    """Print a note that the view is from the object, and the reason."""
    if isinstance(error, failures.NotFound):
        session.note("It is not admitted yet, or its transcript was purged. This is the status of its object.")
    else:
        session.note(f"Without the API, this is the status of the object: {error.message}")


@click.command(
    help="Show an investigation with its result. -o json prints the object, or the API's answer if the object is gone.",
    epilog="Examples:\n\n\b\n  tarsy get web-crash\n  tarsy get @latest -o jsonpath={.status.phase}",
)
@sessions.named
@formats.option("wide", "name", "json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="With -o wide: do not print column headers.")
@sessions.connected
def get(*, session: sessions.Session, name: str | None, uid: str | None, form: str | None, no_headers: bool) -> None:
    """Show an investigation."""
    reference = session.find(name, uid)
    if form == "name":
        click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(reference.name)}")
    elif form == "wide":
        from tarsy.cli import lists

        lists.print_one(details(session, reference)[0], no_headers=no_headers)
    elif form:
        if reference.object is None:
            session.note(f"The object of {reference.name} is gone, or cannot be read; this is the API's answer.")
        formats.print_document(reference.object or session.api.get(remote.below(reference.uid)), form)
    else:
        view, why = details(session, reference)
        if why:
            note_source(session, why)
        elif reference.object is None:
            session.note("Its object is gone, or cannot be read.")
        for line in description(view):
            click.echo(line)


def description(view: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe an investigation."""
    grounds = f" ({view['grounds']})" if view.get("grounds") else ""
    facts = [
        ("Name", view["name"]),
        ("Namespace", view["namespace"]),
        ("UID", view["id"]),
        ("Alert", f"{view['alert_type']}{' ' + view['severity'] if view['severity'] else ''}"),
        ("Chain", view["chain_name"] or ""),
        ("Phase", view["phase"]),
        ("Reason", view.get("reason") or ""),
        ("Message", view["message"]),
        ("Grounded", f"{views.grounded(view)}{grounds}" if view["grounded"] is not None else ""),
        ("Progress", view["progress"]),
        ("Age", views.age(view)),
        ("Duration", views.duration(view)),
        ("Tokens", str(view["total_tokens"]) if view["total_tokens"] else ""),
        ("Cost", view["cost"] or ""),
        ("Repeats", str(view["duplicates"]) if view["duplicates"] else ""),
        ("Alerts", _alerts(view.get("alert_group"))),
        (
            "Unchanged since" if view.get("reason") == "Unchanged" else "Follows",
            (view.get("previous") or {}).get("name") or "",
        ),
        ("Held", view.get("hold") or ""),
        ("Retry of", (view.get("retry_of") or {}).get("name") or ""),
        ("Retried by", (view.get("retried_by") or {}).get("name") or ""),
        ("Split from", (view.get("split_from") or {}).get("name") or ""),
        ("Split into", ", ".join(part["name"] for part in view.get("split_into") or ())),
        *(("Feedback", views.feedback(person)) for person in view.get("feedback_by_person") or ()),
    ]
    for label, value in facts:
        if value:
            cleaned = terminal.clean_line(value)
            yield f"{label + ':':<12}{terminal.coloured(cleaned) if label == 'Phase' else cleaned}"
    if stages := view["stage_progress"]:
        yield ""
        yield from terminal.table(
            [
                (stage["name"], stage["phase"], times.duration_text(stage["seconds"]), stage["message"])
                for stage in stages
            ],
            header=("STAGE", "STATUS", "DURATION", "MESSAGE"),
        )
    for number, gap in enumerate(view["gaps"]):
        yield from [""] * (number == 0)
        yield f"Not looked at: {terminal.clean_line(views.gap(gap))}"
    for title, text in (("Summary", view["summary"]), ("Final analysis", view["final_analysis"])):
        if text:
            yield f"\n{title}:\n{terminal.clean(text)}"


@click.command(
    help="Show the timeline of an investigation, event by event.",
    epilog="Examples:\n\n\b\n  tarsy events web-crash\n  tarsy events web-crash -o jsonl",
)
@sessions.named
@formats.option("wide", "json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def events(*, session: sessions.Session, name: str | None, uid: str | None, form: str | None, no_headers: bool) -> None:
    """Show the timeline."""
    reference = session.find(name, uid, with_object=False)
    items = formats.Items(form) if form and form != "wide" else None
    header: tuple[str, ...] | None = None if no_headers else ("TIME", "TYPE", "STATUS", "STAGE", "TEXT")
    widths: list[int] = []
    for page, _ in session.api.pages(remote.below(reference.uid, "/timeline"), "events"):
        if items:
            items.print(page)
            continue
        rows = [_event_row(event, columns=0 if form == "wide" else 80) for event in page]
        for line in terminal.table(rows, header=header, widths=widths):
            click.echo(line)
        header = None
    if items:
        items.end()


def _event_row(event: dict[str, Any], *, columns: int) -> tuple[str, ...]:
    """Return the cells of an event. `columns` is the maximum width of its text; 0 is no maximum."""
    metadata = event["metadata"]
    tool = f"{metadata['server_name']}.{metadata['tool_name']} " if "tool_name" in metadata else ""
    text = terminal.clean_line(tool + (event["content"] or str(metadata.get("arguments") or "")))
    excerpt = terminal.cut(text, columns) if columns else text
    return event["created_at"][:19] + "Z", event["type"], event["status"], event["stage"], excerpt


@click.command(
    help="Write a whole investigation as one file.",
    epilog="Examples:\n\n\b\n  tarsy export web-crash > crash.md\n  tarsy export web-crash -o json --file crash.json",
)
@sessions.named
@formats.option("markdown", "json")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; by default standard output.",
)
@sessions.connected
def export(
    *, session: sessions.Session, name: str | None, uid: str | None, form: str | None, path: Path | None
) -> None:
    """Write an export."""
    reference = session.find(name, uid, with_object=False)
    target = remote.below(reference.uid, "/export")
    with session.api.open("GET", target, format=form or "markdown") as response:
        if path is None:
            for chunk in _chunks(response):
                part = chunk.decode("utf-8", errors="replace")
                clean = terminal.clean_json if form == "json" else terminal.clean
                click.echo(clean(part) if sys.stdout.isatty() else part, nl=False)
            return
        partial = path.with_name(f".{path.name}.partial")
        try:
            with partial.open("wb") as file:
                for chunk in _chunks(response):
                    file.write(chunk)
            partial.replace(path)
        except OSError as error:
            raise failures.Failure(f"{path}: {error.strerror or error}") from error
        finally:
            partial.unlink(missing_ok=True)
    session.note(f"Written to {path}.")


def _chunks(response: Any) -> Iterator[bytes]:
    """Yield an answer in whole lines. Raises a Failure if it is cut off."""
    import http.client

    try:
        yield from response
    except (OSError, http.client.HTTPException) as error:
        raise failures.Unreachable(f"the export was cut off: {error}") from error


def _alerts(alerts: dict[str, Any] | None) -> str:
    """Return the alerts of a group in one line."""
    if not alerts:
        return ""
    types = ", ".join(f"{counted['count']} {counted['alert_type']}" for counted in alerts["types"])
    return f"{alerts['total']}, {alerts['firing']} firing: {types}"

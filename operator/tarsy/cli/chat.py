"""`tarsy chat`: questions about an investigation that has ended."""

from __future__ import annotations

import sys
from typing import Any

import click

from tarsy.cli.client import failures, remote, sessions, terminal, transcripts, views


@click.command(
    help="Ask a question about an investigation that has ended. Without QUESTION, start a conversation, which "
    "Ctrl-D ends.",
    epilog='Examples:\n\n\b\n  tarsy chat web-crash "Since when does it refuse connections?"\n  tarsy chat @latest',
)
@click.argument("name", metavar="NAME", required=False, shell_complete=sessions.complete_investigations)
@click.argument("question", metavar="[QUESTION]", required=False)
@click.option(
    "--uid", metavar="UID", help="The investigation's UID, in place of a name; it also finds one whose object is gone."
)
@sessions.connected
def command(*, session: sessions.Session, name: str | None, question: str | None, uid: str | None) -> None:
    """Ask questions."""
    if uid and name and question is None:
        name, question = None, name
    reference = session.find(name, uid, with_object=False)
    if question is not None:
        raise click.exceptions.Exit(_ask(session, reference.uid, sys.stdin.read() if question == "-" else question))
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is no terminal: give a QUESTION, or - to read it from there")
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            click.echo()
            return
        if question:
            try:
                _ask(session, reference.uid, question)
            except failures.Failure as error:
                error.show()


def _ask(session: sessions.Session, uid: str, question: str) -> int:
    """Ask one question, print its answer, and return the exit code for its end."""
    *_, (_, after) = session.api.pages(remote.below(uid, "/timeline"), "events")
    number = session.api.ask("POST", remote.below(uid, "/chat"), {"question": question})["run"]
    on_terminal = terminal.is_terminal()
    printer = transcripts.Printer(
        transcripts.Selection(), lambda: session.api.get(remote.below(uid))["executions"], streams=True
    )
    events = session.api.events(
        remote.below(uid, "/events"), last_id=str(after), interrupted=lambda reason: session.note(reason, once=reason)
    )
    for event in events:
        data: dict[str, Any] = event.data
        if data.get("run") != number:
            continue
        if event.type == "question.completed":
            break
        if on_terminal and event.type.startswith("timeline_event.") and data["event"]["type"] != "user_question":
            printer.event(data["event"])
        elif on_terminal and event.type == "stream.chunk":
            printer.chunk(data["event_id"], data["offset"], data["delta"])
    printer.close()
    run = session.api.get(remote.below(uid))["runs"][-1]
    run = run if run["number"] == number else {"ending": None, "message": "", "final_analysis": ""}
    if not on_terminal and run["final_analysis"]:
        click.echo(terminal.clean(run["final_analysis"]))
    if run["ending"] != "Completed":
        session.note(f"{run['ending']}: {run['message']}")
    return views.EXIT_CODES.get(str(run["ending"]), 1)

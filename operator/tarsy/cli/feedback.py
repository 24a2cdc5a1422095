"""`tarsy feedback`: whether an investigation was right, in the caller's name."""

from __future__ import annotations

import click

from tarsy.cli.client import remote, sessions, terminal

VERDICTS = ("correct", "partly", "wrong")
NONE = "none"
"""In lists: without feedback."""


@click.command(
    help="Say whether an investigation that has ended was right: correct, partly or wrong. It replaces what you said "
    "before.",
    epilog="Examples:\n\n\b\n  tarsy feedback web-crash correct\n"
    '  tarsy feedback web-crash wrong --cause "The node had no disk space."\n'
    "  tarsy feedback web-crash --withdraw",
)
@click.argument("name", metavar="NAME", required=False, shell_complete=sessions.complete_investigations)
@click.argument("verdict", metavar="[VERDICT]", required=False)
@click.option(
    "--uid", metavar="UID", help="The investigation's UID, in place of a name; it also finds one whose object is gone."
)
@click.option("--cause", metavar="TEXT", default="", help="The true cause; masked before it is stored.")
@click.option("--note", metavar="TEXT", default="", help="Anything else that readers should know; masked, too.")
@click.option("--withdraw", is_flag=True, help="Withdraw your feedback.")
@sessions.connected
def command(
    *,
    session: sessions.Session,
    name: str | None,
    verdict: str | None,
    uid: str | None,
    cause: str,
    note: str,
    withdraw: bool,
) -> None:
    """Give or withdraw feedback."""
    if uid and name and verdict is None:
        name, verdict = None, name
    if withdraw and (verdict or cause or note):
        raise click.UsageError("--withdraw takes your feedback back: leave VERDICT, --cause and --note out")
    if not withdraw and verdict not in VERDICTS:
        refused = f"{verdict!r} is no verdict: " if verdict else ""
        raise click.UsageError(f"{refused}give one of {', '.join(VERDICTS)}, or --withdraw")
    reference = session.find(name, uid, with_object=False)
    path = remote.below(reference.uid, "/feedback")
    if withdraw:
        session.api.open("DELETE", path).close()
        done = "has no feedback of yours"
    else:
        stored = session.api.ask("POST", path, {"verdict": verdict, "cause": cause, "note": note})
        done = f"is {stored['verdict']}, says {stored['author']}"
    click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(f'{reference.name} {done}')}")

"""`tarsy cancel`, `suspend` and `unsuspend`: changes of an investigation's spec, with the caller's rights."""

from __future__ import annotations

from typing import Any

import click

from tarsy.cli.client import failures, sessions, terminal, views


def _change(
    session: sessions.Session, names: tuple[str, ...], uid: str | None, spec: dict[str, Any], done: str
) -> None:
    """Change the specs of investigations that have not ended. All are tried before the last failure is raised."""
    if uid and names:
        raise click.UsageError("give NAMEs or --uid UID, not both")
    if not uid and not names:
        raise click.UsageError("give a NAME or --uid UID")
    failure: failures.Failure | None = None
    for name in names or (None,):
        try:
            reference = _change_one(session, name, uid, spec)
            click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(reference.name)} {done}")
        except failures.Failure as error:
            if failure:
                failure.show()
            failure = error
    if failure:
        raise failure


def _change_one(
    session: sessions.Session, name: str | None, uid: str | None, spec: dict[str, Any]
) -> sessions.Reference:
    """Change the spec of one investigation. Raises a Failure if it has ended or is gone."""
    reference = session.find(name, uid)
    if reference.object is None:
        raise failures.NotFound(f"The object of {reference.name} is gone: there is nothing to change.")
    phase = views.from_object(reference.object)["phase"]
    if phase in views.ENDED:
        raise failures.Failure(f"{reference.name} has ended already: {phase}.")
    session.cluster.patch(reference.name, namespace=reference.namespace, uid=reference.uid, spec=spec)
    return reference


def _with_names(function: Any) -> Any:
    function = click.option("--uid", metavar="UID", help="The investigation's UID, in place of names.")(function)
    return click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=sessions.complete_investigations)(
        function
    )


@click.command(help="Cancel investigations.", epilog="Examples:\n\n\b\n  tarsy cancel web-crash")
@_with_names
@sessions.connected
def cancel(*, session: sessions.Session, names: tuple[str, ...], uid: str | None) -> None:
    """Cancel investigations."""
    _change(session, names, uid, {"cancel": True}, "cancelled")


@click.command(
    help="Suspend investigations before their next step.", epilog="Examples:\n\n\b\n  tarsy suspend web-crash"
)
@_with_names
@sessions.connected
def suspend(*, session: sessions.Session, names: tuple[str, ...], uid: str | None) -> None:
    """Suspend investigations."""
    _change(session, names, uid, {"suspend": True}, "suspended")


@click.command(help="Resume suspended investigations.", epilog="Examples:\n\n\b\n  tarsy unsuspend web-crash")
@_with_names
@sessions.connected
def unsuspend(*, session: sessions.Session, names: tuple[str, ...], uid: str | None) -> None:
    """Resume investigations."""
    _change(session, names, uid, {"suspend": False}, "resumed")

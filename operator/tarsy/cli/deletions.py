"""`tarsy delete`, `restore`, `purge`, `hold` and `unhold`: the transcripts of investigations, through the API."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

import click

from tarsy.cli.client import failures, remote, sessions, terminal


def _target(session: sessions.Session, name: str | None, uid: str | None) -> tuple[str, str]:
    """Return the UID of an investigation, and its name, or its UID if that is given: a deleted one has no name."""
    if name is None and uid:
        try:
            return str(UUID(uid)), uid
        except ValueError:
            raise click.UsageError(f"--uid: {uid} is no UID; `tarsy get NAME` shows it") from None
    reference = session.find(name, uid, with_object=False)
    return reference.uid, terminal.clean_line(reference.name)


def _named(function: Any) -> Any:
    return sessions.named(sessions.connected(function))


@click.command(
    help="Delete the transcript of an ended investigation, and its object. `tarsy restore` brings the transcript back,"
    " until it is purged.",
    epilog="Examples:\n\n\b\n  tarsy delete web-crash",
)
@_named
def delete(*, session: sessions.Session, name: str | None, uid: str | None) -> None:
    """Delete an investigation."""
    identity, label = _target(session, name, uid)
    session.api.open("DELETE", remote.below(identity)).close()
    click.echo(f"{label} deleted; to bring it back: tarsy restore --uid {identity}")


@click.command(
    help="Bring the transcript of a deleted investigation back. Its object stays deleted.",
    epilog="Examples:\n\n\b\n  tarsy restore --uid 6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64",
)
@click.option("--uid", required=True, metavar="UID", help="The UID that `tarsy delete` printed; `tarsy audit` has it.")
@sessions.connected
def restore(*, session: sessions.Session, uid: str) -> None:
    """Restore an investigation."""
    identity, _ = _target(session, None, uid)
    restored = session.api.ask("POST", remote.below(identity, "/restore"))
    click.echo(f"{terminal.clean_line(restored['name'])} restored")


@click.command(
    help="Delete an ended investigation for good: its transcript and its object. Nothing brings them back.",
    epilog="Examples:\n\n\b\n  tarsy purge web-crash --yes",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_named
def purge(*, session: sessions.Session, name: str | None, uid: str | None, yes: bool) -> None:
    """Purge an investigation."""
    identity, label = _target(session, name, uid)
    if not yes:
        if not sys.stdin.isatty():
            raise failures.Failure("a purge cannot be undone: confirm it with --yes")
        click.confirm(f"Purge {label} ({identity}) for good?", abort=True)
    session.api.open("DELETE", remote.below(identity), purge="true").close()
    click.echo(f"{label} purged")


@click.command(
    help="Hold an investigation: nothing of it is deleted, by requests or by retention, until the hold ends.",
    epilog='Examples:\n\n\b\n  tarsy hold web-crash --reason "incident 4711"',
)
@click.option("--reason", required=True, metavar="TEXT", help="The reason, which its readers see.")
@_named
def hold(*, session: sessions.Session, name: str | None, uid: str | None, reason: str) -> None:
    """Hold an investigation."""
    identity, _ = _target(session, name, uid)
    held = session.api.ask("POST", remote.below(identity, "/hold"), {"reason": reason})
    click.echo(f"{terminal.clean_line(held['name'])} held: {terminal.clean_line(held['hold'])}")


@click.command(help="End the hold of an investigation.", epilog="Examples:\n\n\b\n  tarsy unhold web-crash")
@_named
def unhold(*, session: sessions.Session, name: str | None, uid: str | None) -> None:
    """End a hold."""
    identity, _ = _target(session, name, uid)
    released = session.api.ask("DELETE", remote.below(identity, "/hold"))
    click.echo(f"{terminal.clean_line(released['name'])} is not held")

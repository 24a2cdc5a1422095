"""`tarsy split`: an alert is taken out of a group of alerts, and gets an investigation of its own."""

from __future__ import annotations

from urllib.parse import quote

import click

from tarsy.cli.client import formats, remote, sessions, terminal


@click.command(
    help="Take the alert FINGERPRINT out of the group that an investigation is about: it gets one of its own.",
    epilog="Examples:\n\n\b\n  tarsy split web-crash 5c1a9be07d3f42a6",
)
@sessions.named
@click.argument("fingerprint", metavar="FINGERPRINT")
@formats.option("name", "json", "yaml")
@sessions.connected
def command(
    *, session: sessions.Session, name: str | None, uid: str | None, fingerprint: str, form: str | None
) -> None:
    """Take an alert out of a group."""
    reference = session.find(name, uid, with_object=False)
    path = f"/alerts/{quote(fingerprint, safe='')}/investigate"
    created = session.api.ask("POST", remote.below(reference.uid, path), {})
    if form in ("json", "yaml"):
        formats.print_document(created, form)
    else:
        click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(created['name'])}{'' if form else ' created'}")

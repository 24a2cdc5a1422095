"""The command `tarsy open`: the pages in a browser, with the rights of a token.

The token is exchanged for a one-time code. The browser gets only the code, and a cookie in exchange for it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from urllib import parse

import click

from tarsy.cli.client import sessions


@click.command(
    help="Open the dashboard in a browser: the list, or the investigation NAME.",
    epilog="Examples:\n\n\b\n  tarsy open web-crash --no-browser",
)
@sessions.named
@click.option(
    "--no-browser", is_flag=True, help="Print the address instead. It signs in one browser, within 30 seconds."
)
@sessions.connected
def command(*, session: sessions.Session, name: str | None, uid: str | None, no_browser: bool) -> None:
    """Open a page in a browser that is signed in."""
    page = f"/investigations/{session.find(name, uid, with_object=False).uid}" if name or uid else "/"
    address = session.api.ask("POST", "/api/v1/session-codes", {})["url"]
    needs_sign_in = bool(parse.urlsplit(address).query)
    address = f"{address}&next={parse.quote(page)}" if needs_sign_in else address.rstrip("/") + page
    if no_browser or click.launch(address) != 0:
        click.echo(address)
    url = session.api.url()
    if session.api_url is None and address.startswith(url):
        click.echo(f"{url} leads to the API until Ctrl-C.", err=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()

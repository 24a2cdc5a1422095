"""`tarsy tools`: the tools of MCP servers, through the API. What it takes to ask is imported when it is asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TextIO
from urllib import parse

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = "/api/v1/system/mcp-servers"


@click.group(help="Confirm tools of MCP servers that have changed.")
def command() -> None:
    """Do what a subcommand says."""


@command.command()
@click.argument("server", metavar="SERVER")
@click.option("--tool", "names", multiple=True, metavar="NAME", help="Only this one; may be given several times.")
@click.option(
    "--api",
    default="http://127.0.0.1:8080",
    envvar="TARSY_API",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Where the API is.",
)
@click.option(
    "--token-file",
    type=click.File(),
    metavar="FILE",
    help="A token of the cluster (kubectl create token), - for standard input; else what TARSY_TOKEN says.",
)
def accept(*, server: str, names: tuple[str, ...], api: str, token_file: TextIO | None) -> None:
    """Say that tools of SERVER which have changed, and are stopped, may be what they are now.

    Each is named with the hash that it was pinned at and the one that is pinned from now on. 1 if something is not as
    it was said, or nothing has changed of a tool that is named.
    """
    from tarsy.cli import remote

    token = token_file.read().strip() if token_file else os.environ.get("TARSY_TOKEN", "")
    asked = remote.API(api, token=token)
    stopped = dict(_stopped(asked.ask("GET", SERVERS), server))
    if unknown := [name for name in names if name not in stopped]:
        known = ", ".join(sorted(stopped)) or "none"
        raise click.ClickException(f"not stopped: {', '.join(unknown)}. Stopped tools of {server}: {known}")
    tools = {name: offered for name, offered in stopped.items() if not names or name in names}
    if not tools:
        click.echo(f"{server}: no tool is stopped.")
        return
    done = asked.ask("POST", f"{SERVERS}/{parse.quote(server, safe='')}/accept", {"tools": tools})
    for one in done["tools"]:
        click.echo(f"{server}.{one['tool']}: {one['before'] or 'new'} -> {one['hash']}")


def _stopped(servers: dict[str, Any], name: str) -> Iterator[tuple[str, str]]:
    """The stopped tools of a server, each with what it is now; a ClickException where there is no such server."""
    found = next((one for one in servers["items"] if one["name"] == name), None)
    if found is None:
        known = ", ".join(one["name"] for one in servers["items"]) or "none"
        raise click.ClickException(f"no worker has an MCP server {name}. There is: {known}")
    for place in found["processes"]:
        for one in place["stopped"]:
            yield one["tool"], one["offered"]

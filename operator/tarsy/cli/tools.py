"""`tarsy tools`: the tools of MCP servers, through the API. What it takes to ask is imported when it is asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TextIO
from urllib import parse

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarsy.cli import remote

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
    it was said, nothing has changed of a tool that is named, or one has to be changed in the platform file.
    """
    from tarsy.cli import remote

    token = token_file.read().strip() if token_file else os.environ.get("TARSY_TOKEN", "")
    asked = remote.API(api, token=token)
    stopped = {stopped_tool["tool"]: stopped_tool for stopped_tool in _stopped(asked.ask("GET", SERVERS), server)}
    if unknown := [name for name in names if name not in stopped]:
        names_known = ", ".join(sorted(stopped)) or "none"
        raise click.ClickException(f"not stopped: {', '.join(unknown)}. Stopped tools of {server}: {names_known}")
    meant = [stopped_tool for name, stopped_tool in stopped.items() if not names or name in names]
    tools = {
        stopped_tool["tool"]: stopped_tool["offered_hash"] for stopped_tool in meant if not stopped_tool["platform_key"]
    }
    done = _confirmed(asked, server, tools)
    if gone := [name for name in names if name in tools and name not in done]:
        raise click.ClickException(f"not stopped any more: {', '.join(gone)}")
    if written := [stopped_tool for stopped_tool in meant if stopped_tool["platform_key"]]:
        for stopped_tool in written:
            message = (
                f"{stopped_tool['platform_key']} says {stopped_tool['pinned_hash']}, "
                f"the server offers {stopped_tool['offered_hash']}: change it there"
            )
            click.echo(f"{server}.{stopped_tool['tool']}: {message}", err=True)
        raise click.exceptions.Exit(1)
    if not done:
        click.echo(f"{server}: no tool is stopped{' any more' if stopped else ''}.")


def _confirmed(asked: remote.API, server: str, tools: dict[str, str]) -> list[str]:
    """The names of those that were stopped and are not any more; each is told."""
    if not tools:
        return []
    done = asked.ask("POST", f"{SERVERS}/{parse.quote(server, safe='')}/accept", {"tools": tools})["tools"]
    for tool in done:
        click.echo(f"{server}.{tool['tool']}: {tool['before'] or 'new'} -> {tool['hash']}")
    return [tool["tool"] for tool in done]


def _stopped(servers: dict[str, Any], name: str) -> Iterator[dict[str, str]]:
    """The stopped tools of a server; a ClickException where there is no such server, or that is not known."""
    server_row = next((row for row in servers["items"] if row["name"] == name), None)
    if server_row is None:
        names_known = ", ".join(row["name"] for row in servers["items"]) or "none"
        raise click.ClickException(f"no worker has an MCP server {name}. There is: {names_known}")
    places = server_row["processes"]
    if not any(host["stopped"] or host["state"] == "connected" for host in places):
        why = places[0]["problem"] if places else ""
        message = f"{name} is not connected{f' ({why})' if why else ''}"
        raise click.ClickException(f"{message}: whether tools of it are stopped is not known")
    for host in places:
        yield from host["stopped"]

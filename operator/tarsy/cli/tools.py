"""`tarsy tools`: the tools of MCP servers, through the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib import parse

import click

from tarsy.cli.client import failures, formats, remote, sessions, terminal

SERVERS = "/api/v1/system/mcp-servers"


@click.group(help="Show tools of MCP servers, and accept changed tools.")
def command() -> None:
    """Do what a subcommand says."""


@command.command(
    "list",
    help="List the tools of all MCP servers, or of SERVER.",
    epilog="Examples:\n\n\b\n  tarsy tools list\n  tarsy tools list kubernetes-server",
)
@click.argument("server", required=False, metavar="[SERVER]")
@formats.option("json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def list_tools(*, session: sessions.Session, server: str | None, form: str | None, no_headers: bool) -> None:
    """List tools."""
    servers = session.api.get(SERVERS)
    if server:
        servers["items"] = [_row(servers, server)]
    if form:
        items = formats.Items(form)
        items.print(servers["items"])
        items.end()
        return
    rows = []
    for row in servers["items"]:
        stopped = {tool["tool"] for process in row["processes"] for tool in process["stopped"]}
        for tool in row["tools"]:
            state = "Stopped" if tool["name"] in stopped else "Offered"
            writes = {True: "False", False: "True"}.get(tool["read_only"], "")
            rows.append((row["name"], tool["name"], state, writes, terminal.cut(tool["description"], 60)))
        rows += [(row["name"], name, "Stopped", "", "") for name in stopped - {tool["name"] for tool in row["tools"]}]
        if row["state"] != "connected":
            problem = next((process["problem"] for process in row["processes"] if process["problem"]), "")
            session.note(f"{row['name']} is {row['state']}: {problem}".removesuffix(": "))
    for line in terminal.table(
        rows, header=None if no_headers else ("SERVER", "TOOL", "STATE", "WRITES", "DESCRIPTION")
    ):
        click.echo(line)


@command.command(epilog="Examples:\n\n\b\n  tarsy tools accept kubernetes-server --tool pods_get")
@click.argument("server", metavar="SERVER")
@click.option("--tool", "names", multiple=True, metavar="NAME", help="Only this tool; may be repeated.")
@sessions.connected
def accept(*, session: sessions.Session, server: str, names: tuple[str, ...]) -> None:
    """Accept the tools of SERVER that were stopped because they had changed.

    Each is printed with its former hash and the hash that is pinned now. The exit code is 1 if a tool of --tool is not
    stopped, or if the platform file pins a tool: then change the hash there.
    """
    stopped = {tool["tool"]: tool for tool in _stopped(_row(session.api.get(SERVERS), server))}
    if unknown := [name for name in names if name not in stopped]:
        names_known = ", ".join(sorted(stopped)) or "none"
        raise failures.Failure(f"not stopped: {', '.join(unknown)}. Stopped tools of {server}: {names_known}")
    meant = [tool for name, tool in stopped.items() if not names or name in names]
    tools = {tool["tool"]: tool["offered_hash"] for tool in meant if not tool["platform_key"]}
    accepted = _accept(session.api, server, tools)
    if gone := [name for name in names if name in tools and name not in accepted]:
        raise failures.Failure(f"not stopped any more: {', '.join(gone)}")
    if written := [tool for tool in meant if tool["platform_key"]]:
        for tool in written:
            message = (
                f"{tool['platform_key']} says {tool['pinned_hash']}, "
                f"the server offers {tool['offered_hash']}: change it there"
            )
            session.note(f"{server}.{tool['tool']}: {message}")
        raise click.exceptions.Exit(1)
    if not accepted:
        click.echo(f"{server}: no tool is stopped{' any more' if stopped else ''}.")


def _accept(api: remote.API, server: str, tools: dict[str, str]) -> list[str]:
    """Accept tools with these hashes, print each, and return their names."""
    if not tools:
        return []
    accepted = api.ask("POST", f"{SERVERS}/{parse.quote(server, safe='')}/accept", {"tools": tools})["tools"]
    for tool in accepted:
        click.echo(f"{server}.{terminal.clean_line(tool['tool'])}: {tool['before'] or 'new'} -> {tool['hash']}")
    return [tool["tool"] for tool in accepted]


def _row(servers: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the row of a server. Raises a Failure with the nearest names if there is none."""
    row: dict[str, Any] | None = next((row for row in servers["items"] if row["name"] == name), None)
    if row is None:
        names_known = ", ".join(row["name"] for row in servers["items"]) or "none"
        raise failures.NotFound(f"no worker has an MCP server {name}. MCP servers: {names_known}")
    return row


def _stopped(row: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the stopped tools of a server. Raises a Failure if that is not known."""
    processes = row["processes"]
    if not any(process["stopped"] or process["state"] == "connected" for process in processes):
        why = processes[0]["problem"] if processes else ""
        message = f"{row['name']} is not connected{f' ({why})' if why else ''}"
        raise failures.Failure(f"{message}: its stopped tools are not known")
    for process in processes:
        yield from process["stopped"]

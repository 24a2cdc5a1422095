"""The command `tarsy config`: the platform file. Subcommands import the modules that they need, to start quickly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tarsy.config.model import platforms

FILE = click.Path(path_type=Path)


@click.group(help="Check the platform file, and print its JSON Schema.")
def command() -> None:
    """Run a subcommand."""


@command.command(epilog="Examples:\n\n\b\n  tarsy config check platform.yaml")
@click.argument("path", metavar="[FILE]", required=False, type=FILE, envvar="TARSY_CONFIG")
@click.option(
    "-n",
    "--namespace",
    default="",
    envvar="TARSY_NAMESPACE",
    metavar="NAME",
    help="The operator's own namespace. Without it, names of namespaces that it may not serve are not checked.",
)
@click.option("--servers", is_flag=True, help="Connect to each MCP server, and list its offered and excluded tools.")
def check(*, path: Path | None, namespace: str, servers: bool) -> None:
    """Check a platform file. Print the file, the line, the problem and the valid names; exit with 1 if any.

    FILE is TARSY_CONFIG by default, as for `tarsy operator`.

    Its variables must be set in the environment, as for `tarsy operator`.
    """
    from tarsy.config.load import loader
    from tarsy.config.model import reach

    if path is None:
        raise click.UsageError("no platform file: give FILE, or set TARSY_CONFIG")
    try:
        loaded = loader.as_written(path, own_namespace=namespace)
    except loader.ConfigError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{path}: nothing is wrong with it.")
    for warning in reach.unserved(loaded.platform, own=namespace):
        click.echo(f"{path}: warning: {warning}", err=True)
    for warning in loaded.platform.runbooks.warnings:
        click.echo(f"{path}: warning: {warning}", err=True)
    if servers and not _check_servers(loaded.platform):
        raise click.exceptions.Exit(1)


def _check_servers(platform_file: platforms.Platform) -> bool:
    """Print the tools or the problem of each MCP server, and return whether all can be used."""
    from tarsy.cli.check import servers
    from tarsy.transcript import control_characters

    def echo(text: str, *, err: bool = False) -> None:
        click.echo(control_characters.escape(text), err=err)  # the names of tools come from the servers

    if platform_file.mcp_servers:
        click.echo(
            f"Connecting to {', '.join(platform_file.mcp_servers)}. This takes half a minute if one does not answer."
        )
    reports, unmatched_patterns = servers(platform_file)
    for report in reports:
        if report.is_connected:
            noun = "tool" if len(report.tools) == 1 else "tools"
            echo(f"{report.name}: {len(report.tools)} {noun}: {', '.join(report.tools)}")
        for line in report.not_offered:
            echo(f"{report.name}: {line}")
        for line in report.warnings:
            echo(f"{report.name}: {line}", err=True)
        if report.problem:
            echo(f"{report.name}: {report.problem}", err=True)
    for line in unmatched_patterns:
        echo(line)
    return not any(report.problem for report in reports)


@command.command(epilog="Examples:\n\n\b\n  tarsy config schema > tarsy.schema.json")
def schema() -> None:
    """Print the platform file's JSON Schema, for editors: `# yaml-language-server: $schema=FILE` in its first line."""
    import json

    from tarsy.config.model import json_schema

    click.echo(json.dumps(json_schema.for_validators(json_schema.schema()), indent=2, ensure_ascii=False))

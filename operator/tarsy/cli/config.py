"""`tarsy config`: the platform file. What it takes to read it is imported when it is read."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path)


@click.group(help="Check the platform file, and describe what may stand in it.")
def command() -> None:
    """Do what a subcommand says."""


@command.command()
@click.argument("path", metavar="FILE", type=FILE)
@click.option("--servers", is_flag=True, help="Connect to each MCP server, and list its tools.")
def check(*, path: Path, servers: bool) -> None:
    """Check a platform file: file, line, what is wrong, what there is. 1 if anything is wrong.

    Its variables have to be set in the environment, as for `tarsy operator`.
    """
    from tarsy.config import load

    try:
        loaded = load.as_written(path)
    except load.ConfigError as error:
        raise click.ClickException(str(error)) from error
    if servers:
        from tarsy.cli import check as checks

        checks.servers(loaded)
    click.echo(f"{path}: nothing is wrong with it.")


@command.command()
def schema() -> None:
    """Print the platform file's JSON Schema, for editors: `# yaml-language-server: $schema=FILE` in its first line."""
    import json

    from tarsy.config import described

    click.echo(json.dumps(described.schema(), indent=2, ensure_ascii=False))

"""`tarsy chain`: chains in files. What it takes to read them is imported when they are read."""

from __future__ import annotations

from pathlib import Path

import click

FILES = click.Path(path_type=Path)


@click.group(help="Check chains in files, and make chains of TARSy's former YAML.")
def command() -> None:
    """Do what a subcommand says."""


@command.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=FILES)
@click.option(
    "--config",
    type=FILES,
    envvar="TARSY_CONFIG",
    show_envvar=True,
    help="The platform file that they refer to; what is built in where none is given.",
)
def lint(*, paths: tuple[Path, ...], config: Path | None) -> None:
    """Check the AgentChains in files: file, line, what is wrong, what there is. 1 if anything is wrong.

    No cluster is asked: whether another chain there has the same alert type is not known here.
    """
    from tarsy.config import lint as linter
    from tarsy.config import load
    from tarsy.resources import files

    problems: list[files.Problem] = []
    documents = []
    for path in dict.fromkeys(paths):
        try:
            documents += files.read(path)
        except files.FileError as error:
            problems += error.problems
    try:
        platform = load.platform_file(config)
    except load.ConfigError as error:
        raise click.ClickException(f"the platform file is wrong:\n{error}") from error
    problems += linter.problems(documents, platform=platform)
    if problems:
        raise click.ClickException("\n".join(map(str, problems)))
    click.echo(f"{len(documents)} documents in {len(set(paths))} files: nothing is wrong with them.")

"""`tarsy chain`: chains in files. What it takes to read them is imported when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tarsy.resources import files

FILES = click.Path(path_type=Path)


@click.group(help="Check chains in files, and make chains of TARSy's former YAML.")
def command() -> None:
    """Do what a subcommand says."""


def _read(paths: Iterable[Path]) -> tuple[list[files.Document], list[files.Problem]]:
    """Return the documents of the files, and the problems of unreadable ones."""
    from tarsy.resources import files

    documents: list[files.Document] = []
    problems: list[files.Problem] = []
    for path in dict.fromkeys(paths):
        try:
            documents += files.read(path)
        except files.FileError as error:
            problems += error.problems
    return documents, problems


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

    No cluster is asked: whether another chain there has the same alert type is not known here. Nor are the variables
    of the platform file looked at.
    """
    from tarsy.config.check import lint as linter
    from tarsy.config.load import loader

    try:
        platform = loader.platform_file(config, environment=None)
    except loader.ConfigError as error:
        raise click.ClickException(f"the platform file is wrong:\n{error}") from error
    documents, problems = _read(paths)
    problems += linter.problems(documents, platform=platform)
    if problems:
        raise click.ClickException("\n".join(map(str, sorted(problems))))
    click.echo(f"{_counted(documents, 'document')} in {_counted(set(paths), 'file')}: nothing is wrong.")


def _counted(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


@command.command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=FILES)
@click.option("-o", "--output", required=True, type=FILES, help="The directory to write to; nothing there is replaced.")
def convert(*, paths: tuple[Path, ...], output: Path) -> None:
    """Turn TARSy's former agents.yaml, tarsy.yaml and llm-providers.yaml into manifests of chains and a platform file.

    What has no place in them is named. 1, and nothing written, if anything is wrong.
    """
    from tarsy.cli.former import convert as converter
    from tarsy.resources import files

    documents, problems = _read(paths)
    if problems:
        raise click.ClickException("\n".join(map(str, problems)))
    try:
        made = converter.convert(documents)
    except files.FileError as error:
        raise click.ClickException(str(error)) from error
    for note in made.notes:
        click.echo(note, err=True)
    taken = [str(output / name) for name in made.texts if (output / name).exists()]
    if taken:
        raise click.ClickException(f"there already, and not replaced: {', '.join(taken)}")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in made.texts.items():
            (output / name).write_text(text, encoding="utf-8")
            click.echo(output / name)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error

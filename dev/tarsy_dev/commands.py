"""The reference page of the commands, generated from their help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
from tarsy.cli import main
from tarsy.cli.client import failures, sessions

from tarsy_dev import tools

PAGE = tools.ROOT / "docs" / "commands.md"
_INTRODUCTION = """\
# The commands

This page is for people who use `tarsy` in a shell. `make generate` makes it from the commands' help. `tarsy`, beside
kubectl on `PATH`, is also `kubectl tarsy`.

- **Cluster and API**: tarsy runs kubectl to read the cluster, so the kubeconfig, `--context`, `--as` and `-n` work as
  for kubectl. `list`, `logs`, `events`, `export`, `chat` and `tools` need the API. Its address is `--api`, or
  `TARSY_API`; without either, kubectl forwards a local port to the API's Service. An API with a certificate of your own
  needs `SSL_CERT_FILE`.
- **Identity**: the API gets the token of `--token-file`, `TARSY_TOKEN` or the kubeconfig, in this order. It accepts no
  `--as`.
- **Investigations** are named by NAME, `@latest` or `--uid`. A name also finds an investigation whose object is gone,
  until its transcript is deleted.
- **Output**: data goes to stdout and everything else to stderr. There is no colour without a terminal, with `NO_COLOR`
  or with `TERM=dumb`. Control characters in alerts and answers are escaped (`\\x1b`).
- **Ctrl-C** ends the command, not the investigation.
- **Completion**: `source <(tarsy completion bash)`; kubectl completes `kubectl tarsy` by `kubectl_complete-tarsy`.
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the name of each command, with its group's, and the command."""
    for name in sorted(main.COMMANDS):
        command = main.main.get_command(click.Context(main.main), name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", command.commands[inner]) for inner in sorted(command.commands))
        elif command:
            yield name, command


def examples(command: click.Command) -> list[str]:
    """Return the example lines of a command's help."""
    _, _, text = (command.epilog or "").partition("\b\n")
    return [line.strip() for line in text.splitlines()]


def pages() -> dict[Path, str]:
    """Return the page and its text."""
    return {
        PAGE: "\n".join([_INTRODUCTION, *_exit_codes(), *(line for each in commands() for line in _section(*each))])
    }


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield "`watch`, `wait` and `investigate --watch` end with the code of the investigation. Ctrl-C is 130.\n"
    yield "| Code | Meaning |\n|---|---|"
    for code, meaning in failures.EXIT_CODES.items():
        yield f"| {code} | {meaning} |"
    yield ""


def _common() -> Iterator[str]:
    yield "## Options of the cluster and the API\n"
    yield "All have these but `chain lint`, `chain convert`, `completion`, `config`, `migrate` and `operator`.\n"
    example = main.main.get_command(click.Context(main.main), "list")
    if example:
        yield from _table(example, wanted=lambda parameter: parameter.name in sessions.OPTIONS)


def _table(command: click.Command, *, wanted: Callable[[click.Parameter], bool]) -> Iterator[str]:
    """Yield the table of a command's options, if it has any."""
    context = click.Context(command)
    records = [each.get_help_record(context) for each in command.get_params(context) if wanted(each)]
    rows = [
        [" ".join(_without_marks(part).split()).replace("|", "\\|") for part in record] for record in records if record
    ]
    if rows := [row for row in rows if row[1]]:
        yield "| Option | |\n|---|---|"
        yield from (f"| `{option}` | {text} |" for option, text in rows)
        yield ""


def _section(name: str, command: click.Command) -> Iterator[str]:
    """Yield the lines of a command."""
    context = click.Context(command, info_name=f"tarsy {name}", help_option_names=["-h", "--help"])
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield f"## {name}\n"
    yield " ".join(_without_marks(command.help or "").split()) + "\n"
    yield f"    {usage}\n"
    yield from _table(command, wanted=lambda each: each.name not in sessions.OPTIONS and "--help" not in each.opts)
    if lines := examples(command):
        yield "Examples:\n"
        yield from (f"    {example}" for example in lines)
        yield ""


def _without_marks(text: str) -> str:
    return text.replace("\b", "")

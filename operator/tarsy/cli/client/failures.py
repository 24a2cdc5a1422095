"""The failures of commands, with their exit codes."""

from __future__ import annotations

from typing import IO, Any

import click

from tarsy.cli.client import terminal

EXIT_CODES = {
    0: "completed, also with errors",
    1: "failed: the investigation, or the command for any other reason",
    2: "usage: an unknown option, a wrong value, a name that does not exist",
    3: "the investigation was cancelled",
    4: "the investigation timed out",
    5: "the API or the cluster is not reachable",
    6: "`--timeout` has passed",
    7: "refused: a right is missing",
}


class Failure(click.ClickException):
    """A command failed. The message may quote text from outside."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on stderr, without control characters."""
        click.echo(f"Error: {terminal.clean(self.format_message())}", file=file, err=file is None)


class Misuse(Failure):
    """An argument or an option is wrong."""

    exit_code = 2


class NotFound(Misuse):
    """The name or the path does not exist."""


class Cancelled(Failure):
    """The investigation was cancelled."""

    exit_code = 3


class Unreachable(Failure):
    """The API or the cluster does not answer."""

    exit_code = 5


class Late(Failure):
    """The time of `--timeout` has passed."""

    exit_code = 6


class Refused(Failure):
    """The caller lacks a right."""

    exit_code = 7

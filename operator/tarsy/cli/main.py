"""The entry points `tarsy` and `kubectl tarsy`. The module of a command is imported only when the command is run."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, NamedTuple

import click

OPERATORS_PACKAGE = "kopf"
"""A package that the extra `operator` alone installs."""


class Entry(NamedTuple):
    """Where a command is, and its help in a line."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "cancel": Entry("actions", "cancel", "Cancel investigations."),
    "chain": Entry("chain", "command", "Show chains, check them in files, and make them of TARSy's former YAML."),
    "chat": Entry("chat", "command", "Ask about an investigation that has ended."),
    "check": Entry("checks", "command", "Check an installation, or before one whether it can work."),
    "completion": Entry("completion", "command", "Print the completion of tarsy for a shell."),
    "config": Entry("config", "command", "Check the platform file, and describe what may stand in it."),
    "events": Entry("reads", "events", "Show what happened in an investigation, event by event."),
    "export": Entry("reads", "export", "Write a whole investigation as one file."),
    "get": Entry("reads", "get", "Show an investigation with its result."),
    "investigate": Entry("investigate", "command", "Investigate an alert."),
    "list": Entry("lists", "command", "List investigations, newest first."),
    "logs": Entry("logs", "command", "Print what the agents of an investigation say and do."),
    "migrate": Entry("migrate", "command", "Bring the database to the schema that this version needs."),
    "open": Entry("open", "command", "Open the pages in a browser: the list, or the investigation NAME."),
    "operator": Entry("operator", "command", "Run an operator process."),
    "retry": Entry("retry", "command", "Run an ended investigation again, as a new one."),
    "suspend": Entry("actions", "suspend", "Hold investigations before their next step."),
    "tools": Entry("tools", "command", "Show tools of MCP servers, and confirm those that have changed."),
    "unsuspend": Entry("actions", "unsuspend", "Let suspended investigations go on."),
    "version": Entry("version", "command", "Show the version of this program and of the kinds in the cluster."),
    "wait": Entry("follow", "wait", "Wait until an investigation has ended."),
    "watch": Entry("follow", "watch", "Watch an investigation stage by stage until it has ended."),
    "why": Entry("why", "command", "Say why an investigation ended as it did, is not grounded, or waits."),
}


class Lazy(click.Group):
    """A group whose commands are in the modules of `tarsy.cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import the command's module, and return the command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        gc.disable()  # an import creates almost no garbage; without the collector it takes a fifth less time
        try:
            command: click.Command = getattr(importlib.import_module(f"tarsy.cli.{entry.module}"), entry.attribute)
        finally:
            gc.freeze()  # the collector never scans the imported objects
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the message for a wrong name has the nearest ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = ", ".join(difflib.get_close_matches(args[0], COMMANDS, n=3))
            raise click.UsageError(f"{error.message} The nearest: {near}." if near else error.message, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; one that needs the operator's packages names the extra that has them."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from importlib import util

            if error.name is None or util.find_spec(OPERATORS_PACKAGE):
                raise
            message = (
                f"it needs the package {error.name}, which the extra `operator` has: pip install 'tarsy[operator]'"
            )
            raise click.UsageError(message) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in sorted(COMMANDS.items())])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tarsy")
def main() -> None:
    """TARSy investigates alerts on Kubernetes with chains of LLM agents."""


def kubectl_plugin() -> None:
    """Run as `kubectl tarsy`."""
    main(prog_name="kubectl tarsy")


def kubectl_completion() -> None:
    """Print what may follow `kubectl tarsy`, one a line, then a directive of cobra's, for kubectl."""
    from tarsy.cli import completion

    completion.print_for_kubectl(main, sys.argv[1:])

"""The entry points `tarsy` and `kubectl tarsy`. The module of a command is imported only when the command is run."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, NamedTuple

import click

OPERATORS_PACKAGE = "kopf"
"""A package that only the extra `operator` installs."""


class Entry(NamedTuple):
    """The module and attribute of a command, and its help in one line."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "audit": Entry("audit", "command", "Show who changed, exported or signed in to what, newest first."),
    "cancel": Entry("actions", "cancel", "Cancel investigations."),
    "chain": Entry("chain", "command", "Show chains, check chain files, and convert TARSy's former YAML."),
    "chat": Entry("chat", "command", "Ask a question about an investigation that has ended."),
    "check": Entry("checks", "command", "Check an installation, or what it needs."),
    "budgets": Entry("budgets", "command", "Show what is spent, reserved and left of the budgets."),
    "completion": Entry("completion", "command", "Print the completion of tarsy for a shell."),
    "config": Entry("config", "command", "Check the platform file, and print its JSON Schema."),
    "eval": Entry("eval", "command", "Measure chains and models on recorded scenarios."),
    "delete": Entry("deletions", "delete", "Delete an ended investigation; it can be restored until it is purged."),
    "events": Entry("reads", "events", "Show the timeline of an investigation, event by event."),
    "export": Entry("reads", "export", "Write a whole investigation as one file."),
    "feedback": Entry("feedback", "command", "Say whether an investigation was right."),
    "get": Entry("reads", "get", "Show an investigation with its result."),
    "hold": Entry("deletions", "hold", "Hold an investigation: nothing of it is deleted until the hold ends."),
    "investigate": Entry("investigate", "command", "Investigate an alert."),
    "list": Entry("lists", "command", "List investigations, newest first."),
    "logs": Entry("logs", "command", "Print the answers and tool calls of an investigation's agents."),
    "migrate": Entry("migrate", "command", "Migrate the database to the schema that this version needs."),
    "open": Entry("open", "command", "Open the dashboard in a browser: the list, or the investigation NAME."),
    "operator": Entry("operator", "command", "Run an operator process."),
    "purge": Entry("deletions", "purge", "Delete an ended investigation for good."),
    "restore": Entry("deletions", "restore", "Bring the transcript of a deleted investigation back."),
    "retry": Entry("retry", "command", "Run an ended investigation again, as a new one."),
    "split": Entry("split", "command", "Take an alert out of a group: it gets an investigation of its own."),
    "storage": Entry("storage", "command", "Show the size of the database, and what retention is about to delete."),
    "suspend": Entry("actions", "suspend", "Suspend investigations before their next step."),
    "tools": Entry("tools", "command", "Show tools of MCP servers, and accept changed tools."),
    "unhold": Entry("deletions", "unhold", "End the hold of an investigation."),
    "unsuspend": Entry("actions", "unsuspend", "Resume suspended investigations."),
    "version": Entry("version", "command", "Show the version of this program and of the kinds in the cluster."),
    "wait": Entry("follow", "wait", "Wait until an investigation has ended."),
    "watch": Entry("follow", "watch", "Watch an investigation stage by stage until it has ended."),
    "why": Entry("why", "command", "Explain why an investigation ended as it did, is not grounded, or waits."),
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
        """Find a command. The message for a wrong name suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = ", ".join(difflib.get_close_matches(args[0], COMMANDS, n=3))
            raise click.UsageError(f"{error.message} The nearest: {near}." if near else error.message, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. If it needs a package of the operator, the error names the extra to install."""
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
    """Print the completions of `kubectl tarsy` for kubectl: one per line, and a directive of cobra."""
    from tarsy.cli import completion

    completion.print_for_kubectl(main, sys.argv[1:])

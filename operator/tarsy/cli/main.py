"""`tarsy`: the entry point, which imports a command's module only when that command is run."""

from __future__ import annotations

import gc
import importlib

import click

COMMANDS = {
    "chain": "Check chains in files, and make chains of TARSy's former YAML.",
    "config": "Check the platform file, and describe what may stand in it.",
    "migrate": "Bring the database to the schema that this version needs.",
    "open": "Open the pages in a browser.",
    "operator": "Run an operator process.",
    "tools": "Confirm tools of MCP servers that have changed.",
}


class Lazy(click.Group):
    """A group whose commands are the modules of `tarsy.cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # of what an import makes hardly anything is garbage: it takes a fifth less time
        try:
            command: click.Command = importlib.import_module(f"tarsy.cli.{cmd_name}").command
        finally:
            gc.freeze()  # nor is it looked through afterwards
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=Lazy)
@click.version_option(package_name="tarsy")
def main() -> None:
    """TARSy investigates alerts on Kubernetes with chains of LLM agents."""

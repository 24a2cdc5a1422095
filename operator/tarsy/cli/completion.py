"""`tarsy completion`, and the completion of `kubectl tarsy`.

Source: kubectl's plugin completion (`kubectl_complete-NAME`), cobra's completion directives.
"""

from __future__ import annotations

import click
from click import shell_completion

from tarsy.cli.client import terminal

NO_FILES = ":4"
"""cobra's ShellCompDirectiveNoFileComp."""
FILES = ":0"
"""cobra's ShellCompDirectiveDefault: the shell completes names of files."""
_KUBECTL = "# kubectl tarsy is completed by kubectl_complete-tarsy, which is installed beside tarsy.\n"


@click.command(
    help="Print the completion of tarsy for a shell: `source <(tarsy completion bash)`.",
    epilog="Examples:\n\n\b\n  tarsy completion bash\n  tarsy completion fish > ~/.config/fish/completions/tarsy.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script."""
    kind = shell_completion.get_completion_class(shell)
    assert kind  # noqa: S101 - click has these three
    script = kind(context.find_root().command, {}, "tarsy", "_TARSY_COMPLETE")
    click.echo(_KUBECTL + (script.source_template % script.source_vars()))


def print_for_kubectl(main: click.Command, arguments: list[str]) -> None:
    """Print completions of `arguments`, of which the last is incomplete, and a directive."""
    *before, incomplete = arguments or [""]
    complete = shell_completion.ShellComplete(main, {}, "kubectl tarsy", "")
    directive = NO_FILES
    for item in complete.get_completions(before, incomplete):
        if item.type in ("file", "dir"):
            directive = FILES
        elif item.value:
            help_text = f"\t{terminal.clean_line(item.help)}" if item.help else ""
            click.echo(f"{terminal.clean_line(str(item.value))}{help_text}")
    click.echo(directive)

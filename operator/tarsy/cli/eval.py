"""The command `tarsy eval`: scenarios, run and judged. Subcommands import the modules that they need."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tarsy.evaluation import scenarios

DIRECTORY = click.Path(path_type=Path)
FILE = click.Path(path_type=Path)
NOTHING = "nothing is wrong."
config_option = click.option(
    "--config",
    type=FILE,
    envvar="TARSY_CONFIG",
    show_envvar=True,
    help="The platform file with providers, agents and masking; by default the built-in platform. Of its MCP servers "
    "only kubernetes-server is used, on the recorded cluster.",
)
command_option = click.option(
    "--mcp-command",
    metavar="PROGRAM",
    help="The program kubernetes-mcp-server, if the platform file's is not the one to use.",
)
tag_option = click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only scenarios with this tag.")


@click.group(help="Measure chains and models on recorded scenarios (docs/evaluation.md).")
def command() -> None:
    """Run a subcommand."""


def _scenarios(paths: tuple[Path, ...], tags: tuple[str, ...]) -> list[scenarios.Scenario]:
    from tarsy.evaluation import scenarios
    from tarsy.resources import files

    try:
        found = scenarios.find(paths, tags=tags)
    except files.FileError as error:
        raise click.ClickException(str(error)) from error
    if not found:
        raise click.ClickException(f"no scenario has all the tags {', '.join(tags)}")
    return found


@command.command(epilog="Examples:\n\n\b\n  tarsy eval check scenarios/")
@click.argument("paths", metavar="SCENARIO...", nargs=-1, required=True, type=DIRECTORY)
@tag_option
@config_option
@command_option
@click.option("--no-tools", is_flag=True, help="Call no tools: do not check what the evidence's calls show.")
def check(
    *, paths: tuple[Path, ...], tags: tuple[str, ...], config: Path | None, mcp_command: str | None, no_tools: bool
) -> None:
    """Check scenarios: whether their worlds show the evidence, and what they lack; exit with 1 if anything is wrong.

    A scenario whose alert alone gives the answer is refused. SCENARIO is a directory, or a directory of scenarios.
    """
    problems = [
        problem
        for scenario in _scenarios(paths, tags)
        for problem in asyncio.run(_check(scenario, config, mcp_command, calls_tools=not no_tools))
    ]
    if problems:
        raise click.ClickException("\n".join(problems))
    click.echo(NOTHING)


async def _check(
    scenario: scenarios.Scenario, config: Path | None, mcp_command: str | None, *, calls_tools: bool
) -> list[str]:
    from tarsy.config.load import loader
    from tarsy.evaluation import checks, world_platform, world_server, worlds
    from tarsy.process import agent_tools, errors
    from tarsy.resources import files

    try:
        world = worlds.load(scenario.world)
        problems = list(checks.static_problems(scenario, world))
        if calls_tools:
            with tempfile.TemporaryDirectory(prefix="tarsy-eval-") as folder:
                kubeconfig = Path(folder) / "kubeconfig"
                content = world_platform.for_world(_written(config), kubeconfig=kubeconfig, command=mcp_command)
                path = Path(folder) / "platform.yaml"
                path.write_text(files.to_yaml(content), encoding="utf-8")
                platform = loader.platform_file(path)
                async with (
                    world_server.serve(world, kubeconfig=kubeconfig),
                    agent_tools.calls_to(platform, "kubernetes-server") as call,
                ):
                    problems += await checks.tool_problems(scenario, world, call)
    except files.FileError as error:
        return [str(error)]
    except (loader.ConfigError, errors.StartError) as error:
        raise click.ClickException(str(error)) from error
    return [str(problem) for problem in problems]


def _written(config: Path | None) -> Any:
    from tarsy.config.load import loader

    return None if config is None else loader.as_written(config).written

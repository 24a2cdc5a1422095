"""The command `tarsy eval`: scenarios, run and judged. Subcommands import the modules that they need."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tarsy.cli import eval_record

if TYPE_CHECKING:
    from tarsy.config.model import platforms
    from tarsy.evaluation import runs, scenarios
    from tarsy.resources import chains

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


command.add_command(eval_record.command)


def _scenarios(paths: tuple[Path, ...], tags: tuple[str, ...]) -> list[scenarios.Scenario]:
    from tarsy.evaluation import scenarios
    from tarsy.resources import files

    try:
        chosen = scenarios.find(paths, tags=tags)
    except files.FileError as error:
        raise click.ClickException(str(error)) from error
    if not chosen:
        raise click.ClickException(f"no scenario has all the tags {', '.join(tags)}")
    return chosen


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
    import asyncio

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


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


@command.command(
    epilog="Examples:\n\n\b\n"
    "  tarsy eval run scenarios/ --chain chain.yaml --provider google-default --provider openai-default --times 5 "
    "--output results"
)
@click.argument("paths", metavar="SCENARIO...", nargs=-1, required=True, type=DIRECTORY)
@tag_option
@click.option("--chain", required=True, type=FILE, help="The file of the AgentChain to measure.")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="Run the chain with this provider for all its agents; several are compared. By default those of the chain.",
)
@click.option("--times", default=1, show_default=True, type=click.IntRange(1, 100), help="Runs of each scenario.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 50), help="Investigations at once.")
@click.option(
    "--output", required=True, type=DIRECTORY, help="The directory of results. Runs with a result are skipped."
)
@click.option("--max-tokens", type=click.IntRange(1), help="Begin no further run after results of so many tokens.")
@click.option(
    "--max-cost",
    type=click.FloatRange(0, min_open=True),
    metavar="AMOUNT",
    help="Begin no further run after results of this cost, by the prices of the platform file.",
)
@click.option(
    "--judge",
    metavar="PROVIDER",
    help="Ask this provider for a second opinion on each analysis, also on earlier ones; it changes no verdict.",
)
@click.option(
    "--database-url",
    envvar="DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help="A Postgres server whose user may create databases; each scenario gets one of its own, which is dropped. By "
    "default an embedded one is started, from the extra eval (pip install 'tarsy[eval]').",
)
@config_option
@command_option
def run(
    *,
    paths: tuple[Path, ...],
    tags: tuple[str, ...],
    chain: Path,
    providers: tuple[str, ...],
    times: int,
    jobs: int,
    output: Path,
    max_tokens: int | None,
    max_cost: float | None,
    judge: str | None,
    database_url: str | None,
    config: Path | None,
    mcp_command: str | None,
) -> None:
    """Investigate the alerts of scenarios with a chain, in their recorded worlds, and judge each analysis.

    Real workers run the chain; no cluster is needed. After an interruption the same command continues. The exit code is
    1 if a run could not be made, and 3 if the budget was spent before all were.
    """
    import asyncio

    from tarsy import errors
    from tarsy.config.load import loader
    from tarsy.evaluation import embedded_postgres, runs, subjects
    from tarsy.process import agent_tools
    from tarsy.resources import files

    chosen = _scenarios(paths, tags)
    try:
        loaded = loader.platform_file(config)
        for option, name in (*(("--provider", name) for name in providers), *([("--judge", judge)] if judge else [])):
            if name not in loaded.llm_providers:
                available = ", ".join(sorted(loaded.llm_providers))
                raise click.UsageError(f"{option}: the platform file has no {name}. Available: {available}")
        unusable = agent_tools.unusable_providers(loaded)
        if judge in unusable:
            raise click.UsageError(f"--judge: {judge} cannot be used: {unusable[judge]}")
        measured, missing = subjects.for_world(subjects.load(chain, platform=loaded))
        if missing:
            click.echo(f"The chain runs without {', '.join(missing)}: recorded worlds do not have them.", err=True)
        plan = runs.Plan(
            scenarios=chosen,
            chain=measured,
            providers=providers or (None,),
            repeats=times,
            jobs=jobs,
            output=output,
            written=_written(config),
            mcp_command=mcp_command,
            database_url=database_url or None,
            unusable=unusable,
            max_tokens=max_tokens,
            max_cost=max_cost,
        )
        if max_cost is not None:
            _check_prices(loaded, measured, providers, judge)
        finished = asyncio.run(_run(plan, loaded, judge))
    except (files.FileError, loader.ConfigError, errors.TemporaryError, embedded_postgres.PostgresError) as error:
        raise click.ClickException(str(error)) from error
    except ExceptionGroup as group:  # of the scenarios that were run side by side
        expected, others = group.split((files.FileError, loader.ConfigError, errors.TemporaryError))
        if others or expected is None:
            raise
        raise click.ClickException("\n".join(map(str, _leaves(expected)))) from group
    if finished.failures:
        raise click.ClickException(f"{len(finished.failures)} runs could not be made; the same command tries again")
    if finished.left_out or finished.unjudged:
        judging = f", and {finished.unjudged} analyses were not judged" if judge else ""
        message = f"The budget is spent: {finished.left_out} runs were left out{judging}; a larger budget goes on."
        click.echo(message, err=True)
        raise click.exceptions.Exit(3)


async def _run(plan: runs.Plan, platform: platforms.Platform, judge: str | None) -> runs.Finished:
    import dataclasses

    from tarsy.evaluation import judges, runs
    from tarsy.process import agent_tools

    if judge is None:
        return await runs.run(plan, progress=click.echo)
    async with agent_tools.questions_to(platform, judge) as ask:
        plan = dataclasses.replace(plan, judge=judges.Judge(provider=judge, ask=ask))
        return await runs.run(plan, progress=click.echo)


def _check_prices(
    platform: platforms.Platform, chain: chains.AgentChain, providers: tuple[str, ...], judge: str | None
) -> None:
    """Raise click.UsageError if a provider that is asked has no price: its runs would cost nothing."""
    from tarsy.evaluation import subjects

    asked = {*(providers or subjects.providers(chain, platform)), *([judge] if judge else [])}
    if free := sorted(name for name in asked if platform.llm_providers[name].price is None):
        remedy = "set llm_providers.NAME.price in the platform file, or use --max-tokens"
        raise click.UsageError(f"--max-cost: {', '.join(free)} has no price: {remedy}")


@command.command(epilog="Examples:\n\n\b\n  tarsy eval report results --format html --to report.html --fail-under 0.8")
@click.argument("folder", metavar="RESULTS", type=DIRECTORY)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "json", "junit", "html"]),
    default="table",
    show_default=True,
    help="The form of the report.",
)
@click.option("--to", type=FILE, help="Write the report into this file.")
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Exit with 1 if a provider's share of right scenarios is less than this, such as 0.8.",
)
def report(*, folder: Path, form: str, to: Path | None, fail_under: float | None) -> None:
    """Compare providers on the results of tarsy eval run.

    Intervals are by scenario, not by run. SEEN is the share of the evidence that a model got, CITED the share that an
    analysis uses, ALWAYS the share of scenarios that are right in every run.
    """
    from tarsy.cli.client import terminal
    from tarsy.evaluation import pages, reports, results
    from tarsy.resources import files

    try:
        outcomes = results.read(folder)
        missing = reports.not_run(folder, outcomes)
    except files.FileError as error:
        raise click.ClickException(str(error)) from error
    listed = reports.rows(outcomes)
    if form == "table":
        header, table = reports.scenario_table(listed)
        lines = [
            *terminal.table([reports.cells(row) for row in listed], header=reports.HEADER),
            "",
            *terminal.table(table, header=header),
            *reports.warnings(listed, missing),
        ]
        text = "\n".join(lines) + "\n"
    elif form == "html":
        text = pages.page(outcomes, missing, folder=folder, target=to or folder / "report.html")
    else:
        text = {"markdown": reports.as_markdown, "json": reports.as_json, "junit": reports.as_junit}[form](
            outcomes, missing
        )
    if to is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        to.write_text(text, encoding="utf-8")
    if fail_under is None:
        return
    below = [f"{row.provider} {row.right.value:.0%}" for row in listed if row.right.value < fail_under]
    without = {provider or "the chain's own" for _, provider, _ in missing} - {row.provider for row in listed}
    if below := [*below, *(f"{provider} was not run" for provider in sorted(without))]:
        names = ", ".join(below)
        raise click.ClickException(f"right in less than {fail_under:.0%} of the scenarios: {names}")


@command.command(epilog="Examples:\n\n\b\n  tarsy eval diff before after")
@click.argument("before", metavar="RESULTS", type=DIRECTORY)
@click.argument("after", metavar="RESULTS", type=DIRECTORY)
def diff(*, before: Path, after: Path) -> None:
    """Compare two directories of results, scenario by scenario: better, worse, or noise; also by provider."""
    from tarsy.cli.client import terminal
    from tarsy.evaluation import reports, results
    from tarsy.resources import files

    try:
        former, latter = (results.read(folder) for folder in (before, after))
    except files.FileError as error:
        raise click.ClickException(str(error)) from error
    first, second = reports.shares(former), reports.shares(latter)
    names = sorted(first.keys() | second.keys())
    table = [
        (name, *("-" if name not in own else f"{own[name]:.0%}" for own in (first, second)))
        for name in names
        if first.get(name) != second.get(name)
    ]
    if table:
        click.echo("\n".join(terminal.table(table, header=("SCENARIO", "BEFORE", "AFTER"))))
    for name, change in reports.comparisons(former, latter):
        interval = f"{change.low:+.0%} to {change.high:+.0%}"
        prefix = f"{name}: " if name else ""
        difference = f"{change.value:+.0%} ({interval}, 95%) over {change.scenarios} scenarios of both"
        click.echo(f"{prefix}{change.verdict}: {difference}")

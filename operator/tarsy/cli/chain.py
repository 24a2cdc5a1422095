"""The command `tarsy chain`: chains in files. Subcommands import the modules that they need, to start quickly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tarsy.cli.client import failures, formats, kubectl, sessions, terminal, times

if TYPE_CHECKING:
    from tarsy.resources import files

FILES = click.Path(path_type=Path)


@click.group(help="Show chains, check chain files, and convert TARSy's former YAML.")
def command() -> None:
    """Do what a subcommand says."""


@command.command("list", help="List chains.", epilog="Examples:\n\n\b\n  tarsy chain list")
@click.option("-A", "--all-namespaces", is_flag=True, help="List the chains of all namespaces.")
@click.option("-l", "--selector", metavar="LABELS", help="Only chains with these labels.")
@formats.option("name", "json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def list_chains(
    *, session: sessions.Session, all_namespaces: bool, selector: str | None, form: str | None, no_headers: bool
) -> None:
    """List chains."""
    path = kubectl.path(None if all_namespaces else session.namespace, kubectl.CHAINS)
    chains = session.cluster.get(path, labelSelector=selector)["items"]
    if form == "name":
        for chain in chains:
            click.echo(f"agentchain.tarsy.dev/{chain['metadata']['name']}")
    elif form:
        items = formats.Items(form)
        items.print(chains)
        items.end()
    else:
        header = ("NAMESPACE", "NAME", "ALERT TYPES", "STAGES", "READY", "REASON", "AGE")
        rows = [_row(chain) for chain in chains]
        first = 0 if all_namespaces else 1
        for line in terminal.table([row[first:] for row in rows], header=None if no_headers else header[first:]):
            click.echo(line)
        if not rows:
            session.note("No chains found.")


def _row(chain: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a chain."""
    metadata, spec = chain["metadata"], chain["spec"]
    conditions = {each["type"]: each for each in (chain.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    stages = ",".join(stage["name"] for stage in spec["stages"])
    return (
        metadata["namespace"],
        metadata["name"],
        ",".join(spec["alertTypes"]),
        stages,
        ready.get("status") or "Unknown",
        ready.get("reason") or "",
        times.duration_text(times.since(metadata["creationTimestamp"])),
    )


@command.command("get", help="Show a chain.", epilog="Examples:\n\n\b\n  tarsy chain get kubernetes-agent-chain")
@click.argument(
    "name",
    metavar="NAME",
    shell_complete=lambda ctx, _, incomplete: sessions.complete(ctx, incomplete, kubectl.CHAINS),
)
@formats.option("name", "json", "jsonl", "yaml")
@sessions.connected
def get_chain(*, session: sessions.Session, name: str, form: str | None) -> None:
    """Show a chain."""
    try:
        chain = session.cluster.get(kubectl.path(session.namespace, kubectl.CHAINS, name))
    except failures.NotFound as error:
        message = sessions.unknown(
            f"chain {name} in namespace {session.namespace}", name, session.names(kubectl.CHAINS)
        )
        raise failures.NotFound(message) from error
    if form == "name":
        click.echo(f"agentchain.tarsy.dev/{name}")
    elif form:
        formats.print_document(chain, form)
    else:
        for line in _description(chain):
            click.echo(line)


def _description(chain: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a chain."""
    spec = chain["spec"]
    yield f"Name:         {chain['metadata']['name']}"
    yield f"Namespace:    {chain['metadata']['namespace']}"
    yield f"Alert types:  {terminal.clean_line(', '.join(spec['alertTypes']))}"
    if spec.get("description"):
        yield f"Description:  {terminal.clean_line(spec['description'])}"
    rows = []
    for stage in spec["stages"]:
        agents = [each["name"] for each in stage.get("agents") or ()] or [stage.get("agent") or ""]
        replicas = f" x{stage['replicas']}" if stage.get("replicas", 1) > 1 else ""
        rows.append((stage["name"], ", ".join(agents) + replicas, stage.get("successPolicy") or ""))
    yield ""
    yield from terminal.table(rows, header=("STAGE", "AGENTS", "SUCCESS POLICY"))
    conditions = (chain.get("status") or {}).get("conditions") or ()
    yield ""
    yield from terminal.table(
        [(each["type"], each["status"], each["reason"], each.get("message") or "") for each in conditions],
        header=("CONDITION", "STATUS", "REASON", "MESSAGE"),
    )


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


@command.command(epilog="Examples:\n\n\b\n  tarsy chain lint chain.yaml")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=FILES)
@click.option(
    "--config",
    type=FILES,
    envvar="TARSY_CONFIG",
    show_envvar=True,
    help="The platform file that they refer to; by default the built-in platform.",
)
def lint(*, paths: tuple[Path, ...], config: Path | None) -> None:
    """Check the AgentChains in files. Print the file, the line, the problem and the valid names; exit with 1 if any.

    The cluster is not contacted, so a conflict with a chain in it is not detected. The variables of the platform file
    need not be set.
    """
    from tarsy.config.check import lint as chain_lint
    from tarsy.config.load import loader

    try:
        platform = loader.platform_file(config, environment=None)
    except loader.ConfigError as error:
        raise click.ClickException(f"the platform file is wrong:\n{error}") from error
    documents, problems = _read(paths)
    problems += chain_lint.problems(documents, platform=platform)
    if problems:
        raise click.ClickException("\n".join(map(str, sorted(problems))))
    click.echo(f"{_counted(documents, 'document')} in {_counted(set(paths), 'file')}: nothing is wrong.")


def _counted(members: Sized, noun: str) -> str:
    return f"{len(members)} {noun}{'' if len(members) == 1 else 's'}"


@command.command(epilog="Examples:\n\n\b\n  tarsy chain convert tarsy.yaml -o converted")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=FILES)
@click.option(
    "-o",
    "--output",
    required=True,
    type=FILES,
    help="The directory for the new files; existing files are not replaced.",
)
def convert(*, paths: tuple[Path, ...], output: Path) -> None:
    """Convert TARSy's former agents.yaml, tarsy.yaml and llm-providers.yaml into a platform file and chains.

    Settings without a counterpart are listed. If there is a problem, nothing is written, and the exit code is 1.
    """
    from tarsy.cli.former import convert as convert_former
    from tarsy.resources import files

    documents, problems = _read(paths)
    if problems:
        raise click.ClickException("\n".join(map(str, problems)))
    try:
        converted = convert_former.convert(documents)
    except files.FileError as error:
        raise click.ClickException(str(error)) from error
    for note in converted.notes:
        click.echo(note, err=True)
    existing = [str(output / name) for name in converted.texts if (output / name).exists()]
    if existing:
        raise click.ClickException(f"existing files are not replaced: {', '.join(existing)}")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in converted.texts.items():
            (output / name).write_text(text, encoding="utf-8")
            click.echo(output / name)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error

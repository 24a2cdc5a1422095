"""`tarsy investigate`: an alert from a file, standard input or options."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from tarsy.cli.client import failures, formats, kubectl, sessions, terminal, times

ALERT_KEYS = ("alert_type", "data")


@click.command(
    help="Investigate an alert from FILE, or from --alert and --data. FILE is a manifest of an AlertInvestigation, or "
    "JSON with alert_type and data; - is standard input.",
    epilog='Examples:\n\n\b\n  tarsy investigate --alert KubePodCrashLooping --data "web-0 restarts" --watch\n'
    "  tarsy investigate alert.yaml --dry-run",
)
@click.argument("file", required=False, metavar="[FILE]")
@click.option("-f", "--filename", metavar="FILE", help="The same as FILE.")
@click.option("--alert", metavar="TYPE", help="The alert type.")
@click.option("--data", metavar="TEXT", help="The alert as text; @FILE reads it from a file, - from standard input.")
@click.option("--severity", metavar="WORD", help="With --alert: the severity.")
@click.option("--runbook", metavar="URL", help="With --alert: the URL of the runbook.")
@click.option("--watch", is_flag=True, help="Watch the investigation until it has ended; the exit code says how.")
@click.option(
    "--timeout", type=times.Duration(), metavar="DURATION", help="With --watch: stop after DURATION, and exit with 6."
)
@click.option(
    "--dry-run", is_flag=True, help="Create nothing; print the chain that would take the alert, and the reason."
)
@formats.option("name", "json", "yaml")
@sessions.connected
def command(
    *,
    session: sessions.Session,
    file: str | None,
    filename: str | None,
    watch: bool,
    timeout: float | None,
    dry_run: bool,
    form: str | None,
    **options: str | None,
) -> None:
    """Investigate an alert."""
    source = file or filename
    if (source is None) == (options["alert"] is None) or (file and filename):
        raise click.UsageError("give a FILE, - for standard input, or --alert TYPE with --data TEXT")
    if watch and form and not dry_run:
        raise click.UsageError("--watch cannot be used with -o")
    if source:
        if wrong := [f"--{name}" for name, value in options.items() if value is not None]:
            raise click.UsageError(f"{', '.join(wrong)} cannot be used with a file")
        document = _read(source)
    else:
        if not options["data"]:
            raise click.UsageError("--alert needs --data TEXT")
        document = {"alert_type": options["alert"], "data": _text(options["data"])}
        document |= {name: value for name in ("severity", "runbook") if (value := options[name])}
    is_manifest = "kind" in document
    if dry_run:
        _explain(session, document, is_manifest=is_manifest, form=form)
        return
    created = _create(session, document, is_manifest=is_manifest)
    if form in ("json", "yaml"):
        formats.print_document(created, form)
    name, namespace, message = _identity(created)
    if form in (None, "name"):
        click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(name)}{'' if form else ' created'}")
    if message:
        session.note(message)
    if namespace != session.namespace:
        session.note(f"It is in namespace {namespace}. To watch it: tarsy watch {name} -n {namespace}")
    if watch:
        from tarsy.cli import follow

        session.namespace = namespace
        raise click.exceptions.Exit(follow.show(session, name, None, timeout=timeout, form=None))


def _identity(created: dict[str, Any]) -> tuple[str, str, str]:
    """Return the name and namespace of the investigation, and the API's message if no chain takes the alert."""
    if "metadata" in created:
        metadata = created["metadata"]
        return metadata["name"], metadata["namespace"], ""
    remark = created["message"] if "no chain takes" in created["message"] else ""
    return created["name"], created["namespace"], remark


def _text(data: str) -> str:
    """Return the text of --data. Raises a Failure if its file cannot be read."""
    if data == "-":
        return sys.stdin.read()
    if not data.startswith("@"):
        return data
    return _file(data[1:])


def _file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise failures.Misuse(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _read(source: str) -> dict[str, Any]:
    """Return the manifest or the alert in a file. Raises a Failure if it is neither."""
    text = sys.stdin.read() if source == "-" else _file(source)
    try:
        document = json.loads(text)
    except ValueError:
        import yaml

        try:
            documents = [each for each in yaml.safe_load_all(text) if each is not None]
        except yaml.YAMLError as error:
            raise failures.Misuse(f"{source} is neither JSON nor YAML: {error}") from error
        if len(documents) != 1:
            raise failures.Misuse(f"{source} has {len(documents)} documents: give one") from None
        document = documents[0]
    if not isinstance(document, dict) or not ("kind" in document or all(key in document for key in ALERT_KEYS)):
        raise failures.Misuse(f"{source} is neither an AlertInvestigation nor an alert with alert_type and data")
    if document.get("kind", "AlertInvestigation") != "AlertInvestigation":
        raise failures.Misuse(f"{source} is of kind {document['kind']}, not AlertInvestigation")
    return document


def _create(session: sessions.Session, document: dict[str, Any], *, is_manifest: bool) -> dict[str, Any]:
    """Create the object of a manifest, in the session's namespace unless the manifest has one; or post an alert."""
    created: dict[str, Any]
    if not is_manifest:  # without -n, the API chooses the namespace
        created = session.api.ask("POST", "/api/v1/alerts", document, namespace=session.namespace_option)
        return created
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise failures.Misuse("metadata: give a name or a generateName")
    namespace = str(metadata.get("namespace") or session.namespace)
    arguments = ("create", "-f", "-", "-n", namespace, "--validate=strict", "-o", "json")
    created = json.loads(session.cluster.run(*arguments, stdin=json.dumps(document)))
    return created


def _explain(session: sessions.Session, document: dict[str, Any], *, is_manifest: bool, form: str | None) -> None:
    """Print the chain that would take an alert. Raises a Failure with the reason if none would."""
    spec = document.get("spec") or {} if is_manifest else {}
    alert_type = str(spec.get("alertType", "")) if is_manifest else str(document["alert_type"])
    if name := (spec.get("chainRef") or {}).get("name"):
        namespace = (document.get("metadata") or {}).get("namespace") or session.namespace
        chain = session.cluster.get(kubectl.path(namespace, kubectl.CHAINS, str(name)))
        match = {"alert_type": alert_type, "chain_name": name, "conditions": chain.get("status", {}).get("conditions")}
        if form in ("json", "yaml"):
            formats.print_document(match, form)
        else:
            click.echo(f"chain {terminal.clean_line(str(name))} takes it, because spec.chainRef names it")
        return
    namespace = (document.get("metadata") or {}).get("namespace") or session.namespace if is_manifest else None
    match = session.api.get(
        "/api/v1/chain-match", alert_type=alert_type, namespace=namespace or session.namespace_option
    )
    if form in ("json", "yaml"):
        formats.print_document(match, form)
    elif match["ready"] and form == "name":
        click.echo(f"agentchain.tarsy.dev/{terminal.clean_line(match['chain_name'])}")
    elif match["ready"]:
        investigated_as = match["investigated_as"]
        because = (
            f"because it has alert type {alert_type}"
            if investigated_as == alert_type
            else f"as {investigated_as}, the default alert type: no chain has alert type {alert_type}"
        )
        click.echo(terminal.clean_line(f"chain {match['chain_name']} takes it, {because}"))
        for server in match["selectable_servers"]:
            if server["is_own"]:
                tools = (
                    "its tools are not known yet" if server["tool_names"] is None else ", ".join(server["tool_names"])
                )
                click.echo(terminal.clean_line(f"  {server['name']}: {tools}"))
    if not match["ready"]:
        raise failures.Failure(f"{match['chain_name'] or 'no chain'}: {match['reason']}: {match['message']}")

"""`tarsy eval record`: begins a scenario with the world of a cluster, of now or of a past investigation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tarsy.cli import feedback
from tarsy.cli.client import failures, remote, sessions, times

if TYPE_CHECKING:
    from tarsy.evaluation import past_results, recording

_PAGE = 100


@click.command(
    name="record",
    epilog="Examples:\n\n\b\n"
    "  tarsy eval record scenarios/case-1 --from web-crash\n"
    "  tarsy eval record scenarios/judged --from-feedback\n"
    "  tarsy eval record scenarios/case-2 -n shop --with-namespace kube-system",
)
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--from", "source", metavar="INVESTIGATION", help="Begin with an ended investigation: its name, or @latest."
)
@click.option(
    "--from-feedback",
    is_flag=True,
    help="Begin a scenario NAME-DIGITS of each investigation of the namespace that has feedback, unless it exists.",
)
@click.option(
    "--with-namespace",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Record this namespace, too. By default that of -n; of an investigation those of its alert and its calls.",
)
@click.option("--again", is_flag=True, help="Record the world of NAME again; its scenario.yaml is kept.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="TARSY_CONFIG",
    show_envvar=True,
    help="The platform file, whose masking of kubernetes-server is used.",
)
@sessions.connected
def command(
    *,
    session: sessions.Session,
    folder: Path,
    source: str | None,
    from_feedback: bool,
    namespaces: tuple[str, ...],
    again: bool,
    config: Path | None,
) -> None:
    """Begin a scenario: record the cluster's objects, events and logs, and write what is known of the rest.

    NAME is the scenario's directory; no object of the cluster may have its last part as its name. Secrets are masked:
    two that differ still differ. What has to be filled in is printed, and by tarsy eval check. kubectl reads the
    cluster; kinds that you may not list are left out.
    """
    if source and from_feedback:
        raise click.UsageError("give --from or --from-feedback")
    try:
        mask = _mask(config)
        if not from_feedback:
            view = session.api.get(remote.below(session.find(source, with_object=False).uid)) if source else None
            _record(session, folder, view, namespaces=namespaces, mask=mask, again=again)
            return
        for view in _judged(session):
            target = folder.with_name(f"{folder.name}-{view['id'][:8]}")
            if target.exists() and not again:
                click.echo(f"{target}: there already")
            else:
                _record(session, target, view, namespaces=namespaces, mask=mask, again=again)
    except OSError as error:
        raise failures.Failure(f"{error.filename}: {error.strerror}") from error


def _mask(config: Path | None) -> recording.Mask:
    """Return the mask of kubernetes-server's results, with fingerprints of this recording."""
    import secrets

    from tarsy.config.load import loader
    from tarsy.config.model import platforms
    from tarsy.evaluation import scenarios
    from tarsy.masking import known_secrets

    try:
        server = loader.platform_file(config).mcp_servers.get(scenarios.SERVER)
    except loader.ConfigError as error:
        raise click.ClickException(str(error)) from error
    settings = server.data_masking if server and server.data_masking.enabled else platforms.DataMasking()
    masker = settings.model_copy(update={"fingerprints": True}).masker(known_secrets.KnownSecrets())
    key = secrets.token_hex(16)
    return lambda text: masker.text(text, investigation=key)


def _judged(session: sessions.Session) -> Iterator[dict[str, Any]]:
    """Yield the investigations of the namespace with feedback."""
    identities: dict[str, None] = {}
    for verdict in feedback.VERDICTS:
        cursor, more = None, True
        while more:
            page = session.api.get(
                remote.INVESTIGATIONS, namespace=session.namespace, feedback=verdict, cursor=cursor, limit=_PAGE
            )
            identities |= {row["id"]: None for row in page["items"]}
            cursor = page["next"]
            more = bool(cursor)
    if not identities:
        raise failures.NotFound(
            f"No investigation in namespace {session.namespace} has feedback; give some with tarsy feedback."
        )
    for identity in identities:
        yield session.api.get(remote.below(identity))


def _record(
    session: sessions.Session,
    folder: Path,
    view: dict[str, Any] | None,
    *,
    namespaces: tuple[str, ...],
    mask: recording.Mask,
    again: bool,
) -> None:
    """Record the cluster, and the results of an investigation if there is one; write and check the scenario."""
    from tarsy.cli.client import api_server
    from tarsy.evaluation import checks, drafts, past_results, recording, scenarios, worlds
    from tarsy.resources import files

    description = folder / scenarios.FILE
    if (folder / scenarios.WORLD).exists() and not again:
        raise failures.Misuse(f"{folder} has a world: give another NAME, or --again to record it again")
    now = datetime.now(UTC).replace(microsecond=0)
    calls: list[past_results.PastCall] = []
    alert = drafts.blank_alert(session.namespace)
    wanted = {*namespaces}
    if view is None:
        wanted.add(session.namespace)
    else:
        if view["state"] != "ended":
            raise failures.Misuse(f"investigation {view['name']} has not ended: wait with tarsy wait {view['name']}")
        now = times.parse(view["ended_at"]).replace(microsecond=0)
        calls = list(_calls(session, view["id"]))
        alert = drafts.alert_of(
            view["alert_data"] or "",
            alert_type=view["alert_type"],
            labels=view["labels"],
            starts_at=times.parse(view["admitted_at"]),
            ended_at=now,
        )
        wanted |= past_results.namespaces(calls) | {alert["labels"].get("namespace", "")} - {""}
    try:
        with api_server.reader(session.cluster) as read:
            world = recording.record(read, now=now, namespaces=wanted, mask=mask)
    except recording.RecordingError as error:
        raise failures.Failure(str(error)) from error
    if view is not None:
        world = past_results.applied(world, calls, ended_at=now, mask=mask)
    folder.mkdir(parents=True, exist_ok=True)
    worlds.write(folder / scenarios.WORLD, world)
    if not description.exists():
        content = drafts.content(
            world,
            title=f"{alert['labels']['alertname']} in {alert['labels'].get('namespace') or 'the cluster'}"[:200]
            if view
            else f"{scenarios.BLANK}: one line for reports",
            alert=alert,
            calls=calls,
            analysis=view["final_analysis"] if view else "",
            right=_right(view) if view else "",
        )
        description.write_text(_HEAD + files.to_yaml(content), encoding="utf-8")
    left_out = sum(not kind.is_recorded for kind in world.index.kinds)
    click.echo(
        f"{folder}: {len(world.objects())} objects and {len(world.logs)} logs of {', '.join(sorted(wanted))}; "
        f"{left_out} kinds are left out"
    )
    try:
        problems = list(checks.static_problems(scenarios.load(folder), worlds.load(folder / scenarios.WORLD)))
    except files.FileError as error:
        problems = list(error.problems)
    for problem in problems:
        click.echo(str(problem))
    click.echo(f"{'Then' if problems else 'Next'}: tarsy eval check {folder}")


_HEAD = """\
# A model reads `alert` alone. Fill in what is marked, see docs/evaluation.md#a-scenario; then: tarsy eval check
"""


def _calls(session: sessions.Session, identity: str) -> Iterator[past_results.PastCall]:
    """Yield the calls of an investigation that have a result."""
    from tarsy.evaluation import past_results

    for page, _ in session.api.pages(remote.below(identity, "/trace"), "calls"):
        for row in page:
            if row["type"] != "tool" or row["outcome"] != "ok":
                continue
            call = session.api.get(remote.below(identity, f"/trace/tool/{row['n']}"))
            arguments = call["arguments_json"]
            yield past_results.PastCall(
                tool=call["tool_name"],
                arguments=arguments if isinstance(arguments, dict) else {},
                result=call["whole"] or call["result"] or "",
                references=(f"[tool {call['tool_call_id']}]", f"{call['execution']}/{call['tool_call_id']}"),
            )


def _right(view: dict[str, Any]) -> str:
    """Return the text that the latest feedback says is right about the cause; "" if none is."""
    for given in view["feedback_by_person"]:
        if given["cause"]:
            return str(given["cause"])
        if given["verdict"] == "correct":
            return str(view["final_analysis"])
    return ""

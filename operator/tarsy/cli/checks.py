"""`tarsy check`: checks of an installation, each with a remedy if it fails."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from tarsy.cli.client import failures, formats, kubectl, sessions, terminal, times

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
VERBS = ("get", "list", "watch", "create", "patch")
NEEDED = ("get", "list")
WEBHOOK = "/api/v1/webhooks/alertmanager"
AGAIN_SECONDS = 2.0


class Check(NamedTuple):
    """The result of one check."""

    name: str
    passed: bool
    message: str
    remedy: str = ""


@click.command(
    help="Check the CRDs, your rights, the API, database, workers, providers, MCP servers, chains and the webhook. "
    "Each failed check is printed with a remedy. The exit code is 1 if any check fails.",
    epilog="Examples:\n\n\b\n  tarsy check\n  tarsy check --wait=5m",
)
@click.option(
    "--pre",
    is_flag=True,
    help="Check what an installation needs: the cluster, rights to install, database, platform file, MCP servers.",
)
@click.option(
    "--config", metavar="FILE", envvar="TARSY_CONFIG", show_envvar=True, help="With --pre: the platform file."
)
@click.option(
    "--wait",
    type=times.Duration(),
    is_flag=False,
    flag_value=math.inf,
    metavar="[=DURATION]",
    help="Repeat the checks until none fails; with a duration such as 5m, for that long at most, then exit with 6.",
)
@formats.option("json", "jsonl", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def command(
    *,
    session: sessions.Session,
    pre: bool,
    config: str | None,
    wait: float | None,
    form: str | None,
    no_headers: bool,
) -> None:
    """Check an installation."""
    deadline = None if wait is None else time.monotonic() + wait
    while True:
        checks = list(_before(session, config) if pre else _installed(session))
        failed = [check for check in checks if not check.passed]
        if not failed or deadline is None or time.monotonic() >= deadline:
            break
        for check in failed:
            session.note(f"Waiting: {check.name}: {check.message}", once=f"{check.name} {check.message}")
        time.sleep(min(AGAIN_SECONDS, max(0.0, deadline - time.monotonic())))
    _print(checks, form, no_headers=no_headers)
    if failed:
        raise click.exceptions.Exit(1 if deadline is None else failures.Late.exit_code)


def _print(checks: list[Check], form: str | None, *, no_headers: bool) -> None:
    if form:
        items = formats.Items(form)
        items.print([check._asdict() for check in checks])
        items.end()
        return
    rows = [(check.name, "OK" if check.passed else "Failed", check.message) for check in checks]
    header = None if no_headers else ("CHECK", "STATUS", "MESSAGE")
    lines = terminal.table(rows, header=header)
    if header:
        click.echo(lines.pop(0))
    for line, check in zip(lines, checks, strict=True):
        click.echo(line)
        if check.remedy and not check.passed:
            click.echo(f"  To do: {terminal.clean_line(check.remedy)}")


def _installed(session: sessions.Session) -> Iterator[Check]:
    """Yield the checks of an installation."""
    yield from _cluster(session)
    try:
        ready = _ready(session)
    except failures.Failure as error:
        remedy = "name its address with --api, or the namespace of its Service with --service-namespace"
        if isinstance(error, failures.Refused):
            remedy = "use a token that the cluster knows: --token-file, or TARSY_TOKEN"
        yield Check("API", passed=False, message=error.message, remedy=remedy)
        return
    yield ready
    yield from _health(session)
    yield from _system(session)
    yield _webhook(session)


def _cluster(session: sessions.Session) -> Iterator[Check]:
    """Yield the checks of the cluster: the API server, TARSy's kinds, the caller's rights."""
    try:
        version = session.cluster.get("/version")["gitVersion"]
    except failures.Failure as error:
        yield Check(
            "cluster", passed=False, message=error.message, remedy="check the kubeconfig with `kubectl version`"
        )
        return
    yield Check("cluster", passed=True, message=f"Kubernetes {version}")
    try:
        kinds = {each["name"] for each in session.cluster.get(kubectl.GROUP)["resources"]}
        missing = [kind for kind in (kubectl.INVESTIGATIONS, kubectl.CHAINS) if kind not in kinds]
        message = f"{', '.join(missing)} missing" if missing else "both kinds are installed"
    except failures.Failure as error:
        missing, message = ["all"], error.message
    yield Check("CRDs", passed=not missing, message=message, remedy="install the chart, or `kubectl apply -f crds/`")
    if not missing:
        yield _rights(session)


def _rights(session: sessions.Session) -> Check:
    """Return the check of the caller's own rights; the operator's are part of its readiness."""
    refused = [verb for verb in VERBS if not _is_allowed(session, verb, kubectl.INVESTIGATIONS, "tarsy.dev")]
    needed = [verb for verb in NEEDED if verb in refused]
    allowed = [verb for verb in VERBS if verb not in refused]
    message = f"you may {', '.join(allowed) or 'not access'} alertinvestigations in namespace {session.namespace}"
    if allowed and refused:
        message += f", but not {', '.join(refused)} them"
    return Check(
        "rights",
        passed=not needed,
        message=message,
        remedy=f"ask for a Role with {', '.join(needed)} on alertinvestigations.tarsy.dev, or use -n",
    )


def _is_allowed(session: sessions.Session, verb: str, resource: str, group: str, *, everywhere: bool = False) -> bool:
    """Return whether the caller has a right."""
    attributes = {"verb": verb, "group": group, "resource": resource}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    try:
        attributes |= {} if everywhere else {"namespace": session.namespace}
        body = json.dumps(review | {"spec": {"resourceAttributes": attributes}})
        answer = json.loads(session.cluster.run("create", "--raw", REVIEWS, "-f", "-", stdin=body))
    except failures.Failure:
        return False
    return bool(answer["status"].get("allowed"))


def _ready(session: sessions.Session) -> Check:
    """Return the check of the API's readiness. Raises a Failure if the API cannot be reached."""
    try:
        answer = session.api.get("/readyz")
    except failures.Unreachable as error:
        if not error.message.startswith("503"):
            raise
        remedy = "provide what is missing, or see `kubectl logs` of the operator"
        return Check("API", passed=False, message=error.message, remedy=remedy)
    notes = "; ".join(answer["notes"])
    return Check("API", passed=True, message=f"ready at {session.api.url()}{f': {notes}' if notes else ''}")


def _health(session: sessions.Session) -> Iterator[Check]:
    """Yield the checks of database and workers."""
    try:
        health = session.api.get("/health")
    except failures.Failure as error:
        yield Check("database", passed=False, message=error.message, remedy="check DATABASE_URL and Postgres")
        return
    state = health["database"]["state"]
    yield Check(
        "database",
        passed=state == "answering",
        message=f"{state} since {health['database']['since']}",
        remedy="check Postgres",
    )
    workers = health["workers"]
    yield Check(
        "workers",
        passed=workers["live"] > 0,
        message=f"{workers['live']} with {workers['slots']} slots",
        remedy="start an operator with --role all or worker",
    )


def _system(session: sessions.Session) -> Iterator[Check]:
    """Yield the checks of providers, MCP servers and chains."""
    try:
        providers = session.api.get("/api/v1/system/providers")["items"]
        servers = session.api.get("/api/v1/system/mcp-servers")["items"]
        types = session.api.get("/api/v1/alert-types")["items"]
    except failures.Failure as error:
        remedy = "ask for the right to list agentchains in the operator's namespace"
        yield Check("system", passed=False, message=error.message, remedy=remedy)
        return
    for provider in providers:
        problem = next((each["problem"] for each in provider["processes"] if each["problem"]), "")
        unused = "nothing uses it; " if problem and not provider["named"] else ""
        yield Check(
            f"provider {provider['name']}",
            passed=not problem or not provider["named"],
            message=f"{unused}{problem}" if problem else f"{provider['model']} is {provider['state']}",
            remedy=f"correct llm_providers.{provider['name']} of the platform file, or its key",
        )
    for server in servers:
        yield _server(server)
    not_ready = [each for each in types if not each["ready"]]
    for each in not_ready:
        remedy = f"correct the chain: tarsy chain get {each['chain_name']}"
        yield Check(f"alert type {each['alert_type']}", passed=False, message=each["message"], remedy=remedy)
    message = f"{len(types) - len(not_ready)} alert types have a chain that is ready"
    yield Check("chains", passed=len(types) > len(not_ready), message=message, remedy="apply an AgentChain")


def _server(server: dict[str, Any]) -> Check:
    """Return the check of an MCP server."""
    name = f"MCP server {server['name']}"
    stopped = sorted({tool["tool"] for each in server["processes"] for tool in each["stopped"]})
    if server["state"] != "connected":
        problem = next((each["problem"] for each in server["processes"] if each["problem"]), "")
        message = f"{server['state']}: {problem}".removesuffix(": ")
        remedy = f"start it, or correct mcp_servers.{server['name']} of the platform file"
        return Check(name, passed=False, message=message, remedy=remedy)
    if stopped:
        remedy = f"tarsy tools accept {server['name']}, if the change is right"
        return Check(name, passed=False, message=f"tools have changed: {', '.join(stopped)}", remedy=remedy)
    return Check(name, passed=True, message=f"connected, with {len(server['tools'])} tools")


def _webhook(session: sessions.Session) -> Check:
    """Return the check of the webhook's route. The API answers a GET with 405, because the route takes only POST."""
    try:
        session.api.get(WEBHOOK)
        message = f"a GET of {WEBHOOK} was answered: the route leads to another service"
    except failures.Failure as error:
        message = error.message
    passed = message.startswith("405")
    remedy = f"route {WEBHOOK} to the API"
    return Check("webhook", passed=passed, message=f"{WEBHOOK} leads to the API" if passed else message, remedy=remedy)


def _before(session: sessions.Session, config: str | None) -> Iterator[Check]:
    """Yield the checks before an installation."""
    from tarsy.cli import check  # at first, because the packages of the operator may be missing

    yield from (check for check in _cluster(session) if check.name == "cluster")
    for resource, group, everywhere in (
        ("customresourcedefinitions", "apiextensions.k8s.io", True),
        ("clusterroles", "rbac.authorization.k8s.io", True),
        ("deployments", "apps", False),
    ):
        is_allowed = _is_allowed(session, "create", resource, group, everywhere=everywhere)
        remedy = "install as a cluster administrator"
        yield Check(
            f"create {resource}", passed=is_allowed, message="allowed" if is_allowed else "refused", remedy=remedy
        )
    for name, problem, remedy in check.before(config):
        yield Check(name, passed=not problem, message=problem or "usable", remedy=remedy)

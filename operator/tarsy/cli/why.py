"""`tarsy why`: the reason for the state of an investigation, from its alert to the deepest call that failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from tarsy.cli.client import failures, kubectl, remote, sessions, terminal, views

GOOD = ("Completed", "Pending", "Running", "Skipped")


@click.command(
    help="Explain why an investigation ended as it did, is not grounded, or waits. Texts are not truncated.",
    epilog="Examples:\n\n\b\n  tarsy why web-crash",
)
@sessions.named
@sessions.connected
def command(*, session: sessions.Session, name: str | None, uid: str | None) -> None:
    """Explain the state of an investigation."""
    from tarsy.cli import reads

    reference = session.find(name, uid)
    view, problem = reads.details(session, reference)
    if problem:
        reads.note_source(session, problem)
    for line in explanation(session, view, whole=problem is None):
        click.echo(terminal.clean(line))


def explanation(session: sessions.Session, view: dict[str, Any], *, whole: bool) -> Iterator[str]:
    """Yield the lines of the explanation; `whole` if the view is the API's, which has executions and calls."""
    yield f"{view['name']}: {view['phase']}" + (f" ({view['reason']})" if view.get("reason") else "")
    yield from _labelled("Message", view["message"])
    yield from _labelled("Alert", f"{view['alert_type']} {view['severity'] or ''}".strip())
    yield from _labelled("Data", view["alert_data"])
    yield from _chain(session, view)
    executions = [execution for execution in view.get("executions") or () if execution["run"] == 0]
    calls = _failed_calls(session, view, executions)
    for stage in view["stage_progress"]:
        if stage["phase"] in GOOD:
            continue
        yield from _labelled(f"Stage {stage['name']}", f"{stage['phase']}: {stage['message']}")
        for execution in executions:
            if execution["stage"] == stage["name"]:
                yield from _execution(session, view, execution, calls)
    for execution in executions:
        if not execution["stage"]:
            yield from _execution(session, view, execution, calls)
    yield from _grounds(session, view)
    if not whole:
        yield "Without the API, the calls that failed are not known."


def _labelled(label: str, text: str, *, depth: int = 1) -> Iterator[str]:
    """Yield the lines of a text behind its label; none without text."""
    if text:
        first, *rest = text.rstrip("\n").split("\n")
        yield f"{'  ' * depth}{label}: {first}"
        yield from ("  " * (depth + 1) + line for line in rest)


def _chain(session: sessions.Session, view: dict[str, Any]) -> Iterator[str]:
    """Yield the chain of an investigation; for one without, the chain that would take its alert now."""
    name = view["chain_name"]
    if name:
        namespace = view.get("chain_namespace") or view["namespace"]
        generation = f", generation {view['chain_generation']}" if view.get("chain_generation") else ""
        yield from _labelled("Chain", f"{namespace}/{name}{generation}")
    elif view.get("reason", "").startswith("Chain") or view["phase"] in ("Pending", "Failed"):
        try:
            match = session.api.get("/api/v1/chain-match", alert_type=view["alert_type"])
        except failures.Failure as error:
            yield from _labelled("Chain", f"not known: {error.message}")
        else:
            name = match["chain_name"]
            if match["ready"]:
                yield from _labelled("Chain", f"none took the alert; {name} would take it now")
            else:
                yield from _labelled("Chain", f"{name or 'none'}: {match['message']}")
    if name and not view.get("executions"):
        yield from _conditions(session, view, name)


def _conditions(session: sessions.Session, view: dict[str, Any], name: str) -> Iterator[str]:
    """Yield the negative conditions of a chain, as it is now."""
    try:
        chain = session.cluster.get(
            kubectl.path(view.get("chain_namespace") or view["namespace"], kubectl.CHAINS, name)
        )
    except failures.Failure:
        return
    for condition in (chain.get("status") or {}).get("conditions") or ():
        if condition["status"] == "False" or (condition["type"] == "Stalled" and condition["status"] == "True"):
            text = f"{condition['type']}={condition['status']} {condition['reason']}: {condition.get('message') or ''}"
            yield from _labelled(f"Chain {name} now", text, depth=2)


def _has_failed(execution: dict[str, Any]) -> bool:
    return execution["outcome"] not in (None, "Completed")


def _failed_calls(
    session: sessions.Session, view: dict[str, Any], executions: Iterable[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the last call that failed of each execution, by its id; the trace is read if an execution has failed."""
    if not any(map(_has_failed, executions)):
        return {}
    pages = session.api.pages(remote.below(view["id"], "/trace"), "calls")
    return {call["execution"]: call for page, _ in pages for call in page if call["outcome"] != "ok"}


def _execution(
    session: sessions.Session, view: dict[str, Any], execution: dict[str, Any], calls: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Yield the failure of an execution, and the last of its calls that failed."""
    if not _has_failed(execution):
        return
    head = f"Agent {execution['name']}" if execution["kind"] == "agent" else execution["kind"].capitalize()
    text = f"{execution['outcome']}: {execution['error']}"
    yield from _labelled(f"{head} ({execution['provider']})", text, depth=2)
    if call := calls.get(execution["id"]):
        yield from _call(session, view, call)


def _call(session: sessions.Session, view: dict[str, Any], line: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a call that failed."""
    call = session.api.get(remote.below(view["id"], f"/trace/{line['type']}/{line['n']}"))
    if line["type"] == "tool":
        yield from _labelled(f"Tool call {line['n']}", f"{call['server_name']}.{call['tool_name']}", depth=3)
        yield from _labelled("Arguments", call["arguments"], depth=4)
        yield from _labelled("Result", call["result"], depth=4)
        return
    code = f" {call['failure_code']}" if call.get("failure_code") else ""
    yield from _labelled(
        f"Model call {line['n']}", f"{call['provider']} {call['model']}: {line['outcome']}{code}", depth=3
    )
    yield from _labelled("Reason", call.get("failure_text") or call.get("failure") or "", depth=4)
    for attempt in call.get("failed_requests") or ():
        yield from _labelled(f"Request to {attempt['provider']}", f"{attempt['code']} {attempt['error']}", depth=4)


def _grounds(session: sessions.Session, view: dict[str, Any]) -> Iterator[str]:
    """Yield the reason why an investigation is not grounded, its gaps, and the present problems of MCP servers."""
    if view["grounded"] is False or view["gaps"]:
        word = {False: "Not grounded", True: "Grounded, with gaps", None: "Gaps"}[view["grounded"]]
        no_grounds = "there is no result" if view["grounded"] is None else "the agents looked at nothing"
        yield from _labelled(word, view.get("grounds") or no_grounds)
    for gap in view["gaps"]:
        yield from _labelled("Not looked at", views.gap(gap), depth=2)
    if not view["gaps"] and view.get("grounds") != "ServersAway":
        return
    try:
        servers = session.api.get("/api/v1/system/mcp-servers")["items"]
    except failures.Failure:
        return
    for server in servers:
        for process in server["processes"]:
            if process["problem"]:
                yield from _labelled(f"MCP server {server['name']} now", process["problem"], depth=2)
                break

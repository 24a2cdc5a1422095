"""The status of a chain: its conditions, from the check of the chain and the reports of the workers.

Reachable MCP servers and usable LLM providers have conditions of their own. A server that is down does not make the
chain unready, because alerts still run and the server is often back soon. A provider that all workers report as
unusable makes the chain unready as well (`config.check.chain_index`). If only some workers report that, or none has
reported yet, alerts wait for a worker that can run the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from tarsy.config.check import chain_index, worker_reports
from tarsy.controller import unreadable_objects
from tarsy.kube import objects
from tarsy.masking import known_secrets
from tarsy.resources import base, chains
from tarsy.store.fleet import catalogue
from tarsy.transcript import control_characters

SERVERS_REACHABLE = "MCPServersReachable"
PROVIDERS_USABLE = "ProvidersUsable"

ServerReports: TypeAlias = Mapping[str, Sequence[catalogue.AnyReport]]
"""The reports of all processes on each MCP server, by the server's name."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The part of a condition that the checks decide."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def build(
    chain: chains.AgentChain,
    checked: chain_index.ChainStatus,
    *,
    servers: ServerReports,
    workers: worker_reports.Workers,
    secrets: known_secrets.KnownSecrets,
    now: datetime,
) -> chains.Status:
    """Return the status of `chain`; a condition whose status does not change keeps its time."""
    is_normal = checked.warning is None or checked.warning.reason == chain_index.NOT_OFFERED
    former = {condition.type: condition for condition in (chain.status.conditions if chain.status else [])}
    verdicts = {
        "Accepted": _verdict(checked.acceptance, good="Accepted"),
        "ResolvedRefs": _verdict(checked.references, good="ResolvedRefs", warning=checked.warning),
        "Ready": _verdict(checked.problem, good="Ready", warning=None if is_normal else checked.warning),
        "Stalled": _verdict(checked.problem, good="Ready", negative=True),
    }
    if checked.providers:
        verdicts[PROVIDERS_USABLE] = providers_usable(checked.providers, workers)
    if checked.servers:
        verdicts[SERVERS_REACHABLE] = servers_reachable(checked.servers, servers)
    conditions = [
        base.Condition(
            type=kind,
            status=verdict.status,
            reason=verdict.reason,
            message=control_characters.escape(secrets.mask(verdict.message))[: base.MESSAGE_MAX],
            last_transition_time=former[kind].last_transition_time
            if kind in former and former[kind].status == verdict.status
            else now.replace(microsecond=0),
            observed_generation=chain.metadata.generation,
        )
        for kind, verdict in verdicts.items()
    ]
    return chains.Status(observed_generation=chain.metadata.generation, hash=chain.digest(), conditions=conditions)


def build_unreadable(chain: objects.Unreadable, *, now: datetime) -> chains.Status:
    """Return the status of a chain whose spec this version cannot read: not accepted, not ready."""
    conditions = [
        unreadable_objects.condition(chain, kind, true=true, now=now)
        for kind, true in (("Accepted", False), ("Ready", False), ("Stalled", True))
    ]
    return chains.Status(observed_generation=chain.metadata.generation, conditions=conditions)


def _verdict(
    problem: chain_index.Problem | None,
    *,
    good: str,
    warning: chain_index.Problem | None = None,
    negative: bool = False,
) -> Verdict:
    """Return True with the reason `good` unless there is a problem; a `negative` condition is True if there is one."""
    reported = problem or warning or chain_index.Problem(reason=good, message="")
    is_true = (problem is None) != negative
    return Verdict(status="True" if is_true else "False", reason=reported.reason, message=reported.message)


def group_by_server(reports: Iterable[catalogue.AnyReport]) -> ServerReports:
    """Group reports by the names of the servers."""
    by_name: dict[str, list[catalogue.AnyReport]] = {}
    for report in reports:
        by_name.setdefault(report.name, []).append(report)
    return by_name


def server_states(reports: ServerReports) -> Mapping[str, object]:
    """Return the part of `reports` that `servers_reachable` depends on, to compare."""
    return {
        name: ([(report.state, report.detail.problem) for report in reported], _stopped_tools(name, reported))
        for name, reported in reports.items()
    }


def servers_reachable(needed: Sequence[str], reports: ServerReports) -> Verdict:
    """Return the verdict on the MCP servers `needed`, which are not empty, and on their stopped tools."""
    down, unconnected = [], []
    for name in needed:
        server_reports = reports.get(name, ())
        unreachable = [report for report in server_reports if report.state == "unreachable"]
        if unreachable:
            count, total = len(unreachable), len(server_reports)
            where = "" if count == total else f" (in {count} of {total} processes)"
            down.append(f"MCP server '{name}'{where} {unreachable[0].detail.problem}")
        elif not any(report.state == "connected" for report in server_reports):
            unconnected.append(f"MCP server '{name}' has not been connected to yet")
    stopped = [problem for name in needed for problem in _stopped_tools(name, reports.get(name, ()))]
    if down:
        return Verdict(status="False", reason="ServersUnreachable", message="; ".join([*down, *stopped]))
    if unconnected:
        return Verdict(status="Unknown", reason="ServersNotConnected", message="; ".join(unconnected))
    if stopped:
        return Verdict(status="True", reason="ToolsStopped", message="; ".join(stopped))
    return Verdict(status="True", reason="ServersReachable")


def _stopped_tools(server: str, reports: Iterable[catalogue.AnyReport]) -> list[str]:
    """Return a sentence for each tool of a server that is stopped because it differs from its pin."""
    sentences = (
        f"tool '{server}.{tool.tool}' is stopped: pinned {tool.pinned or 'never'}, now {tool.offered}"
        for report in reports
        for tool in report.detail.stopped
    )
    return list(dict.fromkeys(sentences))


def providers_usable(needed: Sequence[str], workers: worker_reports.Workers) -> Verdict:
    """Return the verdict on the LLM providers `needed`, which are not empty."""
    unusable, unreported = [], []
    for name in needed:
        problems = workers.reports.get(name, ())
        if reasons := "; ".join(dict.fromkeys(filter(None, problems))):
            count = sum(map(bool, problems))
            where = "" if count == workers.count else f" (in {count} of {workers.count} workers)"
            unusable.append(f"LLM provider '{name}'{where} cannot be used: {reasons}")
        elif not problems:
            unreported.append(f"no worker has said yet whether LLM provider '{name}' can be used; alerts wait")
    if unusable:
        return Verdict(status="False", reason="ProviderUnusable", message="; ".join(unusable))
    if unreported:
        return Verdict(status="Unknown", reason="NoWorker", message="; ".join(unreported))
    return Verdict(status="True", reason=PROVIDERS_USABLE)

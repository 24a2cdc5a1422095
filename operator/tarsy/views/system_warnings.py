"""Warnings, derived from the facts that processes report and from chains.

Pure and never stored, so that a warning ends when its cause does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel

from tarsy.config.check import chain_index
from tarsy.config.model import deliveries as receivers
from tarsy.config.model import tool_filters
from tarsy.resources import chains, namespaces
from tarsy.store.fleet import catalogue
from tarsy.store.intake import unserved
from tarsy.store.operations import deliveries
from tarsy.store.reads import queue_counts
from tarsy.telemetry import component_states

MESSAGE_MAX = 1024
TOOLS_NAMED = 20
"""The stopped tools of one server that have warnings of their own: a hostile server must not crowd out others."""
TYPES_NAMED = 20
"""The alert types without a chain that have warnings of their own: a sender that makes up types is bounded."""
Kind: TypeAlias = Literal[
    "alert-type",
    "api-server",
    "chain",
    "configuration",
    "log",
    "mcp-server",
    "provider",
    "receiver",
    "tool",
    "version",
    "watch",
    "worker",
]
_WORST = ("unreachable", "unusable", "failing", "cut", "refused", "connecting", "opening", "answering", "usable")
"""States, the worst first; unlisted states are the best of their kind. `usable` has not been called yet."""


class Warning(BaseModel):  # noqa: A001 - the word of the path
    """A warning."""

    kind: Kind
    name: str
    message: str
    since: datetime | None
    """The beginning; null if it is unknown."""


class ComponentState(Protocol):
    """The state of something, since some time."""

    @property
    def state(self) -> str:
        """The state."""
        ...

    @property
    def since(self) -> datetime:
        """The beginning of the state."""
        ...


class ProcessFact(ComponentState, Protocol):
    """A fact that a process reports: of this process (`component_states`) or of any (`catalogue.Report`)."""

    @property
    def kind(self) -> str:
        """The kind of the fact."""
        ...

    @property
    def name(self) -> str:
        """The name among the facts of its kind."""
        ...

    @property
    def detail(self) -> Any:
        """Further details."""
        ...


S = TypeVar("S", bound=ComponentState)


def worst(states: Sequence[S]) -> S:
    """Return the worst of the states.

    Of equal bad states it is the one that has lasted longest; of equal good states the newest, because its beginning is
    that of all being good.
    """
    ranks = {state: rank for rank, state in enumerate(_WORST)}

    def rank(candidate: S) -> int:
        return ranks.get(candidate.state, len(_WORST))

    lowest = min(map(rank, states))
    equals = [candidate for candidate in states if rank(candidate) == lowest]
    is_good = lowest >= _WORST.index("answering")
    return (max if is_good else min)(equals, key=lambda candidate: candidate.since)


def warning(kind: Kind, name: str, message: str, *, since: datetime | None = None) -> Warning:
    """Return a warning with its message cut to MESSAGE_MAX characters."""
    return Warning(kind=kind, name=name, message=message[:MESSAGE_MAX], since=since)


def process_warnings(facts: Iterable[catalogue.AnyReport]) -> Iterator[Warning]:
    """Yield the problems that processes report of themselves, their servers, their providers and their watch."""
    by_kind: dict[str, list[catalogue.AnyReport]] = {}
    for fact in facts:
        by_kind.setdefault(fact.kind, []).append(fact)
    processes = by_kind.get("process", [])
    if not any(fact.detail.slots for fact in processes):
        yield warning("worker", "workers", "no worker is running: nothing is investigated")
    yield from _differences("version", [(fact, f"{fact.detail.version} ({fact.detail.build})") for fact in processes])
    configured = by_kind.get("configuration", [])
    yield from _differences("configuration", [(fact, fact.state) for fact in configured])
    for fact in configured:
        for problem in fact.detail.problems:
            since = datetime.fromisoformat(problem.since)
            yield warning("configuration", fact.name, f"{fact.host}: {problem.message}", since=since)
    servers = by_kind.get("server", [])
    for fact in servers:
        problems = [fact.detail.problem if fact.state != "connected" else "", fact.detail.missing]
        if server_problem := "; ".join(filter(None, problems)):
            yield warning("mcp-server", fact.name, f"{fact.host}: it {server_problem}", since=fact.since)
    yield from _stopped_tools(servers)
    for fact in by_kind.get("provider", []):
        if fact.state == "unusable" and fact.detail.named:
            message = f"{fact.host}: it cannot be used: {fact.detail.problem}"
            yield warning("provider", fact.name, message, since=fact.since)
        elif fact.state == "failing":
            failure = fact.detail.failure or component_states.Failure()
            failure_text = ", ".join(filter(None, (failure.kind, failure.code)))
            message = f"{fact.host}: the last call to it failed ({failure_text})"
            yield warning("provider", fact.name, message, since=fact.since)
    yield from _watch_warnings(by_kind.get("watch", []))


def _watch_warnings(watches: Iterable[catalogue.AnyReport]) -> Iterator[Warning]:
    """Yield the watches that are not open, and the namespaces in which a watch is refused."""
    for fact in watches:
        if fact.state == "refused":
            message = (
                f"{fact.host}: the operator lacks the right to watch this namespace, and serves nothing in it: "
                "list it in the chart's `namespaces`, or give its account the rights that the chart gives in one"
            )
            yield warning("watch", fact.name, message, since=fact.since)
        elif fact.state != "open":
            message = f"{fact.host}: the watch of the cluster is {fact.state}: changes there are noticed later"
            yield warning("watch", fact.name, message, since=fact.since)


def _differences(
    kind: Literal["version", "configuration"], values: Sequence[tuple[catalogue.AnyReport, str]]
) -> Iterator[Warning]:
    """Yield a warning if processes differ, since the newest of them started."""
    hosts: dict[str, list[str]] = {}
    for fact, value in values:
        hosts.setdefault(value, []).append(fact.host)
    if len(hosts) > 1:
        hosts_by_value = "; ".join(f"{value}: {', '.join(sorted(names))}" for value, names in sorted(hosts.items()))
        since = max(fact.since for fact, _ in values)
        yield warning(kind, "processes", f"processes differ in their {kind}: {hosts_by_value}", since=since)


def _stopped_tools(servers: Iterable[catalogue.AnyReport]) -> Iterator[Warning]:
    """Yield the tools that differ from their pins, each once: as a rule all processes see the same."""
    stopped: dict[tuple[str, component_states.StoppedTool], list[str]] = {}
    for fact in servers:
        for tool in fact.detail.stopped:
            stopped.setdefault((fact.name, tool), []).append(fact.host)
    counts: Counter[str] = Counter()
    for (server, tool), hosts in stopped.items():
        counts[server] += 1
        if counts[server] > TOOLS_NAMED:
            continue
        pin = f"it was pinned at {tool.pinned}" if tool.pinned else "it is one more than are pinned at first sight"
        until = f"stopped until that is confirmed (tarsy tools accept {server}, or tool_hashes in the platform file)"
        message = (
            tool_filters.differs(tool.written, says=tool.pinned, offered=tool.offered)
            if tool.written
            else f"{pin} and is {tool.offered} now: {until}"
        )
        yield warning("tool", f"{server}.{tool.tool}", f"{', '.join(hosts)}: {message}")
    for server, count in counts.items():
        if count > TOOLS_NAMED:
            message = f"{count - TOOLS_NAMED} more of its tools are stopped: GET /api/v1/system/mcp-servers names all"
            yield warning("tool", server, message)


def log_warnings(waiting: Iterable[queue_counts.UnreadableInvestigation]) -> Iterator[Warning]:
    """Yield the investigations whose log no running worker can read."""
    for row in waiting:
        message = f"its log waits for another version of TARSy: {row.message}"
        yield warning("log", row.name, message, since=row.since)


def receiver_warnings(receivers: Iterable[deliveries.Failing]) -> Iterator[Warning]:
    """Yield the receivers of messages that did not take them."""
    for failing in receivers:
        waiting = f"{failing.waiting} message{'s wait' if failing.waiting > 1 else ' waits'} for it"
        yield warning("receiver", failing.receiver, f"{waiting}: {failing.problem}", since=failing.since)


def rule_warnings(
    configured: Mapping[str, receivers.Receiver],
    *,
    served: namespaces.Served,
    chain_names: Mapping[str, Collection[str]],
) -> Iterator[Warning]:
    """Yield the names in the `chains` of receivers' rules that no chain has of which the receiver may hear.

    `chain_names` are those of each namespace; a rule about a namespace that is missing there is passed over.
    """
    for receiver, settings in configured.items():
        for number, rule in enumerate(settings.rules):
            searched = {served.own} | {
                namespace
                for namespace in served
                if settings.may_hear_of(namespace, own=served.own)
                and (rule.namespaces is None or namespace in rule.namespaces)
            }
            if rule.chains is None or not searched <= chain_names.keys():
                continue
            for name in rule.chains:
                if not any(name in chain_names[namespace] for namespace in searched):
                    places = f"namespace{'s' if len(searched) > 1 else ''} {', '.join(sorted(searched))}"
                    message = f"rules.{number}.chains: '{name}' matches nothing: no chain has that name in {places}"
                    yield warning("receiver", receiver, message)


def unserved_warnings(
    rows: Iterable[unserved.Unserved], *, is_taken: Callable[[unserved.Unserved], bool]
) -> Iterator[Warning]:
    """Yield the types of the last day's alerts that no chain took, and that none takes now (`is_taken`)."""
    left = [row for row in rows if not is_taken(row)]
    named = [row for row in left if row.alert_type != unserved.OTHERS][:TYPES_NAMED]
    for row in named:
        place = f" in namespace {row.namespace}" if row.namespace else ""
        count = f"{_alerts(row.alerts)} in the last day"
        message = f"no chain takes alerts of this type{place}: {count}: {unserved.REMEDY}"
        yield warning("alert-type", row.alert_type, message, since=row.since)
    if others := [row for row in left if row not in named]:
        count = _alerts(sum(row.alerts for row in others))
        message = f"no chain takes alerts of more types than are named here: {count} in the last day: {unserved.REMEDY}"
        yield warning("alert-type", "others", message, since=min(row.since for row in others))


def _alerts(count: int) -> str:
    return f"{count} alert{'' if count == 1 else 's'}"


def chain_warnings(listed_chains: Iterable[chains.AgentChain]) -> Iterator[Warning]:
    """Yield the chains that take no alerts, by their conditions, and those without conditions for their generation."""
    for chain in listed_chains:
        name, status = chain.metadata.name, chain.status
        conditions = {condition.type: condition for condition in (status.conditions if status else [])}
        ready = conditions.get("Ready")
        references, usable = conditions.get("ResolvedRefs"), conditions.get("ProvidersUsable")
        if ready is None or ready.observed_generation < chain.metadata.generation:
            yield warning("chain", name, "its present generation has not been checked yet")
        elif ready.status != "True":
            message = f"it is not ready: {ready.reason}: {ready.message}"
            yield warning("chain", name, message, since=ready.last_transition_time)
        elif references and references.reason not in ("ResolvedRefs", chain_index.NOT_OFFERED):
            message = f"it is ready, and lacks something: {references.reason}: {references.message}"
            yield warning("chain", name, message, since=references.last_transition_time)
        elif usable and usable.status == "False":
            message = f"it is ready, and not all workers can run it: {usable.message}"
            yield warning("chain", name, message, since=usable.last_transition_time)

"""Warnings, derived from process facts and chains: none of them is stored.

Pure, so that a warning ends when its cause does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from tarsy.config.check import chain_index
from tarsy.config.model import tool_filters
from tarsy.resources import chains
from tarsy.store.fleet import catalogue
from tarsy.store.intake import unserved
from tarsy.store.reads import backlog
from tarsy.telemetry import details

MESSAGE_MAX = 1024
TOOLS_TOLD = 20
"""Tools of one server that are told one by one: a hostile one is to crowd out no other warning."""
TYPES_TOLD = 20
"""Types of alerts that no chain takes, told one by one: a sender that makes up types is to crowd out nothing."""
Kind: TypeAlias = Literal[
    "alert-type",
    "api-server",
    "chain",
    "configuration",
    "log",
    "mcp-server",
    "provider",
    "tool",
    "version",
    "watch",
    "worker",
]
_WORST = ("unreachable", "unusable", "failing", "cut", "connecting", "opening", "answering", "usable")
"""States, the worst first; others are the best of their kind. What one process has asked and no other has, answers."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A warning."""

    kind: Kind
    name: str
    message: str
    since: datetime | None = None


class Stands(Protocol):
    """Something in a state."""

    @property
    def state(self) -> str:
        """Its state."""
        ...

    @property
    def since(self) -> datetime:
        """When the state began."""
        ...


class Said(Stands, Protocol):
    """A fact of a process: this one (`standing.Fact`) or any (`catalogue.Said`)."""

    @property
    def kind(self) -> str:
        """The kind of the fact."""
        ...

    @property
    def name(self) -> str:
        """Which of its kind."""
        ...

    @property
    def detail(self) -> Any:
        """Further details."""
        ...


S = TypeVar("S", bound=Stands)


def worst(places: Sequence[S]) -> S:
    """The one of the worst state, for the longest time; of the best state for the shortest: since when all are so."""
    ranks = {state: rank for rank, state in enumerate(_WORST)}

    def rank(candidate: S) -> int:
        return ranks.get(candidate.state, len(_WORST))

    lowest = min(map(rank, places))
    alike = [other for other in places if rank(other) == lowest]
    is_best = lowest >= _WORST.index("answering")
    return (max if is_best else min)(alike, key=lambda other: other.since)


def of_processes(facts: Iterable[catalogue.Said]) -> Iterator[Found]:
    """Yield the problems that processes report of themselves, their servers, their providers and their watch."""
    by_kind: dict[str, list[catalogue.Said]] = {}
    for fact in facts:
        by_kind.setdefault(fact.kind, []).append(fact)
    processes = by_kind.get("process", [])
    if not any(fact.detail.slots for fact in processes):
        yield Found(kind="worker", name="workers", message="no worker is there: nothing is investigated")
    yield from _differing("version", processes, [f"{fact.detail.version} ({fact.detail.build})" for fact in processes])
    configured = by_kind.get("configuration", [])
    yield from _differing("configuration", configured, [fact.state for fact in configured])
    for fact in configured:
        for problem in fact.detail.problems:
            since = datetime.fromisoformat(problem.since)
            yield Found(kind="configuration", name=fact.name, message=f"{fact.host}: {problem.message}", since=since)
    for fact in by_kind.get("server", []):
        yield from _of_server(fact)
    yield from _of_tools(by_kind.get("server", []))
    for fact in by_kind.get("provider", []):
        yield from _of_provider(fact)
    for fact in by_kind.get("watch", []):
        if fact.state != "open":
            message = f"{fact.host}: the watch of the cluster is {fact.state}: what changes there is noticed later"
            yield Found(kind="watch", name=fact.name, message=message, since=fact.since)


def _differing(
    kind: Literal["version", "configuration"], places: Sequence[catalogue.Said], has: list[str]
) -> Iterator[Found]:
    """A warning where processes differ, since the newest of them started."""
    if len(set(has)) > 1:
        hosts = {value: [fact.host for fact, own in zip(places, has, strict=True) if own == value] for value in has}
        hosts_by_value = "; ".join(f"{value}: {', '.join(sorted(names))}" for value, names in sorted(hosts.items()))
        since = max(fact.since for fact in places)
        yield Found(
            kind=kind, name="processes", message=f"processes differ in their {kind}: {hosts_by_value}", since=since
        )


def _of_server(fact: catalogue.Said) -> Iterator[Found]:
    problems = [fact.detail.problem if fact.state != "connected" else "", fact.detail.missing]
    if problem := "; ".join(filter(None, problems)):
        yield Found(kind="mcp-server", name=fact.name, message=f"{fact.host}: it {problem}", since=fact.since)


def _of_tools(places: Iterable[catalogue.Said]) -> Iterator[Found]:
    """Tools that are not what was pinned, each once: all processes see the same, as a rule."""
    stopped: dict[tuple[str, str, str, str, str], list[str]] = {}
    for fact in places:
        for tool in fact.detail.stopped:
            key = (fact.name, tool.tool, tool.pinned, tool.offered, tool.written)
            stopped.setdefault(key, []).append(fact.host)
    by_server = Counter(server for server, *_ in stopped)
    for server, count in by_server.items():
        if count > TOOLS_TOLD:
            message = f"{count - TOOLS_TOLD} more of its tools are stopped: GET /api/v1/system/mcp-servers names all"
            yield Found(kind="tool", name=server, message=message)
    changes: Counter[str] = Counter()
    for (server, name, pinned, offered, written), hosts in stopped.items():
        changes[server] += 1
        if changes[server] > TOOLS_TOLD:
            continue
        was = f"it was pinned at {pinned} and" if pinned else "it is one more than are pinned at first sight, and"
        until = f"stopped until that is confirmed (tarsy tools accept {server}, or tool_hashes in the platform file)"
        message = (
            tool_filters.differs(written, says=pinned, offered=offered)
            if written
            else f"{was} is {offered} now: {until}"
        )
        yield Found(kind="tool", name=f"{server}.{name}", message=f"{', '.join(hosts)}: {message}")


def _of_provider(fact: catalogue.Said) -> Iterator[Found]:
    if fact.state == "unusable" and fact.detail.named:
        yield Found(
            kind="provider",
            name=fact.name,
            message=f"{fact.host}: it cannot be used: {fact.detail.problem}",
            since=fact.since,
        )
    elif fact.state == "failing":
        failure = fact.detail.failure or details.Failure()
        failure_text = ", ".join(filter(None, (failure.kind, failure.code)))
        yield Found(
            kind="provider",
            name=fact.name,
            message=f"{fact.host}: the last call to it failed ({failure_text})",
            since=fact.since,
        )


def of_logs(waiting: Iterable[backlog.Unreadable]) -> Iterator[Found]:
    """Investigations whose log no worker that is there can read."""
    for row in waiting:
        message = f"its log waits for another version of TARSy: {row.message}"
        yield Found(kind="log", name=row.name, message=message, since=row.since)


def of_unserved(rows: Iterable[unserved.Unserved], *, is_taken: Callable[[str], bool]) -> Iterator[Found]:
    """Types of the last day's alerts that no chain has taken, and that none takes now either (`is_taken`)."""
    left = [row for row in rows if not is_taken(row.alert_type)]
    named = [row for row in left if row.alert_type != unserved.OTHERS][:TYPES_TOLD]
    for row in named:
        message = f"no chain takes alerts of this type: {_counted(row.alerts)} in the last day: {unserved.REMEDY}"
        yield Found(kind="alert-type", name=row.alert_type, message=message, since=row.since)
    if others := [row for row in left if row not in named]:
        many = _counted(sum(row.alerts for row in others))
        message = f"no chain takes alerts of more types than are named here: {many} in the last day: {unserved.REMEDY}"
        yield Found(kind="alert-type", name="others", message=message, since=min(row.since for row in others))


def _counted(alerts: int) -> str:
    return f"{alerts} alert{'' if alerts == 1 else 's'}"


_FINE = ("ResolvedRefs", chain_index.NOT_OFFERED)


def of_chains(listed_chains: Iterable[chains.AgentChain]) -> Iterator[Found]:
    """Yield the chains that take no alerts, by their conditions, and those without any for their generation."""
    for chain in listed_chains:
        name, conditions = (
            chain.metadata.name,
            {condition.type: condition for condition in (chain.status.conditions if chain.status else [])},
        )
        ready = conditions.get("Ready")
        if ready is None or ready.observed_generation < chain.metadata.generation:
            yield Found(kind="chain", name=name, message="it has not been checked yet as it stands")
        elif ready.status != "True":
            message = f"it is not ready: {ready.reason}: {ready.message}"
            yield Found(kind="chain", name=name, message=message, since=ready.last_transition_time)
        elif (references := conditions.get("ResolvedRefs")) and references.reason not in _FINE:
            message = f"it is ready, and lacks something: {references.reason}: {references.message}"
            yield Found(kind="chain", name=name, message=message, since=references.last_transition_time)
        elif (usable := conditions.get("ProvidersUsable")) and usable.status == "False":
            message = f"it is ready, and not all workers can run it: {usable.message}"
            yield Found(kind="chain", name=name, message=message, since=usable.last_transition_time)

"""What somebody should look at, derived from what processes and chains say: nothing of it is stored.

Pure, so that a warning ends when its cause does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from tarsy.config.check import chain_index
from tarsy.config.model import tool_filters
from tarsy.resources import chain as chains
from tarsy.store.fleet import catalogue
from tarsy.store.intake import unserved
from tarsy.store.reads import backlog

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
    """Something that somebody should look at."""

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
    """What a process says: this one (`standing.Fact`) or any (`catalogue.Said`)."""

    @property
    def kind(self) -> str:
        """What it is about."""
        ...

    @property
    def name(self) -> str:
        """Which of its kind."""
        ...

    @property
    def detail(self) -> Mapping[str, Any]:
        """What else there is to say."""
        ...


S = TypeVar("S", bound=Stands)


def worst(places: Sequence[S]) -> S:
    """The one of the worst state, for the longest time; of the best state for the shortest: since when all are so."""
    ranks = {state: rank for rank, state in enumerate(_WORST)}

    def rank(one: S) -> int:
        return ranks.get(one.state, len(_WORST))

    lowest = min(map(rank, places))
    alike = [one for one in places if rank(one) == lowest]
    is_best = lowest >= _WORST.index("answering")
    return (max if is_best else min)(alike, key=lambda one: one.since)


def of_processes(said: Iterable[catalogue.Said]) -> Iterator[Found]:
    """What processes say is wrong with themselves, their servers, their providers and their watch."""
    by_kind: dict[str, list[catalogue.Said]] = {}
    for one in said:
        by_kind.setdefault(one.kind, []).append(one)
    processes = by_kind.get("process", [])
    if not any(one.detail["slots"] for one in processes):
        yield Found(kind="worker", name="workers", message="no worker is there: nothing is investigated")
    yield from _differing(
        "version", processes, [f"{one.detail['version']} ({one.detail['build']})" for one in processes]
    )
    configured = by_kind.get("configuration", [])
    yield from _differing("configuration", configured, [one.state for one in configured])
    for one in configured:
        for told in one.detail.get("problems", ()):  # a process of an earlier version tells none
            since = datetime.fromisoformat(told["since"])
            yield Found(kind="configuration", name=one.name, message=f"{one.host}: {told['message']}", since=since)
    for one in by_kind.get("server", []):
        yield from _of_server(one)
    yield from _of_tools(by_kind.get("server", []))
    for one in by_kind.get("provider", []):
        yield from _of_provider(one)
    for one in by_kind.get("watch", []):
        if one.state != "open":
            message = f"{one.host}: the watch of the cluster is {one.state}: what changes there is noticed later"
            yield Found(kind="watch", name=one.name, message=message, since=one.since)


def _differing(
    kind: Literal["version", "configuration"], places: Sequence[catalogue.Said], has: list[str]
) -> Iterator[Found]:
    """A warning where processes differ, since the newest of them started."""
    if len(set(has)) > 1:
        hosts = {value: [one.host for one, own in zip(places, has, strict=True) if own == value] for value in has}
        told = "; ".join(f"{value}: {', '.join(sorted(names))}" for value, names in sorted(hosts.items()))
        since = max(one.since for one in places)
        yield Found(kind=kind, name="processes", message=f"processes differ in their {kind}: {told}", since=since)


def _of_server(one: catalogue.Said) -> Iterator[Found]:
    problems = [one.detail["problem"] if one.state != "connected" else "", one.detail["missing"]]
    if told := "; ".join(filter(None, problems)):
        yield Found(kind="mcp-server", name=one.name, message=f"{one.host}: it {told}", since=one.since)


def _of_tools(places: Iterable[catalogue.Said]) -> Iterator[Found]:
    """Tools that are not what was pinned, each once: all processes see the same, as a rule."""
    stopped: dict[tuple[str, str, str, str, str], list[str]] = {}
    for one in places:
        for tool in one.detail.get("stopped", ()):  # a process of an earlier version tells none
            key = (one.name, tool["tool"], tool["pinned"], tool["offered"], tool.get("written", ""))
            stopped.setdefault(key, []).append(one.host)
    by_server = Counter(server for server, *_ in stopped)
    for server, count in by_server.items():
        if count > TOOLS_TOLD:
            message = f"{count - TOOLS_TOLD} more of its tools are stopped: GET /api/v1/system/mcp-servers names all"
            yield Found(kind="tool", name=server, message=message)
    told: Counter[str] = Counter()
    for (server, name, pinned, offered, written), hosts in stopped.items():
        told[server] += 1
        if told[server] > TOOLS_TOLD:
            continue
        was = f"it was pinned at {pinned} and" if pinned else "it is one more than are pinned at first sight, and"
        until = f"stopped until that is confirmed (tarsy tools accept {server}, or tool_hashes in the platform file)"
        message = (
            tool_filters.differs(written, says=pinned, offered=offered)
            if written
            else f"{was} is {offered} now: {until}"
        )
        yield Found(kind="tool", name=f"{server}.{name}", message=f"{', '.join(hosts)}: {message}")


def _of_provider(one: catalogue.Said) -> Iterator[Found]:
    if one.state == "unusable" and one.detail["named"]:
        yield Found(
            kind="provider",
            name=one.name,
            message=f"{one.host}: it cannot be used: {one.detail['problem']}",
            since=one.since,
        )
    elif one.state == "failing":
        failure = one.detail["failure"] or {"kind": "", "code": ""}
        told = ", ".join(filter(None, (failure["kind"], failure["code"])))
        yield Found(
            kind="provider", name=one.name, message=f"{one.host}: the last call to it failed ({told})", since=one.since
        )


def of_logs(waiting: Iterable[backlog.Unreadable]) -> Iterator[Found]:
    """Investigations whose log no worker that is there can read."""
    for one in waiting:
        message = f"its log waits for another version of TARSy: {one.message}"
        yield Found(kind="log", name=one.name, message=message, since=one.since)


def of_unserved(found: Iterable[unserved.Unserved], *, is_taken: Callable[[str], bool]) -> Iterator[Found]:
    """Types of the last day's alerts that no chain has taken, and that none takes now either (`is_taken`)."""
    left = [one for one in found if not is_taken(one.alert_type)]
    named = [one for one in left if one.alert_type != unserved.OTHERS][:TYPES_TOLD]
    for one in named:
        message = f"no chain takes alerts of this type: {_counted(one.alerts)} in the last day: {unserved.REMEDY}"
        yield Found(kind="alert-type", name=one.alert_type, message=message, since=one.since)
    if others := [one for one in left if one not in named]:
        many = _counted(sum(one.alerts for one in others))
        message = f"no chain takes alerts of more types than are named here: {many} in the last day: {unserved.REMEDY}"
        yield Found(kind="alert-type", name="others", message=message, since=min(one.since for one in others))


def _counted(alerts: int) -> str:
    return f"{alerts} alert{'' if alerts == 1 else 's'}"


_FINE = ("ResolvedRefs", chain_index.NOT_OFFERED)


def of_chains(found: Iterable[chains.AgentChain]) -> Iterator[Found]:
    """Chains that take no alerts, by their conditions; and those that nobody has looked at in their last generation."""
    for chain in found:
        name, conditions = (
            chain.metadata.name,
            {one.type: one for one in (chain.status.conditions if chain.status else [])},
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

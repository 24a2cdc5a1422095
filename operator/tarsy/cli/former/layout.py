"""The YAML of the founding documents: what of it stands where, and the sentences in which they refuse it.

`agents.yaml` (EP-0008), and `tarsy.yaml` with `llm-providers.yaml` (the Go version); a section may stand in any file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from tarsy.config.load import builtin
from tarsy.resources import chains, files

Place = tuple[int | str, ...]

SECTIONS = ("agents", "agent_chains", "llm_providers", "mcp_servers")
"""Mappings of names."""
SETTINGS = ("defaults", "queue", "system")
LATER = frozenset(
    (
        "allowed_ws_origins",
        "cleanup_interval",
        "cost_estimation",
        "dashboard_url",
        "embedding",
        "event_ttl",
        "holidays",
        "memory",
        "orchestrator",
        "required_skills",
        "retention",
        "scoring",
        "session_cleanup_url",
        "skills",
        "slack",
        "sub_agents",
        "summarization",
        "type",
        "temperature",
    )
)
"""Settings that TARSy may get; all others have no counterpart."""
SWITCHES = {"enabled": True, "disabled": False}
"""The values that switch an MCP server off, by the one that leaves it on."""
_IDENTIFIER = "ConfigurableAgent"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Something that stands in one of the files."""

    document: files.Document = field(repr=False)
    place: Place
    data: Any = field(repr=False)

    def at(self, *steps: int | str) -> Source:
        """Return the source below it; None if there is none."""
        value = self.data
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else value[int(step)]
        return Source(document=self.document, place=(*self.place, *steps), data=value)

    def problem(self, message: str) -> files.Problem:
        """Return a problem at this source."""
        return self.document.problem(self.place, message)

    @property
    def path_text(self) -> str:
        """Where it stands, as messages say it."""
        return files.path_text(self.place)

    def entries(self) -> Iterator[Source]:
        """The entries of a list; none where there is no list."""
        for index in range(len(self.data) if isinstance(self.data, list) else 0):
            yield self.at(index)

    @property
    def line(self) -> int:
        """The line where it begins."""
        return self.document.line(self.place)


@dataclass(kw_only=True)
class Sources:
    """All files together."""

    named: dict[str, dict[str, Source]] = field(default_factory=lambda: {section: {} for section in SECTIONS})
    settings: dict[str, Source] = field(default_factory=dict)
    unknown: list[Source] = field(default_factory=list)
    problems: list[files.Problem] = field(default_factory=list)

    @property
    def disabled_servers(self) -> dict[str, Source]:
        """The MCP servers that are switched off, by name: where that is said."""
        names = {}
        for name, server in self.named["mcp_servers"].items():
            for key, is_on in SWITCHES.items():
                if server.data.get(key) is not is_on and isinstance(server.data.get(key), bool):
                    names[name] = server.at(key)
        return names


def gathered(documents: Sequence[files.Document]) -> Sources:
    """Return the content of `documents`, by section and name.

    A chain may stand at the top, as some documents show it.
    """
    sources = Sources()
    for document in documents:
        if not isinstance(document.data, dict):
            if document.data is not None:
                expected = ", ".join((*SECTIONS, *SETTINGS))
                sources.problems.append(document.problem((), f"expected a mapping of {expected}"))
            continue
        root = Source(document=document, place=(), data=document.data)
        for key, value in document.data.items():
            source = root.at(key)
            if key in SECTIONS:
                if isinstance(value, dict):
                    for name in value:
                        _add(sources, key, name, source.at(name))
                elif value is not None:
                    sources.problems.append(source.problem(f"{key}: expected a mapping of names"))
            elif key in SETTINGS:
                _add_settings(sources, key, source)
            elif isinstance(value, dict) and "stages" in value:
                _add(sources, "agent_chains", key, source)
            else:
                sources.unknown.append(source)
    return sources


def _add(sources: Sources, section: str, name: str, source: Source) -> None:
    first = sources.named[section].setdefault(name, source)
    if first is not source:
        there = f"{first.document.file}:{first.line}"
        sources.problems.append(source.problem(f"{section}: '{name}' appears twice, first in {there}"))
    elif source.data is None and name in builtin.PLATFORM.get(section, {}):
        del sources.named[section][name]  # a comment in the place of what is built in
    elif not isinstance(source.data, dict):
        sources.problems.append(source.problem(f"{source.path_text}: expected a mapping"))
        del sources.named[section][name]


def _add_settings(sources: Sources, key: str, source: Source) -> None:
    if source.data is None:
        return
    if not isinstance(source.data, dict):
        sources.problems.append(source.problem(f"{key}: expected a mapping"))
    elif sources.settings.setdefault(key, source) is not source:
        first = sources.settings[key]
        there = f"{first.document.file}:{first.line}"
        sources.problems.append(source.problem(f"'{key}' appears twice, first in {there}"))


def agent_name(identifier: str) -> str | None:
    """The agent of an identifier, `NAME` or `ConfigurableAgent:NAME`; None where it is neither."""
    prefix, colon, name = identifier.partition(":")
    return identifier if not colon else name if prefix == _IDENTIFIER and name else None


def members(stage: Source) -> list[Source]:
    """Return the sources that name the agents of a stage."""
    if isinstance(stage.data.get("agents"), list):
        return list(stage.at("agents").entries())
    return [stage.at("agent")] if stage.data.get("agent") else []


def named_agent(member: Source) -> str:
    """The identifier that a member of a stage names, or ""."""
    name = member.data.get("name") if isinstance(member.data, dict) else member.data
    return name if isinstance(name, str) else ""


def seconds(text: object) -> float | None:
    """A duration of Go's, such as 1h30m; None where it is none."""
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)(ms|s|m|h)", text))


def refusals(sources: Sources) -> Iterator[files.Problem]:
    """Yield the founding documents' refusals of chains, in their words."""
    chain_sources = sources.named["agent_chains"]
    taken = [source for name, source in chain_sources.items() if name in builtin.CHAINS]
    if taken:
        names = ", ".join(str(source.place[-1]) for source in taken)
        there = ", ".join(builtin.CHAINS)
        sentence = f"YAML chain names conflict with built-in chains: {names}. Built-in chain names: {there}"
        ids = sorted(str(source.place[-1]) for source in taken)
        unique = (
            f"Chain ID conflicts detected between built-in and YAML chains: {ids}. "
            "Each chain_id must be unique across all chain sources."
        )
        yield taken[0].problem(f"{sentence}. {unique}")
    yield from _strategies(sources)
    for _, stage in _stages(chain_sources):
        for member in members(stage):
            if agent_name(named_agent(member)) is None:
                yield member.problem(f"Invalid agent identifier format: {named_agent(member)}")
    yield from _joined("Chain agent reference errors: ", _references(sources))
    yield from _joined("Chain structure errors: ", _structure(chain_sources))
    yield from _joined(
        "Alert type mapping conflicts detected. Each alert type can only be mapped to ONE chain. Conflicts: ",
        _conflicts(chain_sources),
    )


def _joined(introduction: str, problems: Iterable[tuple[Source, str]]) -> Iterator[files.Problem]:
    """The problems of each file as one sentence, on the line of the first."""
    by_file: dict[str, list[tuple[Source, str]]] = {}
    for source, message in problems:
        by_file.setdefault(source.document.file, []).append((source, message))
    for places in by_file.values():
        lines = list(dict.fromkeys(source.line for source, _ in places))
        also = f" (lines {', '.join(map(str, lines))})" if len(lines) > 1 else ""
        yield places[0][0].problem(introduction + "; ".join(message for _, message in places) + also)


def _strategies(sources: Sources) -> Iterator[files.Problem]:
    """The iteration strategies that there are none of."""
    chain_sources = sources.named["agent_chains"]
    defaults = sources.settings.get("defaults")
    places = [*([defaults] if defaults else []), *sources.named["agents"].values(), *chain_sources.values()]
    for _, stage in _stages(chain_sources):
        places += [stage, *members(stage)]
        if isinstance(stage.data.get("synthesis"), dict):
            places.append(stage.at("synthesis"))
    there = get_args(chains.IterationStrategy)
    for member in places:
        strategy = member.data.get("iteration_strategy") if isinstance(member.data, dict) else None
        if strategy and strategy not in there:
            strategy_source = member.at("iteration_strategy")
            sentence = f"Unknown iteration strategy: {strategy}"
            yield strategy_source.problem(
                f"{strategy_source.path_text}: {sentence}. Available strategies: {', '.join(there)}"
            )


def _references(sources: Sources) -> Iterator[tuple[Source, str]]:
    names = dict.fromkeys([*builtin.PLATFORM["agents"], *sources.named["agents"]])
    for name, stage in _stages(sources.named["agent_chains"]):
        for member in members(stage):
            agent = agent_name(named_agent(member))
            if agent and agent not in names:
                where = f"Chain '{name}' stage '{stage.data.get('name', stage.place[-1])}'"
                unknown = f"{where} references unknown agent '{agent}'. Available agents: {', '.join(names)}"
                if ":" in named_agent(member):
                    yield member, f"{unknown}. Configurable agent '{agent}' not found in configuration"
                else:
                    yield member, f"{unknown}. Unknown built-in agent class: {agent}"


def _stages(chain_sources: Mapping[str, Source]) -> Iterator[tuple[str, Source]]:
    for name, source in chain_sources.items():
        for stage in source.at("stages").entries():
            if isinstance(stage.data, dict):
                yield name, stage


def _structure(chain_sources: Mapping[str, Source]) -> Iterator[tuple[Source, str]]:
    for name, source in chain_sources.items():
        for key, called in (("alert_types", "alert_type"), ("stages", "stage")):
            value = source.data.get(key)
            if not value or not isinstance(value, list):
                yield source if not value else source.at(key), f"Chain '{name}' must specify at least one {called}"
        for index, stage in enumerate(source.at("stages").entries()):
            if not isinstance(stage.data, dict):
                yield stage, f"Chain '{name}' stage {index} must be a dictionary"
                continue
            if not stage.data.get("name"):
                yield stage, f"Chain '{name}' stage {index} missing required 'name' field"
            if not members(stage) or not all(map(named_agent, members(stage))):
                yield stage, f"Chain '{name}' stage {index} missing required 'agent' field"


def _conflicts(chain_sources: Mapping[str, Source]) -> Iterator[tuple[Source, str]]:
    of_builtin = {name: owner for owner, names in builtin.CHAINS.items() for name in names}
    takers: dict[str, str] = {}
    for chain_name, source in chain_sources.items():
        for alert_type in source.at("alert_types").entries():
            name = alert_type.data
            if not isinstance(name, str):
                continue
            start = f"Alert type '{name}' conflict: "
            if name in of_builtin:
                yield (
                    alert_type,
                    f"{start}YAML chain '{chain_name}' cannot override built-in chain '{of_builtin[name]}'",
                )
            if takers.get(name, chain_name) != chain_name:
                yield alert_type, f"{start}mapped to multiple YAML chains '{takers[name]}' and '{chain_name}'"
            takers[name] = chain_name

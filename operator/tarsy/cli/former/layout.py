"""The layout of the founding documents' YAML, and their error messages.

The files are `agents.yaml` (EP-0008), or `tarsy.yaml` and `llm-providers.yaml` (the Go version). Each file may have any
section.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from tarsy.config.load import builtin
from tarsy.resources import chains, files

KeyPath = tuple[int | str, ...]

SECTIONS = ("agents", "agent_chains", "llm_providers", "mcp_servers")
"""The sections that are mappings from names."""
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
"""Settings that TARSy may get later. Other unknown settings never get a counterpart."""
SWITCHES = {"enabled": True, "disabled": False}
"""The settings that can disable an MCP server, each with the value that leaves it enabled."""
_IDENTIFIER = "ConfigurableAgent"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A value in one of the files."""

    document: files.Document = field(repr=False)
    path: KeyPath
    value: Any = field(repr=False)

    def at(self, *steps: int | str) -> Source:
        """Return the source below it; its value is None if the file has none there."""
        value = self.value
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else value[int(step)]
        return Source(document=self.document, path=(*self.path, *steps), value=value)

    def problem(self, message: str) -> files.Problem:
        """Return a problem at this source."""
        return self.document.problem(self.path, message)

    @property
    def path_text(self) -> str:
        """The path, as messages print it."""
        return files.path_text(self.path)

    def entries(self) -> Iterator[Source]:
        """Yield the entries of a list; nothing if the value is no list."""
        for index in range(len(self.value) if isinstance(self.value, list) else 0):
            yield self.at(index)

    @property
    def line(self) -> int:
        """The number of its first line."""
        return self.document.line(self.path)


@dataclass(kw_only=True)
class Sources:
    """The sources of all files."""

    sections: dict[str, dict[str, Source]] = field(default_factory=lambda: {section: {} for section in SECTIONS})
    settings: dict[str, Source] = field(default_factory=dict)
    unknown: list[Source] = field(default_factory=list)
    problems: list[files.Problem] = field(default_factory=list)

    @property
    def disabled_servers(self) -> dict[str, Source]:
        """The settings that disable MCP servers, by the servers' names."""
        names = {}
        for name, server in self.sections["mcp_servers"].items():
            for key, is_on in SWITCHES.items():
                if server.value.get(key) is not is_on and isinstance(server.value.get(key), bool):
                    names[name] = server.at(key)
        return names


def gather(documents: Sequence[files.Document]) -> Sources:
    """Return the sources in `documents`, by section and name.

    A chain may be a top-level key, as in some of the founding documents.
    """
    sources = Sources()
    for document in documents:
        if not isinstance(document.value, dict):
            if document.value is not None:
                expected = ", ".join((*SECTIONS, *SETTINGS))
                sources.problems.append(document.problem((), f"expected a mapping of {expected}"))
            continue
        root = Source(document=document, path=(), value=document.value)
        for key, value in document.value.items():
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
    first = sources.sections[section].setdefault(name, source)
    if first is not source:
        first_line = f"{first.document.file}:{first.line}"
        sources.problems.append(source.problem(f"{section}: '{name}' appears twice, first in {first_line}"))
    elif source.value is None and name in builtin.PLATFORM.get(section, {}):
        del sources.sections[section][name]  # a built-in one, which the example files list with comments only
    elif not isinstance(source.value, dict):
        sources.problems.append(source.problem(f"{source.path_text}: expected a mapping"))
        del sources.sections[section][name]


def _add_settings(sources: Sources, key: str, source: Source) -> None:
    if source.value is None:
        return
    if not isinstance(source.value, dict):
        sources.problems.append(source.problem(f"{key}: expected a mapping"))
    elif sources.settings.setdefault(key, source) is not source:
        first = sources.settings[key]
        first_line = f"{first.document.file}:{first.line}"
        sources.problems.append(source.problem(f"'{key}' appears twice, first in {first_line}"))


def agent_name(identifier: str) -> str | None:
    """Return the agent's name in an identifier, `NAME` or `ConfigurableAgent:NAME`; None if it is neither."""
    prefix, colon, name = identifier.partition(":")
    return identifier if not colon else name if prefix == _IDENTIFIER and name else None


def members(stage: Source) -> list[Source]:
    """Return the sources that name the agents of a stage."""
    if isinstance(stage.value.get("agents"), list):
        return list(stage.at("agents").entries())
    return [stage.at("agent")] if stage.value.get("agent") else []


def named_agent(member: Source) -> str:
    """Return the identifier of the agent that a member of a stage names; "" if it names none."""
    name = member.value.get("name") if isinstance(member.value, dict) else member.value
    return name if isinstance(name, str) else ""


def seconds(text: object) -> float | None:
    """Return the seconds of a Go duration, such as 1h30m; None if `text` is none."""
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)(ms|s|m|h)", text))


def refusals(sources: Sources) -> Iterator[files.Problem]:
    """Yield the problems of chains in the founding documents' words."""
    chain_sources = sources.sections["agent_chains"]
    conflicting = [source for name, source in chain_sources.items() if name in builtin.CHAINS]
    if conflicting:
        names = ", ".join(str(source.path[-1]) for source in conflicting)
        builtin_names = ", ".join(builtin.CHAINS)
        sentence = f"YAML chain names conflict with built-in chains: {names}. Built-in chain names: {builtin_names}"
        ids = sorted(str(source.path[-1]) for source in conflicting)
        unique = (
            f"Chain ID conflicts detected between built-in and YAML chains: {ids}. "
            "Each chain_id must be unique across all chain sources."
        )
        yield conflicting[0].problem(f"{sentence}. {unique}")
    yield from _unknown_strategies(sources)
    for _, stage in _stages(chain_sources):
        for member in members(stage):
            if agent_name(named_agent(member)) is None:
                yield member.problem(f"Invalid agent identifier format: {named_agent(member)}")
    yield from _by_file("Chain agent reference errors: ", _unknown_agents(sources))
    yield from _by_file("Chain structure errors: ", _incomplete_chains(chain_sources))
    yield from _by_file(
        "Alert type mapping conflicts detected. Each alert type can only be mapped to ONE chain. Conflicts: ",
        _alert_type_conflicts(chain_sources),
    )


def _by_file(introduction: str, problems: Iterable[tuple[Source, str]]) -> Iterator[files.Problem]:
    """Join the problems of each file into one, at the line of the first."""
    by_file: dict[str, list[tuple[Source, str]]] = {}
    for source, message in problems:
        by_file.setdefault(source.document.file, []).append((source, message))
    for in_file in by_file.values():
        lines = list(dict.fromkeys(source.line for source, _ in in_file))
        all_lines = f" (lines {', '.join(map(str, lines))})" if len(lines) > 1 else ""
        yield in_file[0][0].problem(introduction + "; ".join(message for _, message in in_file) + all_lines)


def _unknown_strategies(sources: Sources) -> Iterator[files.Problem]:
    """Yield a problem for each unknown iteration strategy."""
    chain_sources = sources.sections["agent_chains"]
    defaults = sources.settings.get("defaults")
    blocks = [*([defaults] if defaults else []), *sources.sections["agents"].values(), *chain_sources.values()]
    for _, stage in _stages(chain_sources):
        blocks += [stage, *members(stage)]
        if isinstance(stage.value.get("synthesis"), dict):
            blocks.append(stage.at("synthesis"))
    available = get_args(chains.IterationStrategy)
    for block in blocks:
        strategy = block.value.get("iteration_strategy") if isinstance(block.value, dict) else None
        if strategy and strategy not in available:
            strategy_source = block.at("iteration_strategy")
            sentence = f"Unknown iteration strategy: {strategy}"
            yield strategy_source.problem(
                f"{strategy_source.path_text}: {sentence}. Available strategies: {', '.join(available)}"
            )


def _unknown_agents(sources: Sources) -> Iterator[tuple[Source, str]]:
    names = dict.fromkeys([*builtin.PLATFORM["agents"], *sources.sections["agents"]])
    for name, stage in _stages(sources.sections["agent_chains"]):
        for member in members(stage):
            agent = agent_name(named_agent(member))
            if agent and agent not in names:
                where = f"Chain '{name}' stage '{stage.value.get('name', stage.path[-1])}'"
                unknown = f"{where} references unknown agent '{agent}'. Available agents: {', '.join(names)}"
                if ":" in named_agent(member):
                    yield member, f"{unknown}. Configurable agent '{agent}' not found in configuration"
                else:
                    yield member, f"{unknown}. Unknown built-in agent class: {agent}"


def _stages(chain_sources: Mapping[str, Source]) -> Iterator[tuple[str, Source]]:
    for name, source in chain_sources.items():
        for stage in source.at("stages").entries():
            if isinstance(stage.value, dict):
                yield name, stage


def _incomplete_chains(chain_sources: Mapping[str, Source]) -> Iterator[tuple[Source, str]]:
    for name, source in chain_sources.items():
        for key, noun in (("alert_types", "alert_type"), ("stages", "stage")):
            value = source.value.get(key)
            if not value or not isinstance(value, list):
                yield source if not value else source.at(key), f"Chain '{name}' must specify at least one {noun}"
        for index, stage in enumerate(source.at("stages").entries()):
            if not isinstance(stage.value, dict):
                yield stage, f"Chain '{name}' stage {index} must be a dictionary"
                continue
            if not stage.value.get("name"):
                yield stage, f"Chain '{name}' stage {index} missing required 'name' field"
            if not members(stage) or not all(map(named_agent, members(stage))):
                yield stage, f"Chain '{name}' stage {index} missing required 'agent' field"


def _alert_type_conflicts(chain_sources: Mapping[str, Source]) -> Iterator[tuple[Source, str]]:
    builtin_chains = {name: chain for chain, names in builtin.CHAINS.items() for name in names}
    yaml_chains: dict[str, str] = {}
    for chain_name, source in chain_sources.items():
        for alert_type in source.at("alert_types").entries():
            name = alert_type.value
            if not isinstance(name, str):
                continue
            start = f"Alert type '{name}' conflict: "
            if name in builtin_chains:
                yield (
                    alert_type,
                    f"{start}YAML chain '{chain_name}' cannot override built-in chain '{builtin_chains[name]}'",
                )
            if yaml_chains.get(name, chain_name) != chain_name:
                yield alert_type, f"{start}mapped to multiple YAML chains '{yaml_chains[name]}' and '{chain_name}'"
            yaml_chains[name] = chain_name

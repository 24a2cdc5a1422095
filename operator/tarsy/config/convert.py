"""Turns the founding documents' YAML into manifests of chains and a platform file; what has no place is named.

What is made is checked as the files of people are, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_snake

from tarsy.config import builtin, former, lint, load, summarization
from tarsy.masking import patterns
from tarsy.resources import base, chain, files

PLATFORM = "tarsy.yaml"
"""What the platform file is called; a chain's manifest has its chain's name."""
_ALWAYS = "kubernetes_secret"
"""What masked Kubernetes' Secrets, if it was asked for."""
_FORMER_STRATEGY = "react"
"""What ran where nothing was said."""
_OLD_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TEXTS = ("instructions", "custom_instructions", "description")
"""Where `${VAR}` is text, such as a command for somebody to run."""
_STRATEGIES = {"google-native": "native-thinking", "langchain": "react"}
"""What ran on a backend where no strategy is said."""
_SAME_STAGE = {
    "llm_provider": "llmProvider",
    "max_iterations": "maxIterations",
    "mcp_servers": "mcpServers",
}
_ENVIRONMENT = {"credentials_env": "credentials_file", "project_env": "project", "location_env": "location"}
"""Of a provider: what named a variable is that variable's value."""

JSON = dict[str, Any]
Source = former.Source


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was made."""

    texts: dict[str, str]
    """By the names of their files."""
    notes: list[files.Problem]
    """What has no place, and what was read otherwise than it may have been meant."""


def convert(documents: Sequence[files.Document]) -> Converted:
    """Manifests and a platform file of what stands in `documents`; a FileError says what cannot be converted."""
    sources = former.gathered(documents)
    if not any(sources.named.values()) and not sources.settings and not sources.problems:
        expected = ", ".join((*former.SECTIONS, *former.SETTINGS))
        sources.problems.append(documents[0].problem((), f"nothing to convert: expected one of {expected}"))
    converter = _Converter(sources)
    converter.problems += former.refusals(sources)
    if converter.problems:
        raise files.FileError(sorted(converter.problems))
    platform, chains = converter.platform(), converter.chains()
    if not converter.problems:
        converter.problems += _wrong(sources, platform, chains)
    if converter.problems:
        raise files.FileError(sorted(converter.problems))
    texts = {f"{manifest['metadata']['name']}.yaml": files.written(manifest) for manifest in chains.values()}
    return Converted(texts={PLATFORM: files.written(platform)} | texts, notes=sorted(dict.fromkeys(converter.notes)))


@dataclass(kw_only=True)
class _Notes:
    notes: list[files.Problem] = field(default_factory=list)

    def left_out(self, source: Source) -> None:
        """Say that something has no place."""
        key = str(source.place[-1])
        why = "TARSy does not have this yet" if key in former.LATER else "this has no place in TARSy"
        self.notes.append(source.problem(f"{source.told}: {why}: left out"))

    def say(self, source: Source, message: str) -> None:
        """Say what became of something."""
        self.notes.append(source.problem(f"{source.told}: {message}"))


class _Converter(_Notes):
    """Goes through the sources, and keeps what is to be said of them."""

    def __init__(self, sources: former.Sources) -> None:
        super().__init__()
        self.problems = sources.problems
        self._sources = sources
        self._defaults = sources.settings.get("defaults")
        self._queue = sources.settings.get("queue")
        for source in sources.unknown:
            self.left_out(source)
        if system := sources.settings.get("system"):
            for key in system.data:
                self.left_out(system.at(key))

    # The platform file

    def platform(self) -> JSON:
        """The platform file."""
        made = {
            "defaults": self._made_defaults(),
            "llm_providers": self._section("llm_providers", self._provider),
            "mcp_servers": self._section("mcp_servers", self._server),
            "agents": self._section("agents", self._agent),
            "queue": self._made_queue(),
        }
        if self._defaults and "alert_type" in self._defaults.data:
            made["ingest"] = {"default_alert_type": self._defaults.data["alert_type"]}
        return {key: value for key, value in made.items() if value}

    def _section(self, name: str, make: Callable[[Source], JSON]) -> JSON:
        return {key: make(source) for key, source in self._sources.named[name].items()}

    def _made_defaults(self) -> JSON:
        if self._defaults is None:
            return {"iteration_strategy": _FORMER_STRATEGY} if self._sources.named["agent_chains"] else {}
        made: JSON = {}
        for key in self._defaults.data:
            source = self._defaults.at(key)
            match key:
                case "llm_provider" | "max_iterations":
                    made[key] = self._text(source)
                case "fallback_providers":
                    made[key] = self._fallbacks(source)
                case "iteration_strategy" | "llm_backend" | "backend" | "success_policy" | "alert_type":
                    pass  # below, with the stages, with `ingest`
                case "alert_masking":
                    made[key] = self._block(source, ("enabled", "pattern_group"), case=str)
                case _:
                    self.left_out(source)
        return made | {"iteration_strategy": self._default_strategy()}

    def _default_strategy(self) -> str:
        return (self._strategy(self._defaults) if self._defaults else None) or _FORMER_STRATEGY

    def _provider(self, provider: Source) -> JSON:
        made: JSON = {}
        for key in provider.data:
            source = provider.at(key)
            if key in _ENVIRONMENT and isinstance(source.data, str):
                made[_ENVIRONMENT[key]] = "{{." + source.data + "}}"
            elif key == "native_tools":
                made[key] = self._native_tools(source)
            elif key in ("backend", "llm_backend"):
                self.say(source, "the provider's type says how it is asked: left out")
            elif key == "api_key_env" and provider.data.get("type") == "vertexai":
                self.say(source, "vertexai takes credentials, and no key: left out")
            elif key in former.LATER and key != "type":
                self.left_out(source)
            else:
                made[key] = self._text(source)
        return made

    def _native_tools(self, source: Source) -> Any:
        """Of a mapping of tools to whether they are wanted, those that are."""
        if isinstance(source.data, dict):
            return [tool for tool, is_wanted in source.data.items() if is_wanted]
        return source.data

    def _server(self, server: Source) -> JSON:
        made: JSON = {}
        for key in server.data:
            source = server.at(key)
            if key == "transport" and isinstance(source.data, dict):
                made[key] = self._transport(source)
            elif key == "data_masking":
                made[key] = self._masking(source) if isinstance(source.data, dict) else source.data
            elif key == "instructions":
                made[key] = source.data or ""
            elif key == "summarization":
                made[key] = self._block(source, summarization.Summarization.model_fields, case=str)
            else:
                self.left_out(source)
        if not made.get("transport"):
            self.problems.append(server.problem(f"{server.told}: transport is missing"))
        return made

    def _transport(self, transport: Source) -> JSON:
        made: JSON = {}
        for key in transport.data:
            source = transport.at(key)
            if key in ("command", "args", "env", "url"):
                made[key] = self._text(source)
            elif key == "type":
                made[key] = "http" if source.data == "sse" else source.data
                if source.data == "sse":
                    self.say(source, "TARSy does not have sse yet: written as http, whose address may be another one")
            else:
                self.left_out(source)
        if isinstance(made.get("env"), dict):
            made["env"] = {key: str(value) for key, value in made["env"].items()}
        return made

    def _masking(self, masking: Source) -> JSON:
        made: JSON = {}
        for key in masking.data:
            source = masking.at(key)
            there: Iterable[str] = {"pattern_groups": patterns.GROUPS, "patterns": patterns.NAMES}.get(str(key), ())
            if key == "enabled" or (key in ("pattern_groups", "patterns", "custom_patterns") and not _is_list(source)):
                made[key] = source.data
            elif there:
                made[key] = self._known(source, there)
            elif key == "custom_patterns":
                made[key] = [self._custom_pattern(entry, index) for index, entry in enumerate(source.entries(), 1)]
            else:
                self.left_out(source)
        return made

    def _known(self, source: Source, there: Iterable[str]) -> list[str]:
        made = []
        for entry in source.entries():
            if str(entry.data) in there:
                made.append(entry.data)
            elif entry.data == _ALWAYS:
                self.say(entry, "Kubernetes' Secrets are always masked: left out")
            else:
                self.say(entry, f"TARSy does not have '{entry.data}'. Available: {', '.join(there)}")
        return made

    def _custom_pattern(self, source: Source, number: int) -> Any:
        """One of one's own, which has a name now."""
        if not isinstance(source.data, dict):
            return source.data
        made = {"name": source.data.get("name", f"custom_{number}")}
        for key in source.data:
            if key in ("pattern", "replacement"):
                made[key] = source.data[key]
            elif key != "name":
                self.left_out(source.at(key))
        return made

    def _agent(self, agent: Source) -> JSON:
        made: JSON = {}
        for key in agent.data:
            source = agent.at(key)
            if key in ("mcp_servers", "custom_instructions", "llm_provider", "max_iterations"):
                made[key] = self._text(source)
            elif key == "native_tools":
                made[key] = self._native_tools(source)
            elif key == "alert_types":
                self.say(source, "chains take alert types, and agents do not: left out")
            elif key not in ("iteration_strategy", "llm_backend", "backend"):
                self.left_out(source)
        strategy = self._strategy(agent)
        return made | ({"iteration_strategy": strategy} if strategy else {})

    def _made_queue(self) -> JSON:
        made: JSON = {}
        if self._queue is None:
            return made
        for key in self._queue.data:
            source = self._queue.at(key)
            if key in ("worker_count", "max_concurrent_sessions"):
                made["slots" if key == "worker_count" else "max_running"] = source.data
            elif key == "session_timeout":
                if former.seconds(source.data) is None:
                    self.problems.append(source.problem(f"{source.told}: not a duration, such as 40m"))
            else:
                self.left_out(source)
        return made

    # Chains

    def chains(self) -> dict[str, JSON]:
        """The manifests, by the chains' former names."""
        made: dict[str, JSON] = {}
        taken: dict[str, str] = {}
        for former_name, source in self._sources.named["agent_chains"].items():
            name = self._dns(source, former_name)
            if taken.setdefault(name, former_name) != former_name:
                self.problems.append(source.problem(f"{source.told}: chain '{taken[name]}' is called '{name}', too"))
            made[former_name] = {
                "apiVersion": base.API_VERSION,
                "kind": chain.KIND,
                "metadata": {"name": name},
                "spec": self._spec(source),
            }
        return made

    def _spec(self, source: Source) -> JSON:
        made: JSON = {}
        for key in source.data:
            found = source.at(key)
            match key:
                case "alert_types" | "description" | "llm_provider" | "max_iterations" | "mcp_servers":
                    made[base.camel(key)] = found.data
                case "fallback_providers":
                    made["fallbackProviders"] = self._fallbacks(found)
                case "executive_summary_provider":
                    made["executiveSummary"] = {"llmProvider": found.data}
                case "chat":
                    made["chat"] = self._block(found, ("enabled", "agent", "llm_provider", "max_iterations"))
                case "stages" | "iteration_strategy" | "llm_backend" | "backend":
                    pass
                case _:
                    self.left_out(found)
        if self._queue and (seconds := former.seconds(self._queue.data.get("session_timeout"))):
            made["activeDeadlineSeconds"] = round(seconds)
        strategy = self._strategy(source)
        stages = list(source.at("stages").entries())
        are_silent = not any(self._own_strategy(stage, member) for stage in stages for member in former.members(stage))
        if strategy is None and are_silent:
            strategy = self._default_strategy()
        if strategy:
            made["iterationStrategy"] = strategy
        made["stages"] = [self._stage(stage, speaks=strategy is None) for stage in stages]
        self._says_variables(source)
        return made

    def _own_strategy(self, stage: Source, member: Source) -> str | None:
        """What a stage, its member or the member's agent says."""
        own = self._strategy(member) if isinstance(member.data, dict) else None
        if found := own or self._strategy(stage):
            return found
        name = former.agent_name(former.named_agent(member)) or ""
        agent = self._sources.named["agents"].get(name)
        if agent is not None:
            return self._strategy(agent)
        strategy: str | None = builtin.PLATFORM["agents"].get(name, {}).get("iteration_strategy")
        return strategy

    def _stage(self, stage: Source, *, speaks: bool) -> JSON:
        """A stage; with `speaks` each of its agents whose strategy nobody says gets the one that ran then."""
        made: JSON = {"name": self._dns(stage.at("name"), str(stage.data["name"]))}
        found = former.members(stage)
        overrides = [self._member(member, speaks=speaks and not self._own_strategy(stage, member)) for member in found]
        if len(found) == 1:
            made |= {"agent" if key == "name" else key: value for key, value in overrides[0].items()}
        else:
            made["agents"] = overrides
        for key in stage.data:
            source = stage.at(key)
            if key in _SAME_STAGE:
                made.setdefault(_SAME_STAGE[key], source.data)
            elif key == "fallback_providers":
                made.setdefault("fallbackProviders", self._fallbacks(source))
            elif key == "synthesis":
                made["synthesis"] = self._synthesis(source)
            elif key == "replicas":
                self._replicas(source, made)
            elif key == "success_policy":
                made["successPolicy"] = source.data
            elif key not in ("name", "agent", "agents", "iteration_strategy", "llm_backend", "backend"):
                self.left_out(source)
        if strategy := self._strategy(stage):
            made.setdefault("iterationStrategy", strategy)
        policy = self._defaults.data.get("success_policy") if self._defaults else None
        if policy and (len(found) > 1 or made.get("replicas") not in (None, 1)):
            made.setdefault("successPolicy", policy)
        return made

    def _replicas(self, source: Source, made: JSON) -> None:
        if "agent" in made:
            made["replicas"] = source.data
        elif source.data not in (None, 1):
            self.problems.append(source.problem(f"{source.told}: replicas go with one agent: list the agents instead"))

    def _member(self, member: Source, *, speaks: bool) -> JSON:
        made: JSON = {"name": self._agent_name(member)}
        for key in member.data if isinstance(member.data, dict) else ():
            source = member.at(key)
            if key in _SAME_STAGE:
                made[_SAME_STAGE[key]] = source.data
            elif key == "fallback_providers":
                made["fallbackProviders"] = self._fallbacks(source)
            elif key not in ("name", "iteration_strategy", "llm_backend", "backend"):
                self.left_out(source)
        strategy = self._strategy(member) if isinstance(member.data, dict) else None
        if strategy is None and speaks:
            strategy = self._default_strategy()
        return made | ({"iterationStrategy": strategy} if strategy else {})

    def _synthesis(self, synthesis: Source) -> Any:
        made = self._block(synthesis, ("agent", "llm_provider", "iteration_strategy"))
        if (
            isinstance(made, dict)
            and "iterationStrategy" not in made
            and (backend := synthesis.data.get("llm_backend"))
        ):
            made["iterationStrategy"] = "synthesis-native-thinking" if backend == "google-native" else "synthesis"
        return made

    def _block(self, block: Source, keys: Iterable[str], *, case: Callable[[str], str] = base.camel) -> Any:
        """A block of some keys, written in a `case`; what is none stays as it is, to be refused."""
        if not isinstance(block.data, dict):
            return block.data
        made: JSON = {}
        for key in block.data:
            source = block.at(key)
            if key == "agent":
                made[key] = self._agent_name(source)
            elif key in keys:
                made[case(key)] = source.data
            elif not (key == "llm_backend" and "iteration_strategy" in keys):
                self.left_out(source)
        return made

    # What stands in several places

    def _agent_name(self, source: Source) -> str:
        identifier = former.named_agent(source)
        found = former.agent_name(identifier)
        if found is None:
            self.problems.append(source.problem(f"Invalid agent identifier format: {identifier}"))
        return found or identifier

    def _strategy(self, source: Source) -> str | None:
        """The strategy that is said there, or that of the backend that is said there."""
        if strategy := source.data.get("iteration_strategy"):
            return str(strategy)
        backend = source.data.get("llm_backend") or source.data.get("backend")
        if backend is not None and str(backend) not in _STRATEGIES:
            there = ", ".join(_STRATEGIES)
            self.problems.append(source.problem(f"{source.told}: unknown backend '{backend}'. Available: {there}"))
        return _STRATEGIES.get(str(backend))

    def _fallbacks(self, fallbacks: Source) -> Any:
        """The names in a list of names, or of mappings of provider and backend."""
        if not isinstance(fallbacks.data, list):
            return fallbacks.data
        made = []
        for source in fallbacks.entries():
            if isinstance(source.data, dict):
                made.append(source.data.get("provider"))
                for key in source.data.keys() - {"provider"}:
                    self.say(source.at(key), "the provider's type says how it is asked: left out")
            else:
                made.append(source.data)
        return made

    def _text(self, source: Source) -> Any:
        """What stands there, with its variables as the platform file writes them."""
        if str(source.place[-1]) in _TEXTS:
            return source.data
        return _renamed(source.data)

    def _says_variables(self, source: Source) -> None:
        if re.search(r"\{\{\s*\.[A-Za-z_]\w*\s*\}\}", str(source.data)):
            self.say(source, "no variables are put into chains: {{.VAR}} stays text there")

    def _dns(self, source: Source, name: str) -> str:
        """A name as objects and stages may have it."""
        made = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].rstrip("-")
        if not made:
            self.problems.append(source.problem(f"{source.told}: a name without letters and digits"))
        elif made != name:
            self.say(source, f"is called '{made}': lower-case letters, digits and dashes")
        return made


def _is_list(source: Source) -> bool:
    return isinstance(source.data, list)


def _renamed(data: Any) -> Any:
    if isinstance(data, str):
        return _OLD_VARIABLE.sub(r"{{.\1}}", data)
    if isinstance(data, dict):
        return {key: _renamed(value) for key, value in data.items()}
    return [_renamed(value) for value in data] if isinstance(data, list) else data


@dataclass(frozen=True, kw_only=True)
class _Made(files.Document):
    """What was made, whose problems are told where their cause stands."""

    sources: Mapping[str, Source] = field(repr=False)
    """By the beginning of the place, in what was made."""

    def problem(self, place: files.Place, message: str) -> files.Problem:
        """What is wrong, where that comes from."""
        steps = tuple(to_snake(step) if isinstance(step, str) else step for step in place)
        for length in (2, 1, 0):
            source = self.sources.get(files.told(place[:length]))
            if source is not None:
                return source.document.problem((*source.place, *steps[length:]), message)
        return super().problem(place, message)


def _wrong(sources: former.Sources, platform: JSON, chains: Mapping[str, JSON]) -> list[files.Problem]:
    """What is wrong with what was made."""
    named = {
        files.told((section, name)): one for section, found in sources.named.items() for name, one in found.items()
    }
    first = next(iter([*named.values(), *sources.settings.values()]))
    document = _Made(file=first.document.file, data=platform, node=None, sources=named | sources.settings)
    try:
        loaded = load.loaded(document, environment=None)
    except files.FileError as error:
        return error.problems
    manifests: list[files.Document] = [
        _Made(
            file=sources.named["agent_chains"][name].document.file,
            data=manifest,
            node=None,
            sources={"spec": sources.named["agent_chains"][name]},
        )
        for name, manifest in chains.items()
    ]
    return lint.problems(manifests, platform=loaded.platform)

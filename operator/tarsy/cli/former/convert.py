"""Turns the founding documents' YAML into manifests of chains and a platform file; what has no place is named.

What is made is checked as the files of people are, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_snake

from tarsy.cli.former import common, convert_chains, layout
from tarsy.config.check import lint
from tarsy.config.load import builtin, loader
from tarsy.config.model import summarization
from tarsy.masking import secret_patterns
from tarsy.resources import files

PLATFORM = "tarsy.yaml"
"""The name of the platform file; the manifest of a chain has the chain's name."""
_ALWAYS = "kubernetes_secret"
"""The pattern that masked Kubernetes Secrets, if it was asked for."""
_OLD_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WHOLE_VARIABLE = re.compile(r"\{\{\s*\.([A-Z_][A-Z0-9_]*)\s*\}\}")
"""One of the platform file's, as the name of a variable may be."""
_SAME_TRANSPORT = {
    **{key: key for key in ("type", "command", "args", "env", "url")},
    "custom_headers": "headers",
    "verify_ssl": "verify",
}
_TEXTS = ("instructions", "custom_instructions", "description")
"""The fields in which `${VAR}` is text, such as a command for a reader."""
_ENVIRONMENT = {"credentials_env": "credentials_file", "project_env": "project", "location_env": "location"}
"""The fields of a provider that named a variable, and now hold that variable's value."""

JSON = common.JSON
Source = layout.Source


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The result of a conversion."""

    texts: dict[str, str]
    """By the names of their files."""
    notes: list[files.Problem]
    """Settings without a counterpart, and settings with a possibly different meaning."""


def convert(documents: Sequence[files.Document]) -> Converted:
    """Manifests and a platform file of what stands in `documents`; a FileError says what cannot be converted."""
    sources = layout.gathered(documents)
    if not any(sources.named.values()) and not sources.settings and not sources.problems:
        expected = ", ".join((*layout.SECTIONS, *layout.SETTINGS))
        sources.problems.append(documents[0].problem((), f"nothing to convert: expected one of {expected}"))
    converter = _Converter(sources)
    converter.problems += layout.refusals(sources)
    if converter.problems:
        raise files.FileError(sorted(converter.problems))
    chained = convert_chains.Chains(sources)
    platform, chains = converter.platform(), chained.chains()
    if not converter.problems:
        converter.problems += _wrong(sources, platform, chains)
    if converter.problems:
        raise files.FileError(sorted(converter.problems))
    texts = {f"{manifest['metadata']['name']}.yaml": files.written(manifest) for manifest in chains.values()}
    notes = sorted({*converter.notes, *chained.notes})
    return Converted(texts={PLATFORM: files.written(platform)} | texts, notes=notes)


class _Converter(common.Converting):
    """Makes the platform file of the sources."""

    def __init__(self, sources: layout.Sources) -> None:
        super().__init__(sources)
        for source in sources.unknown:
            self.left_out(source)
        self._system = sources.settings.get("system")

    def platform(self) -> JSON:
        """The platform file."""
        made = {
            "defaults": self._made_defaults(),
            "llm_providers": self._section("llm_providers", self._provider),
            "mcp_servers": self._servers(),
            "agents": self._section("agents", self._agent),
            "queue": self._made_queue(),
            "runbooks": self._runbooks(),
        }
        if self._defaults and "alert_type" in self._defaults.data:
            made["ingest"] = {"default_alert_type": self._defaults.data["alert_type"]}
        return {key: value for key, value in made.items() if value}

    def _section(self, name: str, make: Callable[[Source], JSON]) -> JSON:
        return {key: make(source) for key, source in self._sources.named[name].items()}

    def _servers(self) -> JSON:
        """The MCP servers; a disabled one has no place, and a built-in one that is disabled is taken out by null."""
        disabled = self._sources.disabled_servers
        made: JSON = {}
        for name, server in self._sources.named["mcp_servers"].items():
            if name not in disabled:
                made[name] = self._server(server)
                continue
            self.say(disabled[name], f"MCP server '{name}' is disabled: left out")
            if name in builtin.PLATFORM["mcp_servers"]:
                made[name] = None
        return made

    def _made_defaults(self) -> JSON:
        if self._defaults is None:
            return {"iteration_strategy": common.FORMER_STRATEGY} if self._sources.named["agent_chains"] else {}
        made: JSON = {}
        for key in self._defaults.data:
            source = self._defaults.at(key)
            match key:
                case "llm_provider" | "max_iterations":
                    made[key] = self._text(source)
                case "runbook":
                    made |= {key: source.data} if source.data else {}
                case "fallback_providers":
                    made[key] = self._fallbacks(source)
                case "iteration_strategy" | "llm_backend" | "backend" | "success_policy" | "alert_type":
                    pass  # below, with the stages, with `ingest`
                case "alert_masking":
                    made[key] = self._block(source, ("enabled", "pattern_group"), case=str)
                case _:
                    self.left_out(source)
        return made | {"iteration_strategy": self._default_strategy()}

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
            elif key in layout.LATER and key != "type":
                self.left_out(source)
            else:
                made[key] = self._text(source)
        return made

    def _native_tools(self, source: Source) -> Any:
        """Return the wanted tools of a mapping from tools to booleans."""
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
            elif key in layout.SWITCHES:
                if not isinstance(source.data, bool):
                    self.problems.append(source.problem(f"{source.path_text}: expected true or false"))
            elif key == "summarization":
                made[key] = self._block(source, summarization.Summarization.model_fields, case=str)
            else:
                self.left_out(source)
        if not made.get("transport"):
            self.problems.append(server.problem(f"{server.path_text}: transport is missing"))
        return made

    def _transport(self, transport: Source) -> JSON:
        made: JSON = {}
        for key in transport.data:
            source = transport.at(key)
            if key in _SAME_TRANSPORT:
                made[_SAME_TRANSPORT[key]] = self._text(source)
            elif key == "timeout":
                is_number = isinstance(source.data, int) and not isinstance(source.data, bool)
                made[key] = f"{source.data}s" if is_number else source.data
            elif key == "bearer_token":
                made |= self._token(source)
            else:
                self.left_out(source)
        for key in ("env", "headers"):
            if isinstance(made.get(key), dict):
                made[key] = {name: str(value) for name, value in made[key].items()}
        return made

    def _token(self, source: Source) -> JSON:
        """A token, which is named by its variable now."""
        if named := _WHOLE_VARIABLE.fullmatch(str(self._text(source))):
            return {"bearer_token_env": named[1]}
        self.say(source, "give it by bearer_token_env or bearer_token_file: left out")
        return {}

    def _masking(self, masking: Source) -> JSON:
        made: JSON = {}
        for key in masking.data:
            source = masking.at(key)
            there: Iterable[str] = {"pattern_groups": secret_patterns.GROUPS, "patterns": secret_patterns.NAMES}.get(
                str(key), ()
            )
            if key == "enabled" or (
                key in ("pattern_groups", "patterns", "custom_patterns") and not isinstance(source.data, list)
            ):
                made[key] = source.data
            elif there:
                made[key] = self._existing(source, there)
            elif key == "custom_patterns":
                made[key] = [self._custom_pattern(entry, index) for index, entry in enumerate(source.entries(), 1)]
            else:
                self.left_out(source)
        return made

    def _existing(self, source: Source, there: Iterable[str]) -> list[str]:
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
            if key in ("custom_instructions", "llm_provider", "max_iterations"):
                made[key] = self._text(source)
            elif key == "mcp_servers":
                made[key] = _renamed(self._mcp_servers(source))
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
                if layout.seconds(source.data) is None:
                    self.problems.append(source.problem(f"{source.path_text}: not a duration, such as 40m"))
            else:
                self.left_out(source)
        return made

    def _runbooks(self) -> JSON:
        """Return the section `system`, of which only runbooks have a counterpart."""
        made: JSON = {}
        for key in self._system.data if self._system else ():
            assert self._system  # noqa: S101 - it has the key
            source = self._system.at(key)
            if key == "runbooks" and isinstance(source.data, dict):
                made |= self._block(source, ("allowed_domains",), case=str)
            elif key == "github" and isinstance(source.data, dict):
                made |= self._block(source, ("token_env",), case=str)
            else:
                self.left_out(source)
        return made

    def _text(self, source: Source) -> Any:
        """Return the text, with its variables in the platform file's spelling."""
        if str(source.place[-1]) in _TEXTS:
            return source.data
        return _renamed(source.data)


def _renamed(node: Any) -> Any:
    if isinstance(node, str):
        return _OLD_VARIABLE.sub(r"{{.\1}}", node)
    if isinstance(node, dict):
        return {key: _renamed(value) for key, value in node.items()}
    return [_renamed(value) for value in node] if isinstance(node, list) else node


@dataclass(frozen=True, kw_only=True)
class _Made(files.Document):
    """The converted files, whose problems are reported at their causes."""

    sources: Mapping[str, Source] = field(repr=False)
    """By the beginning of the place, in what was made."""

    def problem(self, path: files.Place, message: str) -> files.Problem:
        """Return the problem at its cause in the source."""
        steps = tuple(to_snake(step) if isinstance(step, str) else step for step in path)
        for length in (2, 1, 0):
            source = self.sources.get(files.path_text(path[:length]))
            if source is not None:
                return source.document.problem((*source.place, *steps[length:]), message)
        return super().problem(path, message)


def _wrong(sources: layout.Sources, platform: JSON, chains: Mapping[str, JSON]) -> list[files.Problem]:
    """Return the problems of the converted files."""
    named = {
        files.path_text((section, name)): source
        for section, named_sources in sources.named.items()
        for name, source in named_sources.items()
    }
    first = next(iter([*named.values(), *sources.settings.values()]))
    document = _Made(file=first.document.file, data=platform, node=None, sources=named | sources.settings)
    try:
        loaded = loader.loaded(document, environment=None)
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

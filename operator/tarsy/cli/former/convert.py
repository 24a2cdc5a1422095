"""Conversion of the founding documents' YAML into a platform file and manifests of chains.

Settings without a counterpart are listed in notes. The result gets the same checks as handwritten files before anything
is written.
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
_ALWAYS_MASKED = "kubernetes_secret"
"""The former pattern for Kubernetes' Secrets, which TARSy always masks."""
_AVAILABLE_MASKING = {"pattern_groups": secret_patterns.GROUPS, "patterns": secret_patterns.NAMES}
_OLD_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WHOLE_VARIABLE = re.compile(r"\{\{\s*\.([A-Z_][A-Z0-9_]*)\s*\}\}")
"""A text that is only a variable, in the platform file's spelling."""
_SAME_TRANSPORT = {
    **{key: key for key in ("type", "command", "args", "env", "url")},
    "custom_headers": "headers",
    "verify_ssl": "verify",
}
_FREE_TEXT = ("instructions", "custom_instructions", "description")
"""The fields in which `${VAR}` is text and not a variable, such as a command for a reader."""
_ENVIRONMENT = {"credentials_env": "credentials_file", "project_env": "project", "location_env": "location"}
"""The fields of a provider that named an environment variable, each with the field that has its value now."""

JSON = common.JSON
Source = layout.Source


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The result of a conversion."""

    texts: dict[str, str]
    """The texts of the files, by name."""
    notes: list[files.Problem]
    """Settings without a counterpart, and settings whose meaning may change."""


def convert(documents: Sequence[files.Document]) -> Converted:
    """Convert `documents` into a platform file and manifests; raises FileError if they cannot be converted."""
    sources = layout.gather(documents)
    if not any(sources.sections.values()) and not sources.settings and not sources.problems:
        expected = ", ".join((*layout.SECTIONS, *layout.SETTINGS))
        sources.problems.append(documents[0].problem((), f"nothing to convert: expected one of {expected}"))
    converter = _PlatformConverter(sources)
    converter.problems += layout.refusals(sources)
    if converter.problems:
        raise files.FileError(sorted(converter.problems))
    chain_converter = convert_chains.ChainConverter(sources)
    platform, chains = converter.platform(), chain_converter.chains()
    if not converter.problems:
        converter.problems += _problems(sources, platform, chains)
    if converter.problems:
        raise files.FileError(sorted(converter.problems))
    texts = {f"{manifest['metadata']['name']}.yaml": files.to_yaml(manifest) for manifest in chains.values()}
    notes = sorted({*converter.notes, *chain_converter.notes})
    return Converted(texts={PLATFORM: files.to_yaml(platform)} | texts, notes=notes)


class _PlatformConverter(common.Converter):
    """Converts the sources into a platform file."""

    def __init__(self, sources: layout.Sources) -> None:
        super().__init__(sources)
        for source in sources.unknown:
            self.omit(source)
        self._system = sources.settings.get("system")

    def platform(self) -> JSON:
        """Return the content of the platform file."""
        converted = {
            "defaults": self._defaults_section(),
            "llm_providers": self._section("llm_providers", self._provider),
            "mcp_servers": self._servers(),
            "agents": self._section("agents", self._agent),
            "queue": self._queue_section(),
            "runbooks": self._runbooks(),
        }
        if self._defaults and "alert_type" in self._defaults.value:
            converted["ingest"] = {"default_alert_type": self._defaults.value["alert_type"]}
        return {key: value for key, value in converted.items() if value}

    def _section(self, name: str, convert_member: Callable[[Source], JSON]) -> JSON:
        return {key: convert_member(source) for key, source in self._sources.sections[name].items()}

    def _servers(self) -> JSON:
        """Return the MCP servers. A disabled server is left out; a built-in server is disabled by null."""
        disabled = self._sources.disabled_servers
        converted: JSON = {}
        for name, server in self._sources.sections["mcp_servers"].items():
            if name not in disabled:
                converted[name] = self._server(server)
                continue
            self.note(disabled[name], f"MCP server '{name}' is disabled: left out")
            if name in builtin.PLATFORM["mcp_servers"]:
                converted[name] = None
        return converted

    def _defaults_section(self) -> JSON:
        if self._defaults is None:
            return {"iteration_strategy": common.FORMER_STRATEGY} if self._sources.sections["agent_chains"] else {}
        converted: JSON = {}
        for key in self._defaults.value:
            source = self._defaults.at(key)
            match key:
                case "llm_provider" | "max_iterations":
                    converted[key] = self._text(source)
                case "runbook":
                    converted |= {key: source.value} if source.value else {}
                case "fallback_providers":
                    converted[key] = self._fallbacks(source)
                case "iteration_strategy" | "llm_backend" | "backend" | "success_policy" | "alert_type":
                    pass  # converted below, with the stages, and in `platform`
                case "alert_masking":
                    converted[key] = self._block(source, ("enabled", "pattern_group"), case=str)
                case _:
                    self.omit(source)
        return converted | {"iteration_strategy": self._default_strategy()}

    def _provider(self, provider: Source) -> JSON:
        converted: JSON = {}
        for key in provider.value:
            source = provider.at(key)
            if key in _ENVIRONMENT and isinstance(source.value, str):
                converted[_ENVIRONMENT[key]] = "{{." + source.value + "}}"
            elif key == "native_tools":
                converted[key] = self._native_tools(source)
            elif key in ("backend", "llm_backend"):
                self.note(source, "the provider's type decides the backend: left out")
            elif key == "api_key_env" and provider.value.get("type") == "vertexai":
                self.note(source, "vertexai takes credentials, not a key: left out")
            elif key in layout.LATER and key != "type":
                self.omit(source)
            else:
                converted[key] = self._text(source)
        return converted

    def _native_tools(self, source: Source) -> Any:
        """Return the wanted tools of a mapping from tools to booleans."""
        if isinstance(source.value, dict):
            return [tool for tool, is_wanted in source.value.items() if is_wanted]
        return source.value

    def _server(self, server: Source) -> JSON:
        converted: JSON = {}
        for key in server.value:
            source = server.at(key)
            if key == "transport" and isinstance(source.value, dict):
                converted[key] = self._transport(source)
            elif key == "data_masking":
                converted[key] = self._masking(source) if isinstance(source.value, dict) else source.value
            elif key == "instructions":
                converted[key] = source.value or ""
            elif key in layout.SWITCHES:
                if not isinstance(source.value, bool):
                    self.problems.append(source.problem(f"{source.path_text}: expected true or false"))
            elif key == "summarization":
                converted[key] = self._block(source, summarization.Summarization.model_fields, case=str)
            else:
                self.omit(source)
        if not converted.get("transport"):
            self.problems.append(server.problem(f"{server.path_text}: transport is missing"))
        return converted

    def _transport(self, transport: Source) -> JSON:
        converted: JSON = {}
        for key in transport.value:
            source = transport.at(key)
            if key in _SAME_TRANSPORT:
                converted[_SAME_TRANSPORT[key]] = self._text(source)
            elif key == "timeout":
                is_number = isinstance(source.value, int) and not isinstance(source.value, bool)
                converted[key] = f"{source.value}s" if is_number else source.value
            elif key == "bearer_token":
                converted |= self._token(source)
            else:
                self.omit(source)
        for key in ("env", "headers"):
            if isinstance(converted.get(key), dict):
                converted[key] = {name: str(value) for name, value in converted[key].items()}
        return converted

    def _token(self, source: Source) -> JSON:
        """Return the variable of a token; a literal token is left out."""
        if variable := _WHOLE_VARIABLE.fullmatch(str(self._text(source))):
            return {"bearer_token_env": variable[1]}
        self.note(source, "set bearer_token_env or bearer_token_file instead: left out")
        return {}

    def _masking(self, masking: Source) -> JSON:
        converted: JSON = {}
        for key in masking.value:
            source = masking.at(key)
            available: Iterable[str] = _AVAILABLE_MASKING.get(str(key), ())
            if key == "enabled" or (
                key in ("pattern_groups", "patterns", "custom_patterns") and not isinstance(source.value, list)
            ):
                converted[key] = source.value
            elif available:
                converted[key] = self._supported_patterns(source, available)
            elif key == "custom_patterns":
                converted[key] = [self._custom_pattern(entry, index) for index, entry in enumerate(source.entries(), 1)]
            else:
                self.omit(source)
        return converted

    def _supported_patterns(self, source: Source, available: Iterable[str]) -> list[str]:
        converted = []
        for entry in source.entries():
            if str(entry.value) in available:
                converted.append(entry.value)
            elif entry.value == _ALWAYS_MASKED:
                self.note(entry, "Kubernetes' Secrets are always masked: left out")
            else:
                self.note(entry, f"TARSy does not have '{entry.value}'. Available: {', '.join(available)}")
        return converted

    def _custom_pattern(self, source: Source, number: int) -> Any:
        """Return a custom pattern with a name: TARSy requires one."""
        if not isinstance(source.value, dict):
            return source.value
        converted = {"name": source.value.get("name", f"custom_{number}")}
        for key in source.value:
            if key in ("pattern", "replacement"):
                converted[key] = source.value[key]
            elif key != "name":
                self.omit(source.at(key))
        return converted

    def _agent(self, agent: Source) -> JSON:
        converted: JSON = {}
        for key in agent.value:
            source = agent.at(key)
            if key in ("custom_instructions", "llm_provider", "max_iterations"):
                converted[key] = self._text(source)
            elif key == "mcp_servers":
                converted[key] = _with_new_variables(self._mcp_servers(source))
            elif key == "native_tools":
                converted[key] = self._native_tools(source)
            elif key == "alert_types":
                self.note(source, "chains take alert types, and agents do not: left out")
            elif key not in ("iteration_strategy", "llm_backend", "backend"):
                self.omit(source)
        strategy = self._strategy(agent)
        return converted | ({"iteration_strategy": strategy} if strategy else {})

    def _queue_section(self) -> JSON:
        converted: JSON = {}
        if self._queue is None:
            return converted
        for key in self._queue.value:
            source = self._queue.at(key)
            if key in ("worker_count", "max_concurrent_sessions"):
                converted["slots" if key == "worker_count" else "max_running"] = source.value
            elif key == "session_timeout":
                if layout.seconds(source.value) is None:
                    self.problems.append(source.problem(f"{source.path_text}: not a duration, such as 40m"))
            else:
                self.omit(source)
        return converted

    def _runbooks(self) -> JSON:
        """Return the settings of runbooks in the section `system`; its other settings have no counterpart."""
        converted: JSON = {}
        for key in self._system.value if self._system else ():
            assert self._system  # noqa: S101 - it has the key
            source = self._system.at(key)
            if key == "runbooks" and isinstance(source.value, dict):
                converted |= self._block(source, ("allowed_domains",), case=str)
            elif key == "github" and isinstance(source.value, dict):
                converted |= self._block(source, ("token_env",), case=str)
            else:
                self.omit(source)
        return converted

    def _text(self, source: Source) -> Any:
        """Return the text, with its variables in the platform file's spelling."""
        if str(source.path[-1]) in _FREE_TEXT:
            return source.value
        return _with_new_variables(source.value)


def _with_new_variables(node: Any) -> Any:
    if isinstance(node, str):
        return _OLD_VARIABLE.sub(r"{{.\1}}", node)
    if isinstance(node, dict):
        return {key: _with_new_variables(value) for key, value in node.items()}
    return [_with_new_variables(value) for value in node] if isinstance(node, list) else node


@dataclass(frozen=True, kw_only=True)
class _ConvertedDocument(files.Document):
    """A converted document. Its problems are reported at the line of the source that caused them."""

    sources: Mapping[str, Source] = field(repr=False)
    """The sources, by the first keys of paths in the converted document."""

    def problem(self, path: files.KeyPath, message: str) -> files.Problem:
        """Return the problem at the line of its source."""
        steps = tuple(to_snake(step) if isinstance(step, str) else step for step in path)
        for length in (2, 1, 0):
            source = self.sources.get(files.path_text(path[:length]))
            if source is not None:
                return source.document.problem((*source.path, *steps[length:]), message)
        return super().problem(path, message)


def _problems(sources: layout.Sources, platform: JSON, chains: Mapping[str, JSON]) -> list[files.Problem]:
    """Return the problems of the converted files."""
    by_path = {
        files.path_text((section, name)): source
        for section, members in sources.sections.items()
        for name, source in members.items()
    } | sources.settings
    first = next(iter(by_path.values()))
    document = _ConvertedDocument(file=first.document.file, value=platform, node=None, sources=by_path)
    try:
        loaded = loader.loaded(document, environment=None)
    except files.FileError as error:
        return error.problems
    manifests: list[files.Document] = [
        _ConvertedDocument(
            file=sources.sections["agent_chains"][name].document.file,
            value=manifest,
            node=None,
            sources={"spec": sources.sections["agent_chains"][name]},
        )
        for name, manifest in chains.items()
    ]
    return lint.problems(manifests, platform=loaded.platform)

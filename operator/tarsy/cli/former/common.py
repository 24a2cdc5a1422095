"""The common base of the two converters: of platform files, and of chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tarsy.cli.former import layout
from tarsy.resources import base, files

FORMER_STRATEGY = "react"
"""The default strategy of the former format."""
_STRATEGIES = {"google-native": "native-thinking", "langchain": "react"}
"""The default strategy of each former backend."""

JSON = dict[str, Any]
Source = layout.Source


class Converter:
    """Converts the sources, and collects notes and problems."""

    def __init__(self, sources: layout.Sources) -> None:
        self.notes: list[files.Problem] = []
        """Settings without a counterpart, and settings whose meaning may change."""
        self.problems = sources.problems
        """The problems of all these sources: both converters add to one list."""
        self._sources = sources
        self._defaults = sources.settings.get("defaults")
        self._queue = sources.settings.get("queue")

    def omit(self, source: Source) -> None:
        """Note that a setting has no counterpart."""
        why = "TARSy does not have this yet" if str(source.path[-1]) in layout.LATER else "this has no place in TARSy"
        self.note(source, f"{why}: left out")

    def note(self, source: Source, message: str) -> None:
        """Note how a setting was converted."""
        self.notes.append(source.problem(f"{source.path_text}: {message}"))

    def _default_strategy(self) -> str:
        return (self._strategy(self._defaults) if self._defaults else None) or FORMER_STRATEGY

    def _block(self, block: Source, keys: Iterable[str], *, case: Callable[[str], str] = base.camel) -> Any:
        """Return a mapping with those of its keys that are in `keys`, each converted by `case`.

        Anything but a mapping is returned as it is: the check of the result refuses it.
        """
        if not isinstance(block.value, dict):
            return block.value
        converted: JSON = {}
        for key in block.value:
            source = block.at(key)
            if key == "agent":
                converted[key] = self._agent_name(source)
            elif key in keys:
                converted[case(key)] = source.value
            elif not (key == "llm_backend" and "iteration_strategy" in keys):
                self.omit(source)
        return converted

    def _agent_name(self, source: Source) -> str:
        identifier = layout.named_agent(source)
        name = layout.agent_name(identifier)
        if name is None:
            self.problems.append(source.problem(f"Invalid agent identifier format: {identifier}"))
        return name or identifier

    def _mcp_servers(self, servers: Source) -> Any:
        """Return the names in a list of MCP servers, without those of disabled servers."""
        disabled = self._sources.disabled_servers
        if not isinstance(servers.value, list) or not disabled:
            return servers.value
        converted = []
        for source in servers.entries():
            if isinstance(source.value, str) and source.value in disabled:
                self.note(source, f"MCP server '{source.value}' is disabled: left out")
            else:
                converted.append(source.value)
        return converted

    def _strategy(self, source: Source) -> str | None:
        """Return the strategy that a setting names, or that of the backend that it names."""
        if strategy := source.value.get("iteration_strategy"):
            return str(strategy)
        backend = source.value.get("llm_backend") or source.value.get("backend")
        if backend is not None and str(backend) not in _STRATEGIES:
            problem = f"{source.path_text}: unknown backend '{backend}'. Available: {', '.join(_STRATEGIES)}"
            self.problems.append(source.problem(problem))
        return _STRATEGIES.get(str(backend))

    def _fallbacks(self, fallbacks: Source) -> Any:
        """Return the names in a list of names, or of mappings with provider and backend."""
        if not isinstance(fallbacks.value, list):
            return fallbacks.value
        converted = []
        for source in fallbacks.entries():
            if isinstance(source.value, dict):
                converted.append(source.value.get("provider"))
                for key in source.value.keys() - {"provider"}:
                    self.note(source.at(key), "the provider's type decides the backend: left out")
            else:
                converted.append(source.value)
        return converted

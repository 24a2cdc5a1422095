"""The common base of converting the founding documents' YAML into a platform file and chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tarsy.cli.former import layout
from tarsy.resources import base, files

FORMER_STRATEGY = "react"
"""The strategy that ran without any setting."""
_STRATEGIES = {"google-native": "native-thinking", "langchain": "react"}
"""The strategy that ran on a backend without a strategy."""

JSON = dict[str, Any]
Source = layout.Source


class Converting:
    """Goes through the sources, and keeps what is to be said of them."""

    def __init__(self, sources: layout.Sources) -> None:
        self.notes: list[files.Problem] = []
        """Settings without a counterpart, and settings that changed."""
        self.problems = sources.problems
        """The problems of everything that was read from these sources."""
        self._sources = sources
        self._defaults = sources.settings.get("defaults")
        self._queue = sources.settings.get("queue")

    def left_out(self, source: Source) -> None:
        """Say that something has no place."""
        key = str(source.place[-1])
        why = "TARSy does not have this yet" if key in layout.LATER else "this has no place in TARSy"
        self.notes.append(source.problem(f"{source.path_text}: {why}: left out"))

    def say(self, source: Source, message: str) -> None:
        """Say what became of something."""
        self.notes.append(source.problem(f"{source.path_text}: {message}"))

    def _default_strategy(self) -> str:
        return (self._strategy(self._defaults) if self._defaults else None) or FORMER_STRATEGY

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

    def _agent_name(self, source: Source) -> str:
        identifier = layout.named_agent(source)
        name = layout.agent_name(identifier)
        if name is None:
            self.problems.append(source.problem(f"Invalid agent identifier format: {identifier}"))
        return name or identifier

    def _mcp_servers(self, servers: Source) -> Any:
        """The names in a list of MCP servers, without those that are disabled."""
        disabled = self._sources.disabled_servers
        if not isinstance(servers.data, list) or not disabled:
            return servers.data
        made = []
        for source in servers.entries():
            if isinstance(source.data, str) and source.data in disabled:
                self.say(source, f"MCP server '{source.data}' is disabled: left out")
            else:
                made.append(source.data)
        return made

    def _strategy(self, source: Source) -> str | None:
        """The strategy that is said there, or that of the backend that is said there."""
        if strategy := source.data.get("iteration_strategy"):
            return str(strategy)
        backend = source.data.get("llm_backend") or source.data.get("backend")
        if backend is not None and str(backend) not in _STRATEGIES:
            there = ", ".join(_STRATEGIES)
            self.problems.append(source.problem(f"{source.path_text}: unknown backend '{backend}'. Available: {there}"))
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

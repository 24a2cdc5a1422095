"""Reads the platform file; what is wrong is said with file, place and, where there is a choice, what there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pydantic
import yaml

from tarsy.config import platform


class ConfigError(Exception):
    """The configuration cannot be used; the message says where and why, one problem a line."""


def platform_file(path: Path) -> platform.Platform:
    """Load and check the platform file at `path`; a ConfigError lists everything that is wrong with it."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    try:
        loaded = platform.Platform.model_validate(data or {})
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_place(e['loc'])}: {e['msg']}" for e in error.errors())) from error
    if problems := list(_dangling(loaded)):
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems))
    return loaded


def _place(location: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in location) or "the file"


def _dangling(loaded: platform.Platform) -> Iterator[str]:
    def missing(place: str, name: str | None, kind: str, names: Iterable[str]) -> Iterator[str]:
        if name is not None and name not in names:
            yield f"{place}: unknown {kind} '{name}'. Available: {', '.join(sorted(names)) or 'none'}"

    yield from missing("defaults.llm_provider", loaded.defaults.llm_provider, "provider", loaded.llm_providers)
    for name, agent in loaded.agents.items():
        yield from missing(f"agents.{name}.llm_provider", agent.llm_provider, "provider", loaded.llm_providers)
        for server in agent.mcp_servers:
            yield from missing(f"agents.{name}.mcp_servers", server, "MCP server", loaded.mcp_servers)

"""Reads the platform file; what is wrong is said with file, place and, where there is a choice, what there is.

Never with the value that is wrong: it may be a key that was written into the wrong field, and errors are logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
import pydantic_core
import yaml

from tarsy.config import builtin, platform

_QUOTED = re.compile(r"""(['"](?:.|<[a-z -]+>)['"])|['"].*""", re.DOTALL)
"""A character or a kind of token in quotes; or else a quote, and all that follows."""


_KINDS = {
    "tag:yaml.org,2002:timestamp": "a date that is none",
    "tag:yaml.org,2002:int": "a number that is none",
    "tag:yaml.org,2002:float": "a number that is none",
}
"""What is wrong with a value, by its tag, that does not fit."""


class ConfigError(Exception):
    """The configuration cannot be used; the message says where and why, one problem a line."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A platform file that was read."""

    platform: platform.Platform
    written: Mapping[str, Any] = field(repr=False)
    """What stands in the file, before anything is put beside it. Secrets may be among it (see `shown`)."""


def platform_file(path: Path | None) -> platform.Platform:
    """Load and check the platform file at `path`, laid over what is built in; None is what is built in alone.

    Of agents, servers and providers the same name replaces the built-in one whole. A ConfigError lists everything that
    is wrong.
    """
    return as_written(path).platform


def as_written(path: Path | None) -> Loaded:
    """What `platform_file` loads, and what stands in the file."""
    where = str(path or "the built-in platform")
    data = _read(path) if path else {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected a mapping of {', '.join(platform.Platform.model_fields)}")
    try:
        loaded = platform.Platform.model_validate(_laid_over_builtin(data))
    except pydantic.ValidationError as error:
        found = ((_place(e["loc"]), _problem(e)) for e in error.errors(include_input=False))
        raise ConfigError("\n".join(f"{where}: {place}: {message}" for place, message in found)) from error
    if problems := list(_dangling(loaded)):
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
    return Loaded(platform=loaded, written=data)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but for keys that are there twice: it would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # what is none, PyYAML tells
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(None, None, "a key is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's
        try:
            return super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # What PyYAML's own constructors stumble over: a date that is none, a tag on what it does not fit.
            kind = _KINDS.get(node.tag, "a value that does not fit its tag")
            raise yaml.constructor.ConstructorError(None, None, kind, node.start_mark) from error


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}: not YAML: {_where_and_what(error)}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{path}: not YAML: a character that is not allowed") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: {_deepest(text)}nested too deep") from error
    return {} if data is None else data


def _deepest(text: str) -> str:
    """Where a text that is nested too deep is at its deepest, as far as that can be told."""
    depth = deepest = 0
    place = ""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > deepest and event.start_mark:
                    deepest, mark = depth, event.start_mark
                    place = f"line {mark.line + 1}, column {mark.column + 1}: "
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, RecursionError):  # it ends in the middle
        return place
    return place


def _laid_over_builtin(data: dict[str, Any]) -> dict[str, Any]:
    return data | {
        section: builtin.PLATFORM[section] | data[section]
        if isinstance(data.get(section), dict)
        else data.get(section, builtin.PLATFORM[section])
        for section in builtin.PLATFORM
    }


def _where_and_what(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's words, without the line it quotes and from where they quote more than a character or a kind of token."""
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + _QUOTED.sub(lambda match: match[1] or "...", error.problem or "cannot be read")


def _problem(error: pydantic_core.ErrorDetails) -> str:
    if error["type"] == "union_tag_invalid":
        return f"expected one of {error['ctx']['expected_tags']}"
    if error["type"] == "union_tag_not_found":
        return "type is missing"
    if error["type"] == "model_type":
        return "expected a mapping"
    return error["msg"].removeprefix("Value error, ")


_TAGGED = {"llm_providers": 2, "mcp_servers": 3}
"""Where pydantic has what `type` says in the places of a section: the file has no such key."""


def _place(location: Sequence[int | str]) -> str:
    tag = _TAGGED.get(str(location[0]), len(location)) if location else 0
    return ".".join(str(part) for index, part in enumerate(location) if index != tag) or "the file"


def _dangling(loaded: platform.Platform) -> Iterator[str]:
    def missing(place: str, name: str | None, kind: str, names: Iterable[str]) -> Iterator[str]:
        if name is not None and name not in names:
            yield f"{place}: unknown {kind}. Available: {', '.join(sorted(names)) or 'none'}"

    yield from missing("defaults.llm_provider", loaded.defaults.llm_provider, "provider", loaded.llm_providers)
    for index, name in enumerate(loaded.defaults.fallback_providers):
        yield from missing(f"defaults.fallback_providers.{index}", name, "provider", loaded.llm_providers)
    for name, agent in loaded.agents.items():
        yield from missing(f"agents.{name}.llm_provider", agent.llm_provider, "provider", loaded.llm_providers)
        if agent.llm_provider in loaded.llm_providers:
            has = loaded.llm_providers[agent.llm_provider].has_native_tools
            for tool in agent.native_tools or ():
                yield from missing(f"agents.{name}.native_tools", tool, f"tool of {agent.llm_provider}", has)
        for server in agent.mcp_servers:
            yield from missing(f"agents.{name}.mcp_servers", server, "MCP server", loaded.mcp_servers)

"""Loads the platform file; each problem has its file, line, place and, for a choice, the alternatives.

No problem quotes the wrong value: it may be a key in the wrong field, and errors are logged.

Strings of the file may name variables of the environment, `{{.NAME}}`. `${NAME}` stays text: shells, queries and
instructions are full of it.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from tarsy.config.load import builtin, validation
from tarsy.config.model import platforms
from tarsy.config.tool_selection import ineffective
from tarsy.resources import files, tool_patterns

_VARIABLE = re.compile(r'\{\{"(\{\{[^"{}]*\}\})"\}\}|\{\{\s*\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}')
"""A variable, `{{.NAME}}`, or the quotation of another program's template, as in Go: `{{"{{.Names}}"}}`."""
_NOWHERE = files.Document(file="the built-in platform", value=None, node=None)
_MISSING = "put the platform file there, or name another by --config or TARSY_CONFIG"


class ConfigError(Exception):
    """The configuration cannot be used; the message says where and why, one problem a line."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A platform file that was read."""

    platform: platforms.Platform
    written: Mapping[str, Any] = field(repr=False)
    """The content of the file, before defaults and variables. It may hold secrets (see `redact.view`)."""
    used: Mapping[str, Any] = field(repr=False)
    """The content with its variables filled in, which may be further secrets."""


def platform_file(path: Path | None, *, environment: Mapping[str, str] | None = os.environ) -> platforms.Platform:
    """Load and check the platform file at `path`, laid over what is built in; None is what is built in alone.

    Of agents, servers and providers the same name replaces the built-in one whole, and null takes the built-in server
    out. A ConfigError lists everything that is wrong. Without an environment, what its variables stand for is not
    looked at, and missing where it would count.
    """
    return as_written(path, environment=environment).platform


def as_written(path: Path | None, *, environment: Mapping[str, str] | None = os.environ) -> Loaded:
    """Return the result of `platform_file` together with the content of the file."""
    try:
        return of_bytes(contents(path), file=str(path), environment=environment) if path else builtin_alone()
    except files.FileError as error:
        raise ConfigError(str(error)) from error


def contents(path: Path) -> bytes:
    """Read the platform file at `path`; a FileError says why it cannot be read, and what to do where it is missing."""
    try:
        return files.contents(path)
    except files.FileError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise files.FileError([files.Problem(file=str(path), line=0, message=unreadable(error.__cause__))]) from error


def unreadable(error: OSError) -> str:
    """Return why the platform file cannot be read, and what to do where it is missing."""
    reason = error.strerror or "cannot be read"
    return f"{reason}: {_MISSING}" if isinstance(error, FileNotFoundError) else reason


def of_bytes(read: bytes, *, file: str, environment: Mapping[str, str] | None) -> Loaded:
    """A platform file in which that stands; a FileError lists everything that is wrong (see `platform_file`)."""
    first, *more = files.parse_bytes(read, file=file)
    if more:
        raise files.FileError([more[0].problem((), "a second document: the platform file is one")])
    return loaded(first, environment=environment)


def builtin_alone() -> Loaded:
    """Return the built-in configuration, without a file."""
    return loaded(_NOWHERE, environment=None)


def loaded(document: files.Document, *, environment: Mapping[str, str] | None) -> Loaded:
    """A platform file that stands in a document; a FileError lists everything that is wrong.

    Without an environment, what its variables stand for is not looked at.
    """
    written = {} if document.value is None else document.value
    if not isinstance(written, dict):
        raise files.FileError(
            [document.problem((), f"expected a mapping of {', '.join(platforms.Platform.model_fields)}")]
        )
    problems = [] if environment is None else list(_variable_problems(document, environment))
    used = _filled(written, environment or {})
    unset = {at for at, text in _variable_places(written) if set(_variables(text)) - (environment or {}).keys()}
    checked = _checked(_laid_over_builtin(used), document, unset=unset, problems=problems)
    if problems:
        raise files.FileError(sorted(problems))
    return Loaded(platform=checked, written=written, used=used)


def _variables(text: str) -> list[str]:
    """Return the variables that `text` names, in order."""
    return [match[2] for match in _VARIABLE.finditer(text) if match[2]]


def _filled(node: Any, environment: Mapping[str, str]) -> Any:
    """Return `node` with the values of its variables; an unset variable stays as it is written."""
    if isinstance(node, str):
        return _VARIABLE.sub(lambda match: match[1] or environment.get(match[2], match[0]), node)
    if isinstance(node, dict):
        return {key: _filled(value, environment) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, environment) for value in node]
    return node


def _variable_places(node: Any, at: validation.KeyPath = ()) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield the place and the text of each string that names variables."""
    if isinstance(node, str):
        if _variables(node):
            yield at, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _variable_places(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _variable_places(value, (*at, index))


def _variable_problems(document: files.Document, environment: Mapping[str, str]) -> Iterator[files.Problem]:
    """Yield the problems of variables: unset variables, and variables in keys."""
    for at, text in _variable_places(document.value):
        for name in dict.fromkeys(_variables(text)):
            if name not in environment:
                message = f"{files.path_text(at)}: the variable {name} is not set: set it in the environment"
                yield document.problem(at, message)
    for at in _variable_keys(document.value):
        yield document.problem(at, f"{files.path_text(at[:-1])}: a key that names a variable: only values may")


def _variable_keys(node: Any, at: validation.KeyPath = ()) -> Iterator[validation.KeyPath]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(key, str) and _variables(key):
                yield (*at, key)
            yield from _variable_keys(value, (*at, key))


def _checked(
    values: dict[str, Any], document: files.Document, *, unset: set[validation.KeyPath], problems: list[files.Problem]
) -> platforms.Platform:
    """The platform that `values` says, as far as it can be had; what is wrong is added to `problems`.

    What is wrong is taken out, so that the rest can be looked at, too. What is then found wrong may be so because
    something is missing: that is not told.
    """
    section_names = {section: list(faults) for section, faults in values.items() if isinstance(faults, dict)}
    broken: list[validation.KeyPath] = []
    is_told = False
    rounds: list[list[validation.KeyPath]] = []
    left = copy.deepcopy(values)
    while True:
        try:
            checked = platforms.Platform.model_validate(left)
            break
        except pydantic.ValidationError as error:
            faults = list(validation.problems(error, document, model=platforms.Platform))
            unknown = [fault for fault in faults if fault.is_unknown]
            if unknown or not is_told:
                problems += [fault.problem for fault in unknown or faults if fault.path not in unset]
            is_told = is_told or not unknown
            broken += [fault.path for fault in unknown or faults]
            rounds.append(_take_out(left, [fault.path for fault in unknown or faults]))
    servers = {*checked.mcp_servers, *section_names.get("mcp_servers", ())}
    misfits = () if ("mcp_servers",) in broken else _misfits(checked, servers)
    rest = itertools.chain(_dangling(checked, section_names, broken), _misnamed_tools(checked), misfits)
    located = [(_place_in_file(location, rounds), message) for location, message in rest]
    problems += [document.problem(location, f"{files.path_text(location)}: {message}") for location, message in located]
    return checked


def _take_out(values: dict[str, Any], places: Iterable[validation.KeyPath]) -> list[validation.KeyPath]:
    """Take out what stands at `places`, or the innermost thing around it that is there; return the places of that."""
    targets: dict[validation.KeyPath, Any] = {}
    for location in places:
        holder: Any = None
        inner: Any = values
        depth = 0
        for step in location:
            there: Iterable[int | str] = (
                inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
            )
            if step not in there:
                break
            holder, inner, depth = inner, inner[step], depth + 1
        targets[location[:depth]] = holder
    for location in reversed(targets):  # of a list, the last one first
        if location[-1] in targets[location] or isinstance(targets[location], list):
            del targets[location][location[-1]]
    return list(targets)


def _place_in_file(location: validation.KeyPath, rounds: Sequence[Iterable[validation.KeyPath]]) -> validation.KeyPath:
    """Return where something stands in the file: elements taken out of a list have moved those behind them."""
    for taken_out in reversed(rounds):
        original: validation.KeyPath = ()
        for step in location:
            removed = sorted(index for *holder, index in taken_out if (*holder,) == original and isinstance(index, int))
            if isinstance(step, int):
                for index in removed:
                    step = step + 1 if index <= step else step
            original = (*original, step)
        location = original
    return location


def _laid_over_builtin(values: dict[str, Any]) -> dict[str, Any]:
    laid = values | {
        section: builtin.PLATFORM[section] | values[section]
        if isinstance(values.get(section), dict)
        else values.get(section, builtin.PLATFORM[section])
        for section in builtin.PLATFORM
    }
    return (
        _without_unwanted(laid) if isinstance(laid["mcp_servers"], dict) and isinstance(laid["agents"], dict) else laid
    )


def _without_unwanted(laid: dict[str, Any]) -> dict[str, Any]:
    """The same without those of the built-in servers that the file has taken out, and built-in agents without them."""
    unwanted = {name for name in builtin.PLATFORM["mcp_servers"] if laid["mcp_servers"][name] is None}
    agents = {
        name: agent
        | {"mcp_servers": [server_name for server_name in agent.get("mcp_servers", ()) if server_name not in unwanted]}
        for name, agent in builtin.PLATFORM["agents"].items()
        if laid["agents"][name] is agent and unwanted & set(agent.get("mcp_servers", ()))
    }
    return laid | {
        "mcp_servers": {name: server for name, server in laid["mcp_servers"].items() if name not in unwanted},
        "agents": laid["agents"] | agents,
    }


def _dangling(
    loaded: platforms.Platform, section_names: Mapping[str, Sequence[str]], broken: Sequence[validation.KeyPath]
) -> Iterator[tuple[validation.KeyPath, str]]:
    """The names that nothing answers to, but for `section_names` ones and where a section is `broken`."""

    def missing(
        location: validation.KeyPath, name: str | None, *, of: str, kind: str
    ) -> Iterator[tuple[validation.KeyPath, str]]:
        names = {*getattr(loaded, of), *section_names.get(of, ())}
        if name is not None and name not in names and (of,) not in broken:
            yield location, _unknown(kind, names)

    yield from missing(("defaults", "llm_provider"), loaded.defaults.llm_provider, of="llm_providers", kind="provider")
    for index, name in enumerate(loaded.defaults.fallback_providers):
        yield from missing(("defaults", "fallback_providers", index), name, of="llm_providers", kind="provider")
    at: validation.KeyPath
    for name, server_settings in loaded.mcp_servers.items():
        asked = server_settings.summarization.llm_provider
        at = ("mcp_servers", name, "summarization", "llm_provider")
        yield from missing(at, asked, of="llm_providers", kind="provider")
    for name, agent in loaded.agents.items():
        at = ("agents", name)
        yield from missing((*at, "llm_provider"), agent.llm_provider, of="llm_providers", kind="provider")
        for index, server in enumerate(agent.mcp_servers):
            yield from missing((*at, "mcp_servers", index), server, of="mcp_servers", kind="MCP server")
        settings = loaded.llm_providers.get(agent.llm_provider or "")
        if settings is None or any(
            tool_location[:2] == ("llm_providers", agent.llm_provider) for tool_location in broken
        ):
            continue
        for index, tool in enumerate(agent.native_tools or ()):
            if tool not in settings.has_native_tools:
                tool_location = (*at, "native_tools", index)
                yield tool_location, _unknown(f"tool of {agent.llm_provider}", settings.has_native_tools)


def _misnamed_tools(loaded: platforms.Platform) -> Iterator[tuple[validation.KeyPath, str]]:
    """The patterns over a server's own tools that match none: with the server's name in front, or an open `[`."""
    for name, server in loaded.mcp_servers.items():
        for key, own_names in (
            (("tools", "allow"), server.tools.allow or ()),
            (("tools", "deny"), server.tools.deny),
            (("write_tools",), server.write_tools),
        ):
            for index, pattern in enumerate(own_names):
                location = ("mcp_servers", name, *key, index)
                if pattern.startswith(f"{name}."):
                    yield location, f"a tool's own name is meant here, without '{name}.'"
                elif why := tool_patterns.own_misfit(pattern):
                    yield location, why


def _misfits(loaded: platforms.Platform, servers: Collection[str]) -> Iterator[tuple[validation.KeyPath, str]]:
    """The patterns that no tool of any of these servers can match."""
    available = f"Available MCP servers: {', '.join(sorted(servers)) or 'none'}"
    for name, agent in loaded.agents.items():
        for location, pattern in ineffective.selection_patterns(agent.tools, at=("agents", name, "tools")):
            if ineffective.never_matches(pattern, servers):
                yield location, f"it fits no tool: {ineffective.example(servers)}. {available}"


def _unknown(kind: str, names: Iterable[str]) -> str:
    return f"unknown {kind}. Available: {', '.join(sorted(names)) or 'none'}"

"""Loading of the platform file. Each problem has its file, line, path and, for a choice, the alternatives.

No problem quotes the wrong value: it may be a misplaced key, and errors are logged.

Strings of the file may contain environment variables, `{{.NAME}}`. `${NAME}` stays text, because shells, queries and
instructions often contain it.
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
from tarsy.config.model import budgets, platforms
from tarsy.config.tool_selection import ineffective
from tarsy.resources import files, tool_patterns

_VARIABLE = re.compile(r'\{\{"(\{\{[^"{}]*\}\})"\}\}|\{\{\s*\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}')
"""A variable, `{{.NAME}}`, or a quoted template of another program, as in Go: `{{"{{.Names}}"}}`."""
_NOWHERE = files.Document(file="the built-in platform", value=None, node=None)
_MISSING = "put the platform file there, or name another by --config or TARSY_CONFIG"


class ConfigError(Exception):
    """The configuration cannot be used; the message has one problem per line, with its location."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A platform file that was read."""

    platform: platforms.Platform
    written: Mapping[str, Any] = field(repr=False)
    """The content of the file, before defaults and variables. It may hold secrets (see `redact.view`)."""
    used: Mapping[str, Any] = field(repr=False)
    """The content with its variables filled in, which may be further secrets."""


def platform_file(path: Path | None, *, environment: Mapping[str, str] | None = os.environ) -> platforms.Platform:
    """Load and check the platform file at `path`, merged into the built-in platform; None loads only the latter.

    An agent, server or provider replaces a built-in one of the same name entirely; null removes a built-in server.
    Raises ConfigError with all problems. Without an environment, the values of variables are unknown, and not checked.
    """
    return as_written(path, environment=environment).platform


def as_written(
    path: Path | None, *, environment: Mapping[str, str] | None = os.environ, own_namespace: str = ""
) -> Loaded:
    """Load the platform file (see `platform_file`), and return it with the content of the file.

    `own_namespace` is the operator's own; "" if it is unknown (see `loaded`).
    """
    try:
        if path is None:
            return builtin_only()
        return from_bytes(contents(path), file=str(path), environment=environment, own_namespace=own_namespace)
    except files.FileError as error:
        raise ConfigError(str(error)) from error


def contents(path: Path) -> bytes:
    """Return the bytes of the platform file at `path`. Raises FileError, with advice if it is missing."""
    try:
        return files.contents(path)
    except files.FileError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise files.FileError([files.Problem(file=str(path), line=0, message=unreadable(error.__cause__))]) from error


def unreadable(error: OSError) -> str:
    """Return why the platform file cannot be read, with advice if it is missing."""
    reason = error.strerror or "cannot be read"
    return f"{reason}: {_MISSING}" if isinstance(error, FileNotFoundError) else reason


def from_bytes(read: bytes, *, file: str, environment: Mapping[str, str] | None, own_namespace: str = "") -> Loaded:
    """Return the platform file in these bytes (see `loaded`). Raises FileError with all problems."""
    first, *more = files.parse_bytes(read, file=file)
    if more:
        raise files.FileError([more[0].problem((), "a second document: the platform file must be a single one")])
    return loaded(first, environment=environment, own_namespace=own_namespace)


def builtin_only() -> Loaded:
    """Return the built-in configuration, without a file."""
    return loaded(_NOWHERE, environment=None)


def loaded(document: files.Document, *, environment: Mapping[str, str] | None, own_namespace: str = "") -> Loaded:
    """Return the platform file in a document. Raises FileError with all problems.

    Without an environment, the values of its variables are unknown, and not checked. Without the operator's own
    namespace, it is not checked whether the namespaces of alerts are served.
    """
    written = {} if document.value is None else document.value
    if not isinstance(written, dict):
        raise files.FileError(
            [document.problem((), f"expected a mapping of {', '.join(platforms.Platform.model_fields)}")]
        )
    problems = [] if environment is None else list(_variable_problems(document, environment))
    used = _filled(written, environment or {})
    unset = {at for at, text in _strings_with_variables(written) if set(_variables(text)) - (environment or {}).keys()}
    checked = _checked(
        _merged_with_builtin(used), document, unset=unset, problems=problems, own_namespace=own_namespace
    )
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


def _strings_with_variables(node: Any, at: validation.KeyPath = ()) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield the path and the text of each string with variables."""
    if isinstance(node, str):
        if _variables(node):
            yield at, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _strings_with_variables(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _strings_with_variables(value, (*at, index))


def _variable_problems(document: files.Document, environment: Mapping[str, str]) -> Iterator[files.Problem]:
    """Yield the problems of variables: unset variables, and variables in keys."""
    for at, text in _strings_with_variables(document.value):
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
    values: dict[str, Any],
    document: files.Document,
    *,
    unset: set[validation.KeyPath],
    problems: list[files.Problem],
    own_namespace: str,
) -> platforms.Platform:
    """Return the platform of the valid parts of `values`, and add all problems to `problems`.

    Invalid parts are removed, and the rest is validated again; of a problem of the whole file, all parts are. A problem
    that is found only then is not reported, because a removed part may have caused it.
    """
    section_names = {section: list(faults) for section, faults in values.items() if isinstance(faults, dict)}
    broken: list[validation.KeyPath] = []
    is_reported = False
    rounds: list[list[validation.KeyPath]] = []
    left = copy.deepcopy(values)
    while True:
        try:
            checked = platforms.Platform.model_validate(left)
            break
        except pydantic.ValidationError as error:
            faults = list(validation.problems(error, document, model=platforms.Platform))
            unknown = [fault for fault in faults if fault.is_unknown]
            if unknown or not is_reported:
                problems += [fault.problem for fault in unknown or faults if fault.path not in unset]
            is_reported = is_reported or not unknown
            broken += [fault.path for fault in unknown or faults]
            rounds.append(_remove(left, [fault.path for fault in unknown or faults]))
    servers = {*checked.mcp_servers, *section_names.get("mcp_servers", ())}
    ineffective_patterns = () if ("mcp_servers",) in broken else _ineffective_patterns(checked, servers)
    rest = itertools.chain(
        _unknown_names(checked, section_names, broken),
        _invalid_tool_patterns(checked),
        () if {("llm_providers",), ("budgets",)} & {path[:1] for path in broken} else _unbounded_budgets(checked),
        ineffective_patterns,
        () if ("namespaces",) in {path[:1] for path in broken} else _unserved_namespaces(checked, own_namespace),
    )
    located = [(_path_in_file(location, rounds), message) for location, message in rest]
    problems += [document.problem(location, f"{files.path_text(location)}: {message}") for location, message in located]
    return checked


def _remove(values: dict[str, Any], paths: Iterable[validation.KeyPath]) -> list[validation.KeyPath]:
    """Remove the values at these paths, or their nearest existing parents; return the paths of the removed values."""
    targets: dict[validation.KeyPath, Any] = {}
    for location in paths:
        parent: Any = None
        inner: Any = values
        depth = 0
        for step in location:
            keys: Iterable[int | str] = (
                inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
            )
            if step not in keys:
                break
            parent, inner, depth = inner, inner[step], depth + 1
        targets[location[:depth]] = parent
    if () in targets:
        values.clear()
        return []
    for location in reversed(targets):  # of a list, the last one first
        if location[-1] in targets[location] or isinstance(targets[location], list):
            del targets[location][location[-1]]
    return list(targets)


def _path_in_file(location: validation.KeyPath, rounds: Sequence[Iterable[validation.KeyPath]]) -> validation.KeyPath:
    """Return the path in the file: elements that were removed from a list have moved those after them."""
    for removed_paths in reversed(rounds):
        original: validation.KeyPath = ()
        for step in location:
            removed = sorted(
                index for *parent, index in removed_paths if (*parent,) == original and isinstance(index, int)
            )
            if isinstance(step, int):
                for index in removed:
                    step = step + 1 if index <= step else step
            original = (*original, step)
        location = original
    return location


def _merged_with_builtin(values: dict[str, Any]) -> dict[str, Any]:
    merged = values | {
        section: builtin.PLATFORM[section] | values[section]
        if isinstance(values.get(section), dict)
        else values.get(section, builtin.PLATFORM[section])
        for section in builtin.PLATFORM
    }
    return (
        _without_removed_servers(merged)
        if isinstance(merged["mcp_servers"], dict) and isinstance(merged["agents"], dict)
        else merged
    )


def _without_removed_servers(merged: dict[str, Any]) -> dict[str, Any]:
    """Return `merged` without the built-in servers that the file removes, also in the built-in agents."""
    removed = {name for name in builtin.PLATFORM["mcp_servers"] if merged["mcp_servers"][name] is None}
    agents = {
        name: agent
        | {"mcp_servers": [server_name for server_name in agent.get("mcp_servers", ()) if server_name not in removed]}
        for name, agent in builtin.PLATFORM["agents"].items()
        if merged["agents"][name] is agent and removed & set(agent.get("mcp_servers", ()))
    }
    return merged | {
        "mcp_servers": {name: server for name, server in merged["mcp_servers"].items() if name not in removed},
        "agents": merged["agents"] | agents,
    }


def _unknown_names(
    loaded: platforms.Platform, section_names: Mapping[str, Sequence[str]], broken: Sequence[validation.KeyPath]
) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield unknown names, unless `section_names` has them, or the section that should have them is `broken`."""

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
        summary_provider = server_settings.summarization.llm_provider
        at = ("mcp_servers", name, "summarization", "llm_provider")
        yield from missing(at, summary_provider, of="llm_providers", kind="provider")
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


def _invalid_tool_patterns(loaded: platforms.Platform) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield the invalid patterns over a server's tools: with the server's name as a prefix, or an unclosed `[`."""
    for name, server in loaded.mcp_servers.items():
        for key, own_names in (
            (("tools", "allow"), server.tools.allow or ()),
            (("tools", "deny"), server.tools.deny),
            (("write_tools",), server.write_tools),
        ):
            for index, pattern in enumerate(own_names):
                location = ("mcp_servers", name, *key, index)
                if pattern.startswith(f"{name}."):
                    yield location, f"write the tool's name without '{name}.'"
                elif why := tool_patterns.own_misfit(pattern):
                    yield location, why


def _unbounded_budgets(loaded: platforms.Platform) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield the budgets of unknown providers, and those that cannot be kept with a provider that they cover.

    Built-in providers that the file neither changes nor refers to do not count: a request to one is refused.
    """
    defaults = loaded.defaults
    referred = {
        *(defaults.llm_provider, *defaults.fallback_providers),
        *(agent.llm_provider for agent in loaded.agents.values()),
        *(server.summarization.llm_provider for server in loaded.mcp_servers.values()),
    }
    builtin_providers = platforms.Platform.model_validate(builtin.PLATFORM).llm_providers if loaded.budgets else {}
    providers = {
        name: settings
        for name, settings in loaded.llm_providers.items()
        if name in referred or settings != builtin_providers.get(name)
    }
    for name, unit, problem in budgets.unbounded_providers(loaded.budgets, providers):
        remedy = "set max_output_tokens, price and no native_tools there, or limit model_calls"
        yield ("budgets", name, unit), f"cannot be kept: {problem}: {remedy}"
    for name, unit, problem in budgets.too_small(loaded.budgets, providers):
        yield ("budgets", name, unit), problem
    for name, budget in loaded.budgets.items():
        if budget.scope == "provider" and budget.of is not None and budget.of not in loaded.llm_providers:
            yield ("budgets", name, "of"), _unknown("provider", loaded.llm_providers)
        if budget.unit == "model_calls":
            continue
        for agent_name, agent in loaded.agents.items():
            if agent.native_tools and budget.covers_provider(agent.llm_provider or defaults.llm_provider or ""):
                why = "tokens of native tools are in no request"
                yield ("budgets", name, budget.unit), f"cannot be kept: agent '{agent_name}' has native_tools: {why}"


def _unserved_namespaces(loaded: platforms.Platform, own: str) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield the namespaces of alerts that are not served, unless the operator's own one is unknown ("")."""
    settings = loaded.ingest
    names: list[tuple[validation.KeyPath, str]] = []
    if settings.namespace is not None:
        names.append((("ingest", "namespace"), settings.namespace))
    for index, token in enumerate(settings.tokens):
        for position, name in enumerate(token.namespaces):
            names.append((("ingest", "tokens", index, "namespaces", position), name))
    served = dict.fromkeys((own, *loaded.namespaces))
    for location, name in names if own else ():
        if name not in served:
            yield location, f"'{name}' is not served: add it to namespaces. Served: {', '.join(served)}"


def _ineffective_patterns(
    loaded: platforms.Platform, servers: Collection[str]
) -> Iterator[tuple[validation.KeyPath, str]]:
    """Yield the patterns that no tool of any of these servers can match."""
    available = f"Available MCP servers: {', '.join(sorted(servers)) or 'none'}"
    for name, agent in loaded.agents.items():
        for location, pattern in ineffective.selection_patterns(agent.tools, at=("agents", name, "tools")):
            if ineffective.never_matches(pattern, servers):
                yield location, f"no tool can match it: {ineffective.example(servers)}. {available}"


def _unknown(kind: str, names: Iterable[str]) -> str:
    return f"unknown {kind}. Available: {', '.join(sorted(names)) or 'none'}"

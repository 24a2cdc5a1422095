"""Problems of chains in files, with file and line, without a cluster.

They are the problems for which the API server would refuse a chain, and those in a chain's conditions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic

from tarsy.config import resolve
from tarsy.config.check import chain_index
from tarsy.config.load import validation
from tarsy.config.model import platforms, reach
from tarsy.config.tool_selection import ineffective
from tarsy.resources import base, chains, files, tool_patterns

Path = tuple[int | str, ...]

_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PROVIDER: platforms.Kind = "LLM provider"
_SERVER: platforms.Kind = "MCP server"
_AGENT: platforms.Kind = "agent"
_KEYED_BY_NAME = ("agents", "stages")
"""Lists whose entries have unique names."""
_KINDS: dict[str, platforms.Kind] = {
    "llmProvider": _PROVIDER,
    "fallbackProviders": _PROVIDER,
    "mcpServers": _SERVER,
    "agent": _AGENT,
}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A chain in a file."""

    document: files.Document
    path: Path
    """The object's path in the document."""
    fields: dict[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The object's name, or ""."""
        return self._metadata("name")

    @property
    def namespace(self) -> str:
        """The object's namespace, or "" if kubectl chooses it."""
        return self._metadata("namespace")

    def _metadata(self, key: str) -> str:
        metadata = self.fields.get("metadata")
        value = metadata.get(key) if isinstance(metadata, dict) else None
        return value if isinstance(value, str) else ""

    def problem(self, path: Path, message: str) -> files.Problem:
        """Return the problem at a path of the object."""
        return self.document.problem((*self.path, *path), message)


def problems(documents: Sequence[files.Document], *, platform: platforms.Platform) -> list[files.Problem]:
    """Return the problems of the chains in `documents` with this platform file."""
    all_problems: list[files.Problem] = []
    manifests: list[Manifest] = []
    for document in documents:
        for path, value in _objects(document.value):
            if isinstance(value, dict) and value.get("kind") == chains.KIND:
                manifests.append(Manifest(document=document, path=path, fields=value))
    with_chains = {manifest.document.file for manifest in manifests}
    without = dict.fromkeys(document.file for document in documents if document.file not in with_chains)
    all_problems += [files.Problem(file=name, line=0, message=f"no {chains.KIND} in it") for name in without]
    for manifest in manifests:
        allowed = _allowed(platform, manifest.namespace)
        schema_problems = [*_object_problems(manifest), *_spec_problems(manifest, allowed)]
        all_problems += schema_problems or _reference_problems(manifest, allowed)
    all_problems += _conflicts(manifests)
    return sorted(dict.fromkeys(all_problems))


def _allowed(platform: platforms.Platform, namespace: str) -> platforms.Platform:
    """Return the part of the platform that chains of a namespace may use; all of it if kubectl chooses the namespace.

    Providers and servers without a list are kept: the namespace may be the operator's own.
    """
    return reach.platform_for(platform, [namespace], own=namespace) if namespace else platform


def _objects(value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the objects of a document with their paths: the document, or the items of a List."""
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, listed in enumerate(value["items"]):
            yield ("items", index), listed
    else:
        yield (), value


def _object_problems(manifest: Manifest) -> Iterator[files.Problem]:
    value = manifest.fields
    if value.get("apiVersion") != base.API_VERSION:
        yield manifest.problem(("apiVersion",), f"apiVersion: expected {base.API_VERSION}")
    for key in value.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        yield manifest.problem((key,), "unknown key. Available: apiVersion, kind, metadata, spec")
    if not isinstance(value.get("metadata"), dict):
        yield manifest.problem(("metadata",), "metadata: expected a mapping with a name")
    elif not _OBJECT_NAME.fullmatch(manifest.name) or len(manifest.name) > 253:
        yield manifest.problem(
            ("metadata", "name"),
            "metadata.name: expected lower-case letters, digits, - and ., a letter or digit at both ends, such as "
            "pod-crash",
        )


def _spec_problems(manifest: Manifest, platform: platforms.Platform) -> Iterator[files.Problem]:
    try:
        _spec(manifest)
    except pydantic.ValidationError as error:
        faults = validation.problems(error, manifest.document, model=chains.Spec, at=(*manifest.path, "spec"))
        yield from (fault.problem for fault in faults)
    spec = manifest.fields.get("spec")
    if not isinstance(spec, dict):
        return
    for key, entries in (("alertTypes", spec.get("alertTypes")), *((key, _names(spec, key)) for key in _KEYED_BY_NAME)):
        names = entries if isinstance(entries, list) else []
        for index, name in enumerate(names):
            if isinstance(name, str) and name and name in names[:index]:
                yield manifest.problem(("spec", key, index), f"spec.{key}.{index}: '{name}' appears twice")
    for index, stage in enumerate(_entries(spec, "stages")):
        for key, message in chains.broken_rules(stage) if isinstance(stage, dict) else ():
            yield manifest.problem(
                ("spec", "stages", index, *([key] if key else [])), f"spec.stages.{index}: {message}"
            )
    grouping = spec.get("grouping")
    if isinstance(grouping, dict) and (grouping.get("labels") is not None) != (grouping.get("by") == "Labels"):
        yield manifest.problem(("spec", "grouping"), f"spec.grouping: {chains.LABELS_RULE}")
    yield from _unknown_names(manifest, spec, platform)


def _spec(manifest: Manifest) -> chains.Spec:
    # As strict as the API server, for which "10" is no number, and keys have one name.
    return chains.Spec.model_validate(
        manifest.fields.get("spec"), strict=True, by_alias=True, by_name=False, context=tool_patterns.AS_WRITTEN
    )


def _reference_problems(manifest: Manifest, platform: platforms.Platform) -> Iterator[files.Problem]:
    """Yield the problems of a valid chain: unresolved references, and patterns that match no tool of any server."""
    chain = chains.AgentChain(
        metadata=base.ObjectMeta(name=manifest.name, namespace=manifest.namespace), spec=_spec(manifest)
    )
    for reference in chain_index.references(chain, platform):
        try:
            agent = reference.resolve_agent()
        except resolve.UnresolvedError as error:
            yield manifest.problem(("spec", *reference.path), str(error))
            continue
        if agent is None:
            continue
        unbounded = chain_index.unbounded_providers(agent, platform, chain=chain, namespace=manifest.namespace)
        for why in unbounded.values():
            yield manifest.problem(("spec", *reference.path), f"{reference.location}: {why}")
    for path, pattern in ineffective.chain_patterns(chain.spec):
        if ineffective.never_matches(pattern, platform.mcp_servers):
            message = f"{files.path_text(('spec', *path))}: '{pattern}' fits no tool of any MCP server"
            hint = ineffective.example(platform.mcp_servers)
            available = f"Available MCP servers: {', '.join(sorted(platform.mcp_servers)) or 'none'}"
            yield manifest.problem(("spec", *path), f"{message}: {hint}. {available}")


def _entries(spec: dict[str, Any], key: str) -> list[Any]:
    listed = spec.get(key)
    return listed if isinstance(listed, list) else []


def _names(spec: dict[str, Any], key: str) -> list[str]:
    """Return the names of a list's entries, "" for an entry without a name."""
    return [str(entry.get("name") or "") if isinstance(entry, dict) else "" for entry in _entries(spec, key)]


def _unknown_names(manifest: Manifest, spec: dict[str, Any], platform: platforms.Platform) -> Iterator[files.Problem]:
    """Yield a problem for each name of an agent, provider or server that does not exist."""
    available: dict[platforms.Kind, Iterable[str]] = {
        _PROVIDER: platform.llm_providers,
        _SERVER: platform.mcp_servers,
        _AGENT: sorted({*platform.agents, *_names(spec, "agents")} - {""}),
    }
    for location, kind, name in _references(spec):
        if isinstance(name, str) and name and name not in available[kind]:
            why, _ = resolve.missing(name, available[kind], platform, kind=kind)
            message = f"{_location(manifest, location)} references {why}"
            yield manifest.problem(("spec", *location), message)


def _references(node: Any, path: Path = ()) -> Iterator[tuple[Path, platforms.Kind, Any]]:
    """Yield the references to the platform, or to an agent: place, kind and name."""
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from _references(value, (*path, index))
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        kind = _KINDS.get(key)
        if key == "name" and path[:1] == ("stages",) and path[2:3] == ("agents",):
            kind = _AGENT
        if kind is None:
            yield from _references(value, (*path, key))
        elif isinstance(value, list):
            for index, name in enumerate(value):
                yield (*path, key, index), kind, name
        elif value is not None:
            yield (*path, key), kind, value


def _location(manifest: Manifest, location: Path) -> str:
    """Return the text for a location in a chain, as `resolve.location` does; "The chain" if it has no name."""
    spec = manifest.fields["spec"]
    blocks = [str(step) for step in location if step in ("synthesis", "chat", "executiveSummary", "fallbackProviders")]
    stage = agent = ""
    if location[0] in ("stages", "agents") and len(location) > 1:
        name = _names(spec, str(location[0]))[int(location[1])]
        stage, agent = (name, "") if location[0] == "stages" else ("", f" agent '{name}'")
    text = resolve.location(manifest.name, stage=stage, block=" ".join(blocks)) + agent
    return text.strip() or "The chain"


def _conflicts(manifests: Sequence[Manifest]) -> Iterator[files.Problem]:
    """Yield the conflicts of names and alert types between chains of one namespace."""
    named: dict[tuple[str, str], Manifest] = {}
    chains_by_alert_type: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        if (first := named.setdefault((manifest.namespace, manifest.name), manifest)) is not manifest and manifest.name:
            first_line = f"{first.document.file}:{first.document.line((*first.path, 'metadata', 'name'))}"
            yield manifest.problem(
                ("metadata", "name"), f"chain '{manifest.name}' appears twice, first in {first_line}"
            )
            continue
        spec = manifest.fields.get("spec")
        types = spec.get("alertTypes") if isinstance(spec, dict) else None
        for index, name in enumerate(types if isinstance(types, list) else ()):
            if not isinstance(name, str):
                continue
            if (owner := chains_by_alert_type.setdefault((manifest.namespace, name), manifest)) is not manifest:
                yield manifest.problem(
                    ("spec", "alertTypes", index), chain_index.conflict_of(name, owner=owner.name).message
                )

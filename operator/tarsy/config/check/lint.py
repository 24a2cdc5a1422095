"""Chains in files: everything that is wrong with them, with file and line, without a cluster.

What the API server would refuse, and what would stand in the chain's conditions once it is there, in the same words.
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
from tarsy.config.model import platforms
from tarsy.config.tool_selection import ineffective
from tarsy.resources import base, chains, files, tool_patterns

Place = tuple[int | str, ...]

_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PROVIDER, _SERVER, _AGENT = "LLM provider", "MCP server", "agent"
_MAPS = ("agents", "stages")
"""Lists whose entries have names of their own."""
_KINDS = {"llmProvider": _PROVIDER, "fallbackProviders": _PROVIDER, "mcpServers": _SERVER, "agent": _AGENT}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A chain in a file."""

    document: files.Document
    at: Place
    """Where the object stands in the document."""
    data: dict[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Its name, or "" where it has none."""
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def namespace(self) -> str:
        """Its namespace, or "" where kubectl chooses."""
        metadata = self.data.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
        return namespace if isinstance(namespace, str) else ""

    def problem(self, location: Place, message: str) -> files.Problem:
        """Return the problem at a place of the object."""
        return self.document.problem((*self.at, *location), message)


def problems(documents: Sequence[files.Document], *, platform: platforms.Platform) -> list[files.Problem]:
    """Return the problems of the chains in `documents`, as this platform would run them."""
    all_problems: list[files.Problem] = []
    manifests: list[Manifest] = []
    for document in documents:
        for at, value in _objects(document.data):
            if isinstance(value, dict) and value.get("kind") == chains.KIND:
                manifests.append(Manifest(document=document, at=at, data=value))
    has_one = {manifest.document.file for manifest in manifests}
    without = dict.fromkeys(document.file for document in documents if document.file not in has_one)
    all_problems += [files.Problem(file=name, line=0, message=f"no {chains.KIND} in it") for name in without]
    for manifest in manifests:
        of_it = [*_of_object(manifest), *_of_spec(manifest, platform)]
        all_problems += of_it or _of_uses(manifest, platform)
    all_problems += _of_all(manifests)
    return sorted(dict.fromkeys(all_problems))


def _objects(value: Any) -> Iterator[tuple[Place, Any]]:
    """The objects of a document: itself, or those that it lists."""
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index, listed in enumerate(value["items"]):
            yield ("items", index), listed
    else:
        yield (), value


def _of_object(manifest: Manifest) -> Iterator[files.Problem]:
    value = manifest.data
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


def _of_spec(manifest: Manifest, platform: platforms.Platform) -> Iterator[files.Problem]:
    try:
        _spec(manifest)
    except pydantic.ValidationError as error:
        faults = validation.problems(error, manifest.document, model=chains.Spec, at=(*manifest.at, "spec"))
        yield from (fault.problem for fault in faults)
    spec = manifest.data.get("spec")
    if not isinstance(spec, dict):
        return
    for key, entries in (("alertTypes", spec.get("alertTypes")), *((key, _named(spec, key)) for key in _MAPS)):
        names = entries if isinstance(entries, list) else []
        for index, name in enumerate(names):
            if isinstance(name, str) and name and name in names[:index]:
                yield manifest.problem(("spec", key, index), f"spec.{key}.{index}: '{name}' is there twice")
    for index, stage in enumerate(_list(spec, "stages")):
        for key, message in chains.broken_rules(stage) if isinstance(stage, dict) else ():
            yield manifest.problem(
                ("spec", "stages", index, *([key] if key else [])), f"spec.stages.{index}: {message}"
            )
    yield from _dangling(manifest, spec, platform)


def _spec(manifest: Manifest) -> chains.Spec:
    # As strict as the API server: "10" is no number there, and keys have one name.
    return chains.Spec.model_validate(
        manifest.data.get("spec"), strict=True, by_alias=True, by_name=False, context=tool_patterns.AS_WRITTEN
    )


def _of_uses(manifest: Manifest, platform: platforms.Platform) -> Iterator[files.Problem]:
    """Yield the problems that remain once all names are known."""
    for use in chain_index.uses(
        chains.AgentChain(metadata=base.ObjectMeta(name=manifest.name), spec=_spec(manifest)), platform
    ):
        try:
            use.settle()
        except resolve.UnresolvedError as error:
            yield manifest.problem(("spec", *use.at), str(error))
    for at, pattern in ineffective.of_chain(_spec(manifest)):
        if ineffective.never(pattern, platform.mcp_servers):
            message = f"{files.path_text(('spec', *at))}: '{pattern}' fits no tool of any MCP server"
            meant = ineffective.right(platform.mcp_servers)
            available = f"Available MCP servers: {', '.join(sorted(platform.mcp_servers)) or 'none'}"
            yield manifest.problem(("spec", *at), f"{message}: {meant}. {available}")


def _list(spec: dict[str, Any], key: str) -> list[Any]:
    listed = spec.get(key)
    return listed if isinstance(listed, list) else []


def _named(spec: dict[str, Any], key: str) -> list[str]:
    """The names of what a list has, "" where there is none."""
    return [str(entry.get("name") or "") if isinstance(entry, dict) else "" for entry in _list(spec, key)]


def _dangling(manifest: Manifest, spec: dict[str, Any], platform: platforms.Platform) -> Iterator[files.Problem]:
    """The names that nothing answers to, each at its own place, in the words of the chain's conditions."""
    available: dict[str, Iterable[str]] = {
        _PROVIDER: platform.llm_providers,
        _SERVER: platform.mcp_servers,
        _AGENT: sorted({*platform.agents, *_named(spec, "agents")} - {""}),
    }
    for location, kind, name in _references(spec):
        if isinstance(name, str) and name and name not in available[kind]:
            names = ", ".join(sorted(available[kind])) or "none"
            where = _where(manifest, location)
            message = f"{where} references unknown {kind} '{name}'. Available {kind}s: {names}"
            yield manifest.problem(("spec", *location), message)


def _references(node: Any, at: Place = ()) -> Iterator[tuple[Place, str, Any]]:
    """Yield the references to the platform, or to an agent: place, kind and name."""
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from _references(value, (*at, index))
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        kind = _KINDS.get(key)
        if key == "name" and at[:1] == ("stages",) and at[2:3] == ("agents",):
            kind = _AGENT
        if kind is None:
            yield from _references(value, (*at, key))
        elif isinstance(value, list):
            for index, name in enumerate(value):
                yield (*at, key, index), kind, name
        elif value is not None:
            yield (*at, key), kind, value


def _where(manifest: Manifest, location: Place) -> str:
    """A place as messages of chains say it."""
    spec = manifest.data["spec"]
    blocks = [str(step) for step in location if step in ("synthesis", "chat", "executiveSummary", "fallbackProviders")]
    stage = own = ""
    if location[0] in ("stages", "agents") and len(location) > 1:
        name = _named(spec, str(location[0]))[int(location[1])]
        stage, own = (name, "") if location[0] == "stages" else ("", f" agent '{name}'")
    return resolve.place(manifest.name, stage=stage, block=" ".join(blocks)) + own


def _of_all(manifests: Sequence[Manifest]) -> Iterator[files.Problem]:
    """Yield the conflicts between chains of one namespace."""
    named: dict[tuple[str, str], Manifest] = {}
    takers: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        if (first := named.setdefault((manifest.namespace, manifest.name), manifest)) is not manifest and manifest.name:
            there = f"{first.document.file}:{first.document.line((*first.at, 'metadata', 'name'))}"
            yield manifest.problem(("metadata", "name"), f"chain '{manifest.name}' is there twice, first in {there}")
            continue
        spec = manifest.data.get("spec")
        types = spec.get("alertTypes") if isinstance(spec, dict) else None
        for index, name in enumerate(types if isinstance(types, list) else ()):
            if not isinstance(name, str):
                continue
            if (taker := takers.setdefault((manifest.namespace, name), manifest)) is not manifest:
                yield manifest.problem(
                    ("spec", "alertTypes", index), chain_index.conflict_of(name, owner=taker.name).message
                )

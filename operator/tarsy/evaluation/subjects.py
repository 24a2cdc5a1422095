"""The subject of a measurement: a chain, with one provider for all its agents or with those that it names."""

from __future__ import annotations

from pathlib import Path

import pydantic

from tarsy.config.check import chain_index, lint
from tarsy.config.model import platforms
from tarsy.evaluation import scenarios
from tarsy.resources import chains, files

NAMESPACE = "tarsy"
"""The namespace of chains and investigations, as in an installation."""
_UID = "00000000-0000-4000-8000-000000000001"


def load(path: Path, *, platform: platforms.Platform) -> chains.AgentChain:
    """Return the one AgentChain of the file at `path`; raises files.FileError with all problems and their lines."""
    documents = files.read(path)
    if problems := lint.problems(documents, platform=platform):
        raise files.FileError(problems)
    if len(documents) != 1:
        raise files.FileError([documents[1].problem((), "a second document: give a file with one AgentChain")])
    (document,) = documents
    manifest = {
        "metadata": {**document.value["metadata"], "namespace": NAMESPACE, "uid": _UID},
        "spec": document.value["spec"],
    }
    try:
        return chains.AgentChain.model_validate(manifest)
    except pydantic.ValidationError as error:  # lint has accepted it
        raise files.FileError([document.problem((), str(error))]) from error


def providers(chain: chains.AgentChain, platform: platforms.Platform) -> tuple[str, ...]:
    """Return the names of the providers that the chain's agents ask, fallbacks left out."""
    index = chain_index.ChainIndex(
        [chain], platform=platform, unusable_providers={}, namespace=NAMESPACE, own=NAMESPACE
    )
    return index.statuses[chain.metadata.uid].providers


def with_provider(chain: chains.AgentChain, provider: str | None) -> chains.AgentChain:
    """Return the chain with `provider` for all its model calls; None leaves it as it is.

    Fallback providers are taken away, because an answer of another model would count as one of this.
    """
    if provider is None:
        return chain
    spec = chain.spec.model_dump(by_alias=True, exclude_none=True)
    _clear(spec)
    spec["llmProvider"] = provider
    for block in ("executiveSummary", "chat"):
        if block in spec:
            spec[block]["llmProvider"] = provider
    for stage in spec["stages"]:
        if "synthesis" in stage:
            stage["synthesis"]["llmProvider"] = provider
    return chain.model_copy(update={"spec": chains.Spec.model_validate(spec)})


def _clear(part: object) -> None:
    """Remove all providers and fallbacks of a part of a chain."""
    if isinstance(part, dict):
        for name in ("llmProvider", "fallbackProviders"):
            part.pop(name, None)
        for value in part.values():
            _clear(value)
    elif isinstance(part, list):
        for value in part:
            _clear(value)


def for_world(chain: chains.AgentChain) -> tuple[chains.AgentChain, list[str]]:
    """Return the chain without the MCP servers that a world does not have, and the names of these."""
    spec = chain.spec.model_dump(by_alias=True, exclude_none=True)
    missing: set[str] = set()
    _keep_world(spec, missing)
    return chain.model_copy(update={"spec": chains.Spec.model_validate(spec)}), sorted(missing)


def _keep_world(part: object, missing: set[str]) -> None:
    if isinstance(part, dict):
        if servers := part.get("mcpServers"):
            missing.update(name for name in servers if name != scenarios.SERVER)
            part["mcpServers"] = [name for name in servers if name == scenarios.SERVER]
        for value in part.values():
            _keep_world(value, missing)
    elif isinstance(part, list):
        for value in part:
            _keep_world(value, missing)

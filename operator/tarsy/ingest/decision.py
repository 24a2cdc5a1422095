"""From an object that asks for an investigation to its admission: the snapshot that is run, or why it is refused.

Pure, and the same for an object that a webhook made and for one that came by kubectl.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from tarsy.config.check import chain_index
from tarsy.config.model import tool_filters
from tarsy.ingest import subject
from tarsy.masking import known_secrets
from tarsy.resources import chains, investigations
from tarsy.transcript import admission, messages


def decide(
    manifest: investigations.AlertInvestigation,
    index: chain_index.ChainIndex,
    *,
    mask: Callable[[str], str],
    namespace_uid: str | None = None,
    catalogue: tool_filters.Catalogue = MappingProxyType({}),
) -> admission.Admission:
    """The admission of `manifest` with its chain as it is now; `mask` is applied to what stands in the object.

    Data that the object refers to was masked when it was stored. `catalogue` is what the tools are held against that
    the object names.
    """
    metadata, spec = manifest.metadata, manifest.spec
    taken = _chain(spec, index, catalogue, mask=mask)
    is_its_chains = isinstance(taken, admission.AdmittedChain) and spec.chain_ref is None
    return admission.Admission(
        id=metadata.uid,
        namespace=metadata.namespace,
        namespace_uid=namespace_uid,
        name=metadata.name,
        generation=metadata.generation,
        alert_type=spec.alert_type if is_its_chains else mask(spec.alert_type),  # a chain's own is no secret
        alert_data=None if spec.alert_data_ref else mask(spec.alert_data or ""),
        alert_data_ref=spec.alert_data_ref.name if spec.alert_data_ref else None,
        author=_author(spec.author or "", mask=mask),
        severity=spec.severity and mask(spec.severity),
        runbook_url=spec.runbook_url and mask(spec.runbook_url),
        fingerprint=spec.fingerprint,
        starts_at=spec.starts_at,
        receipt=spec.source.receipt if spec.source else None,
        digest=manifest.digest(),
        priority=spec.priority or 0,
        suspend=bool(spec.suspend),
        mcp=_selection(spec.mcp),
        ttl_seconds=spec.ttl_seconds_after_finished,
        target=messages.storable(mask(subject.target(spec.labels or {})))[: investigations.TARGET_MAX],
        chain=taken,
    )


_MAIL = re.compile(r"[\w.+-]+@[\w.-]+")


def _author(name: str, *, mask: Callable[[str], str]) -> str:
    """The author as it is kept: masked, for people may write anything there, but for a mail address: it is a name."""
    author = name if _MAIL.fullmatch(name) else mask(name)
    return messages.storable(author)[: investigations.AUTHOR_MAX]


def _selection(mcp: investigations.MCP | None) -> investigations.MCP | None:
    """Return the tool selection in storable form."""
    if mcp is None:
        return None
    return investigations.MCP.model_validate(messages.storable_json(mcp.model_dump(exclude_none=True)))


def _chain(
    spec: investigations.Spec,
    index: chain_index.ChainIndex,
    catalogue: tool_filters.Catalogue,
    *,
    mask: Callable[[str], str],
) -> admission.AdmittedChain | admission.Refusal:
    try:
        taker = index.named(spec.chain_ref.name) if spec.chain_ref else index.taking(spec.alert_type)
        index.check_selection(taker, spec.mcp, catalogue)
    except chain_index.UnservedError as error:
        return admission.Refusal(reason=error.problem.reason, message=messages.storable(mask(error.problem.message)))
    return admission.AdmittedChain(
        name=taker.metadata.name,
        namespace=taker.metadata.namespace,
        generation=taker.metadata.generation,
        hash=taker.digest(),
        spec=_bounded(taker.spec),
    )


def _bounded(spec: chains.Spec) -> chains.Spec:
    """A chain as it is kept: in what people wrote for people and models, nothing that this process was given."""
    agents = [
        agent.model_copy(update={"custom_instructions": _short(agent.custom_instructions, chains.INSTRUCTIONS_MAX)})
        for agent in spec.agents or ()
    ]
    defaults = {
        "description": spec.description and _short(spec.description, chains.DESCRIPTION_MAX),
        "agents": agents or spec.agents,
    }
    return spec.model_copy(update=defaults)


def _short(text: str, longest: int) -> str:
    """A text that may have got longer by its markers, as long as the field may be: else it could not be read again."""
    return known_secrets.KNOWN.text(text)[:longest]

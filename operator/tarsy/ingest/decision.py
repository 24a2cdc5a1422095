"""The decision on an object that asks for an investigation: a snapshot that is run, or a refusal.

Pure, and the same for objects that a webhook created and for those that kubectl created.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from tarsy.config.check import chain_index
from tarsy.config.model import tool_filters
from tarsy.ingest import grouping, retries, subject
from tarsy.masking import known_secrets
from tarsy.resources import chains, investigations
from tarsy.transcript import admission, messages

NOT_RETRIABLE = "NotRetriable"
"""The reason of a refusal: the investigation cannot run the one in `spec.retryOf` again."""

_MAIL = re.compile(r"[\w.+-]+@[\w.-]+")


def decide(
    manifest: investigations.AlertInvestigation,
    index: chain_index.ChainIndex,
    *,
    mask: Callable[[str], str],
    secrets: known_secrets.KnownSecrets,
    namespace_uid: str | None = None,
    catalogue: tool_filters.Catalogue = MappingProxyType({}),
    original: admission.Original | None = None,
) -> admission.Admission:
    """Return the admission of `manifest` with its chain as it is now, or with that of the `original` that it retries.

    `mask` is applied to all text of the object. Alert data that the object refers to was masked when it was stored.
    `catalogue` has the known tools, which the object's tool selection is checked against. Only the store knows whether
    the object may retry the original: its receipt says so.
    """
    metadata, spec = manifest.metadata, manifest.spec
    retry, chain = _retried(spec.retry_of, original) if spec.retry_of else (None, None)
    chain = chain or _chain(spec, index, catalogue, mask=mask, secrets=secrets)
    is_type_of_chain = isinstance(chain, admission.AdmittedChain) and spec.chain_ref is None
    author = spec.author or ""
    if not _MAIL.fullmatch(author):  # a mail address is a name; anything else may hold a secret
        author = mask(author)
    alert_data = None if spec.alert_data_ref else mask(spec.alert_data or "")
    source = spec.source or investigations.Source(type="")
    selection = spec.mcp and messages.storable_json(spec.mcp.model_dump(exclude_none=True))
    return admission.Admission(
        id=metadata.uid,
        namespace=metadata.namespace,
        namespace_uid=namespace_uid,
        name=metadata.name,
        generation=metadata.generation,
        alert_type=spec.alert_type if is_type_of_chain else mask(spec.alert_type),
        alert_data=alert_data,
        alert_data_ref=spec.alert_data_ref.name if spec.alert_data_ref else None,
        author=messages.storable(author)[: investigations.AUTHOR_MAX],
        severity=spec.severity and mask(spec.severity),
        runbook_url=spec.runbook_url and mask(spec.runbook_url),
        fingerprint=spec.fingerprint,
        starts_at=spec.starts_at,
        receipt=source.receipt,
        digest=manifest.digest(),
        priority=spec.priority or 0,
        suspend=bool(spec.suspend),
        mcp=None if selection is None else investigations.MCP.model_validate(selection),
        ttl_seconds=spec.ttl_seconds_after_finished,
        labels={
            name: messages.storable(value)
            for name, value in subject.identifying_labels(spec.labels or {}, mask=mask).items()
        },
        alert_summary=messages.storable(subject.summary_of_data(alert_data or "")),
        generator_url=source.generator_url and mask(source.generator_url),
        external_url=source.external_url and mask(source.external_url),
        group_digest=grouping.digest(source.group_key or ""),
        traceparent=spec.traceparent,
        depth=spec.depth or 0,
        target=messages.storable(mask(subject.target(spec.labels or {})))[: investigations.TARGET_MAX],
        retry=retry,
        chain=chain,
    )


def _retried(
    retry_of: investigations.RetryOf, original: admission.Original | None
) -> tuple[admission.Retry, admission.AdmittedChain | admission.Refusal | None]:
    """Return the retry, and its original's chain; None if it takes the present chain; or the refusal.

    A refused one is a retry, too: without a receipt its author learns nothing of the original.
    """
    refused = admission.Retry(original=retry_of.uid, from_stage=retry_of.from_stage)
    is_current = retry_of.chain == "Current"
    if original is None:
        message = f"spec.retryOf: {retry_of.name} has no transcript: create a new investigation"
        return refused, admission.Refusal(reason=NOT_RETRIABLE, message=messages.storable(message))
    try:
        retry = retries.check(original, from_stage=retry_of.from_stage, is_chain_current=is_current)
    except retries.NotRetriableError as error:
        return refused, admission.Refusal(reason=NOT_RETRIABLE, message=messages.storable(f"spec.retryOf: {error}"))
    return retry, None if is_current else original.chain


def _chain(
    spec: investigations.Spec,
    index: chain_index.ChainIndex,
    catalogue: tool_filters.Catalogue,
    *,
    mask: Callable[[str], str],
    secrets: known_secrets.KnownSecrets,
) -> admission.AdmittedChain | admission.Refusal:
    try:
        chain = index.chain_named(spec.chain_ref.name) if spec.chain_ref else index.chain_for(spec.alert_type)
        index.check_tool_selection(chain, spec.mcp, catalogue)
    except chain_index.UnservedError as error:
        return admission.Refusal(reason=error.problem.reason, message=messages.storable(mask(error.problem.message)))
    return admission.AdmittedChain(
        name=chain.metadata.name,
        namespace=chain.metadata.namespace,
        generation=chain.metadata.generation,
        hash=chain.digest(),
        spec=_without_secrets(chain.spec, secrets),
    )


def _without_secrets(spec: chains.Spec, secrets: known_secrets.KnownSecrets) -> chains.Spec:
    """Return the chain with known secrets masked in its description and in its agents' instructions.

    The texts are cut to their fields' limits: masks may be longer than secrets, and the chain has to be read again.
    """

    def masked(text: str, longest: int) -> str:
        return secrets.mask(text)[:longest]

    agents = [
        agent.model_copy(update={"custom_instructions": masked(agent.custom_instructions, chains.INSTRUCTIONS_MAX)})
        for agent in spec.agents or ()
    ]
    update = {
        "description": spec.description and masked(spec.description, chains.DESCRIPTION_MAX),
        "agents": agents or spec.agents,
    }
    return spec.model_copy(update=update)

"""From an object that asks for an investigation to its admission: the snapshot that is run, or why it is refused.

Pure, and the same for an object that a webhook made and for one that came by kubectl.
"""

from __future__ import annotations

from collections.abc import Callable

from tarsy.config import check
from tarsy.resources import investigation
from tarsy.transcript import admission, messages


def of(
    found: investigation.AlertInvestigation,
    chains: check.ChainIndex,
    *,
    mask: Callable[[str], str],
    namespace_uid: str | None = None,
) -> admission.Admission:
    """The admission of `found` with its chain as it is now; `mask` is applied to what stands in the object.

    Data that the object refers to was masked when it was stored.
    """
    metadata, spec = found.metadata, found.spec
    return admission.Admission(
        id=metadata.uid,
        namespace=metadata.namespace,
        namespace_uid=namespace_uid,
        name=metadata.name,
        generation=metadata.generation,
        alert_type=spec.alert_type,
        alert_data=None if spec.alert_data_ref else mask(spec.alert_data or ""),
        alert_data_ref=spec.alert_data_ref.name if spec.alert_data_ref else None,
        author=messages.storable(mask(spec.author or "")),
        severity=spec.severity and mask(spec.severity),
        runbook_url=spec.runbook_url and mask(spec.runbook_url),
        fingerprint=spec.fingerprint,
        starts_at=spec.starts_at,
        receipt=spec.source.receipt if spec.source else None,
        digest=found.digest(),
        priority=spec.priority or 0,
        suspend=bool(spec.suspend),
        ttl_seconds=spec.ttl_seconds_after_finished,
        chain=_chain(spec, chains),
    )


def _chain(spec: investigation.Spec, chains: check.ChainIndex) -> admission.AdmittedChain | admission.Refusal:
    try:
        taker = chains.named(spec.chain_ref.name) if spec.chain_ref else chains.taking(spec.alert_type)
    except check.UnservedError as error:
        return admission.Refusal(reason=error.problem.reason, message=error.problem.message)
    return admission.AdmittedChain(
        name=taker.metadata.name,
        namespace=taker.metadata.namespace,
        generation=taker.metadata.generation,
        hash=taker.digest(),
        spec=taker.spec,
    )

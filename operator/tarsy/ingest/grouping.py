"""Groups of alerts: the key by which alerts are one investigation, and what is stored of each alert.

A key is made of the alert's raw values, before masks and cuts, so that two different things never have one key. It
begins with the sender, because two clusters may have alerts with the same labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

from tarsy.ingest import alertmanager, manifest, owners, subject
from tarsy.resources import chains, naming
from tarsy.transcript import admission

KEY = "group:"
"""The beginning of a group's key, which no alert's fingerprint has."""
SEARCHED_MAX = 2048
"""Characters of an alert that joins a group that a search matches."""


def key(
    alert: alertmanager.Alert,
    *,
    group_key: str,
    chain: chains.AgentChain,
    source: tuple[str, str],
    owner: owners.Thing | None = None,
    cluster_label: str = "",
) -> str | None:
    """Return the key of an alert's group in a chain; None if the alert is investigated alone.

    `group_key` is the notification's, `source` the kind and the name of its sender. `owner` is None if it is unknown,
    `cluster_label` names the label that tells its cluster.
    """
    grouping = chain.spec.grouping
    identity: list[Any] = [source, [chain.metadata.namespace, chain.metadata.name]]
    match grouping and grouping.by:
        case "Notification" if group_key:
            identity += [[], [group_key]]
        case "Labels":
            assert grouping  # noqa: S101 - the case above
            names = sorted(set(grouping.labels or ()))
            values = [alert.labels.get(name, "") for name in names]
            if not values or not all(values):
                return None
            identity += [names, values]
        case "Owner" if owner:
            identity += ["Owner", alert.labels.get(cluster_label, ""), dataclasses.astuple(owner)]
        case _:
            return None
    return KEY + hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def digest(group_key: str) -> str | None:
    """Return the digest by which Alertmanager names a group to PagerDuty and others; None without a whole key.

    A key with a mask in it, or at the limit of its length, may not be the one that Alertmanager has.

    Source: Alertmanager, `notify.Key.Hash`, used as `dedup_key` by `notify/pagerduty`.
    """
    if not group_key or "[MASKED" in group_key or len(group_key) >= manifest.GROUP_KEY_MAX:
        return None
    return hashlib.sha256(group_key.encode()).hexdigest()


def member(alert: alertmanager.Alert, *, alert_type: str, mask: Callable[[str], str]) -> admission.Member:
    """Return what is stored of an alert that joins a group; `alert_type` is its own."""
    masked_labels = manifest.masked_labels(alert.labels, mask)
    summary = subject.summary_line(alert.annotations.get("summary"), mask=mask)
    return admission.Member(
        fingerprint=manifest.fingerprint(alert),
        starts_ms=naming.milliseconds(alert.starts_at),
        alert_type=mask(alert_type)[:253],
        severity=masked_labels.get("severity", "")[:63],
        labels=subject.identifying_labels(masked_labels, mask=str),
        words=" ".join((*masked_labels.values(), summary))[:SEARCHED_MAX],
        alert_json=manifest.json_of_member(alert, masked_labels, summary=summary, mask=mask),
    )

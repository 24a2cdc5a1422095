"""Input from outside, as people and Alertmanager write it: manifests of the two kinds, a notification."""

from __future__ import annotations

import json
from typing import Any


def stage(name: str, **fields: Any) -> dict[str, Any]:
    """A stage of a chain."""
    return {"name": name, "agent": "KubernetesAgent"} | fields


def chain(*alert_types: str, name: str = "kubernetes", **spec: Any) -> dict[str, Any]:
    """A chain of one stage without a summary, but for what `spec` says; it takes `kubernetes` if no type is named."""
    return {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AgentChain",
        "metadata": {"name": name},
        "spec": {
            "alertTypes": list(alert_types) or ["kubernetes"],
            "stages": [stage("analysis")],
            "executiveSummary": {"enabled": False},
        }
        | spec,
    }


def investigation(name: str = "web-crash", *, namespace: str | None = None, **spec: Any) -> dict[str, Any]:
    """An investigation, in kubectl's namespace where none is named."""
    return {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AlertInvestigation",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {"alertType": "kubernetes", "alertData": "web-0 restarts"} | spec,
    }


def notification(status: str = "firing", **fields: Any) -> bytes:
    """A notification of one alert, the same each time but for `fields`; it has a field of some later release."""
    alert = {
        "status": status,
        "labels": {"alertname": "KubePodCrashLooping", "namespace": "shop"},
        "annotations": {},
        "startsAt": "2026-11-21T20:26:18.109994018Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "6eb8c03418906421",
    } | fields
    return json.dumps({"version": "4", "receiver": "hook", "status": status, "alerts": [alert], "new": {}}).encode()

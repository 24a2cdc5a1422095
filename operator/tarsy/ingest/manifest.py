"""The AlertInvestigation for an alert, masked before it reaches etcd.

Objects stay small, because every status write stores the whole object again. Alert data over 16 KiB goes to the store,
and the object refers to it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tarsy.config.model import webhooks
from tarsy.ingest import alertmanager, formats, payload, plain, subject
from tarsy.resources import base, investigations, links, naming
from tarsy.transcript import admission, messages

DATA_MAX = 1024 * 1024
"""Bytes of UTF-8 that an alert's data may have."""
MEMBER_MAX = 16 * 1024
"""Bytes of JSON that are stored of an alert that joins a group; a larger one has only the labels that identify it."""
GROUP_KEY_MAX = 4096
"""Characters of a notification's group key that are stored."""
INLINE_MAX = 16 * 1024
"""Bytes of JSON-escaped UTF-8 up to which alert data stays in the object."""

_BEYOND_CUT = 1024
"""Characters beyond a cut that are masked, too, so that a secret is masked whole if the cut would halve it."""

Mask = Callable[[str], str]


class TooLargeError(ValueError):
    """The alert's data is too large."""

    def __init__(self) -> None:
        super().__init__(f"alert data exceeds maximum size of {DATA_MAX} bytes")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An object to be created, and the alert data to be stored before it."""

    manifest: dict[str, Any]
    large: str | None
    """Alert data that the object refers to by `large_name`."""
    summary: str
    """The first line of the alert's annotation `summary`, masked; it is stored with large alert data."""
    episode: tuple[str, int]
    """The key of its receipt: fingerprint and start in milliseconds; for a posted alert, its name and 0."""

    def with_receipt(self, *, name: str, word: str, pages: str | None) -> Draft:
        """Return the draft with that name, that word of a receipt, and links to its page if there are `pages`."""
        spec, metadata = self.manifest["spec"], {**self.manifest["metadata"], "name": name}
        if pages:
            metadata["annotations"] = links.page_annotations(pages, namespace=self.namespace, name=name)
        manifest = {
            **self.manifest,
            "metadata": metadata,
            "spec": {**spec, "source": {**spec["source"], "receipt": word}},
        }
        return replace(self, manifest=manifest)

    def with_alert_type(self, alert_type: str) -> Draft:
        """Return the draft with that alert type. Its former type becomes the label `alertname`."""
        spec = self.manifest["spec"]
        if alert_type == spec["alertType"]:
            return self
        labels = spec.get("labels", {}) | {"alertname": spec["alertType"]}
        return replace(self, manifest={**self.manifest, "spec": {**spec, "alertType": alert_type, "labels": labels}})

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return str(self.manifest["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def digest(self) -> str:
        """The digest of the spec."""
        return investigations.digest(investigations.Spec.model_validate(self.manifest["spec"]))

    def is_same_request(self, spec: investigations.Spec) -> bool:
        """Return whether `spec` asks for the same: the same alert of the same type, with the same tools.

        The alert's own type is compared: a chain for it may have been created or deleted since `spec` was written.
        """
        return _comparable(investigations.Spec.model_validate(self.manifest["spec"])) == _comparable(spec)

    @property
    def large_name(self) -> str:
        """The name of the large alert data."""
        return str(self.manifest["spec"]["alertDataRef"]["name"])


def _comparable(spec: investigations.Spec) -> tuple[object, ...]:
    """Return the parts of a posted alert's spec that identify it."""
    own_type = (spec.labels or {}).get("alertname", spec.alert_type)
    return own_type, spec.alert_data, spec.alert_data_ref, spec.mcp, spec.retry_of


def alert_type(alert: alertmanager.Alert, settings: webhooks.Ingest) -> str:
    """Return the type that the alert names: by the configured label, or else by its alertname, or else ""."""
    return alert.labels.get(settings.alert_type_label) or alert.alertname


def fingerprint(alert: alertmanager.Alert) -> str:
    """Return the alert's fingerprint as 16 hex digits; if the sender sent none, one that is derived from the labels."""
    return naming.hex16(alert.fingerprint or json.dumps(alert.labels, sort_keys=True))


def of_source(alert: alertmanager.Alert, source: str) -> alertmanager.Alert:
    """Return an alert with a fingerprint that no alert of another source has; "" is no source.

    Alerts of two clusters may have the same labels, and so the same fingerprint.
    """
    if not source:
        return alert
    return alert.model_copy(update={"fingerprint": json.dumps([source, fingerprint(alert)])})


@dataclass(frozen=True, kw_only=True)
class NotificationData:
    """The data of a notification that goes into the object of each of its alerts, masked."""

    data: str
    """A JSON object, whose members become part of the alert data."""
    receiver: str
    group_key: str
    external_url: str


WITHHELD_DATA = NotificationData(
    data='{"receiver":"[MASKED:withheld]"}', receiver="[MASKED:withheld]", group_key="", external_url=""
)
"""The replacement of data that could not be masked."""


def masked_receiver(notification: alertmanager.Notification, *, mask: Mask) -> str:
    """Return the name of the notification's receiver, masked and cut."""
    return _short(notification.receiver, 253, mask)


def notification_data(notification: alertmanager.Notification, *, mask: Mask) -> NotificationData:
    """Return the data that all alerts of the notification share. Raise TooLargeError if it is too large."""
    fields = (notification.receiver, notification.group_labels, notification.external_url)
    return NotificationData(
        data=_masked_data(_json(dict(zip(_SHARED, fields, strict=True))), mask),
        receiver=masked_receiver(notification, mask=mask),
        group_key=_short(notification.group_key, GROUP_KEY_MAX, mask),
        external_url=_short(notification.external_url, 2048, mask),
    )


def draft_from_alert(
    alert: alertmanager.Alert,
    shared: NotificationData,
    *,
    sent_by: formats.Format,
    alert_type: str,
    namespace: str,
    author: str,
    mask: Mask,
) -> Draft:
    """Return the object of a firing alert. Its data is the alert as JSON, with `shared.data`.

    Raise TooLargeError if the two together are too large.
    """
    alert_json = _json({name: value for name, value in alert.raw.items() if name not in _SHARED})
    alert_json = _masked_data(alert_json, mask, other_size=len(shared.data.encode()))
    if alert_json.endswith("}") and shared.data.startswith("{"):
        alert_data = f"{alert_json[:-1]},{shared.data[1:]}"
    else:  # the mask has replaced a brace
        alert_data = f"{alert_json}\n{shared.data}"
    digits = fingerprint(alert)
    alertname = _short(alert.alertname, naming.NAMED_MAX, mask)
    name = naming.for_alert(alertname=alertname, fingerprint=digits, starts_at=alert.starts_at)
    source = investigations.Source(
        type=sent_by,
        receiver=shared.receiver,
        group_key=shared.group_key,
        generator_url=_short(alert.generator_url, 2048, mask),
        external_url=shared.external_url,
    )
    return _draft(
        alert_data,
        namespace=namespace,
        name=name,
        episode=(digits, naming.milliseconds(alert.starts_at)),
        alert_type=alert_type,
        author=author,
        fingerprint=digits,
        starts_at=alert.starts_at,
        severity=_short(alert.labels.get("severity", ""), 63, mask) or None,
        runbook_url=_short(alert.annotations.get("runbook_url", ""), 2048, mask) or None,
        source=source,
        labels=masked_labels(alert.labels, mask),
        traceparent=_traceparent(alert.annotations.get("traceparent") or alert.labels.get("traceparent")),
        summary=subject.summary_line(alert.annotations.get("summary"), mask=mask),
        object_labels=_object_labels(alert.labels, mask),
    )


def draft_from_posted(
    alert: plain.Alert, *, namespace: str, author: str, idempotency_key: str | None, mask: Mask, depth: int = 0
) -> Draft:
    """Return the object of a posted alert. Its name follows from the idempotency key, if there is one.

    Raise TooLargeError if the alert's data is too large.
    """
    if idempotency_key:
        name = f"alert-{hashlib.sha256(idempotency_key.encode()).hexdigest()[:20]}"
    else:
        name = f"{naming.slug(_short(alert.alert_type, naming.NAMED_MAX, mask), longest=42)}-{secrets.token_hex(10)}"
    return _draft(
        _masked_data(alert.text(), mask),
        namespace=namespace,
        name=name,
        episode=(name, 0),
        alert_type=alert.alert_type,
        author=author,
        severity=mask(alert.severity or "")[:63] or None,
        runbook_url=_short(alert.runbook_url, 2048, mask) or None,
        mcp=alert.mcp,
        traceparent=_traceparent(alert.data.get("traceparent") if isinstance(alert.data, dict) else None),
        depth=depth or None,
        source=investigations.Source(type="api"),
        summary=subject.summary_of_document(alert.data, mask=mask),
        object_labels=_object_labels({"alertname": alert.alert_type, "severity": alert.severity or ""}, mask),
    )


def draft_of_retry(
    original: admission.Original,
    *,
    from_stage: str | None,
    is_chain_current: bool,
    author: str,
    idempotency_key: str | None,
) -> Draft:
    """Return the object that runs `original` again, on the same alert. Its name begins with the original's."""
    digits = secrets.token_hex(5)
    if idempotency_key:
        digits = hashlib.sha256(f"{original.id} {idempotency_key}".encode()).hexdigest()[:10]
    name = naming.suffixed(original.name, f"retry-{digits}")
    retry_of = investigations.RetryOf(
        name=original.name, uid=original.id, from_stage=from_stage, chain="Current" if is_chain_current else None
    )
    alertname = {"alertname": original.alert_type, **original.labels}
    return _draft(
        original.alert_data,
        namespace=original.namespace,
        name=name,
        episode=(name, 0),
        alert_type=original.alert_type,
        chain_ref=investigations.ChainRef(name=original.chain.name) if is_chain_current and original.chain else None,
        author=author,
        severity=original.severity,
        runbook_url=original.runbook_url,
        mcp=original.mcp,
        source=investigations.Source(
            type="api", generator_url=original.generator_url, external_url=original.external_url
        ),
        retry_of=retry_of,
        labels=dict(original.labels) or None,
        fingerprint=original.fingerprint,
        summary=original.alert_summary,
        object_labels=_object_labels({**alertname, "severity": original.severity or ""}, str),
    )


def draft_of_split(
    alert: admission.Joined, *, namespace: str, alert_type: str, author: str, external_url: str | None, mask: Mask
) -> Draft:
    """Return the object of an alert that is taken out of a group; `external_url` is the page of its sender.

    An alert that an earlier build let join has no text of its own: its data are its labels.
    """
    starts_at = alert.starts_at
    alert_json = alert.alert_json or _json({"labels": dict(alert.labels), "startsAt": starts_at.isoformat()})
    document = json.loads(alert_json)
    labels = document["labels"]
    alertname = _short(labels.get("alertname") or alert.alert_type, naming.NAMED_MAX, mask)
    return _draft(
        _masked_data(alert_json, mask),
        namespace=namespace,
        name=naming.for_alert(alertname=alertname, fingerprint=alert.fingerprint, starts_at=starts_at),
        episode=(alert.fingerprint, alert.starts_ms),
        alert_type=alert_type,
        author=author,
        fingerprint=alert.fingerprint,
        starts_at=starts_at,
        severity=alert.severity or None,
        runbook_url=document.get("annotations", {}).get("runbook_url"),
        source=investigations.Source(type="api", generator_url=document.get("generatorURL"), external_url=external_url),
        labels=labels,
        summary=subject.summary_of_document(document),
        object_labels=_object_labels({**labels, "severity": alert.severity}, mask),
    )


def json_of_member(alert: alertmanager.Alert, masked_labels: Mapping[str, str], *, summary: str, mask: Mask) -> str:
    """Return the JSON of an alert that joins a group, masked and cut to MEMBER_MAX."""
    annotations = {
        "summary": summary,
        "description": _short(alert.annotations.get("description", ""), 800, mask),
        "runbook_url": _short(alert.annotations.get("runbook_url", ""), 512, mask),
    }
    document = {
        "labels": masked_labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": alert.starts_at.isoformat(),
        "generatorURL": _short(alert.generator_url, 512, mask),
    }
    text = _json(document)
    if len(text.encode()) > MEMBER_MAX:
        text = _json(document | {"labels": subject.identifying_labels(masked_labels, mask=str)})
    return text


def _traceparent(value: object) -> str | None:
    """Return the span that an alert names; None if it is not valid, which only loses the link."""
    return value if isinstance(value, str) and re.fullmatch(investigations.TRACEPARENT, value) else None


_SHARED = ("receiver", "groupLabels", "externalURL")


def _json(value: object) -> str:
    """Return the data as JSON. Raise TooLargeError as soon as the limit is exceeded."""
    pieces = []
    length = 0
    for piece in payload.compact(value):
        length += len(piece)
        if length > DATA_MAX:
            raise TooLargeError
        pieces.append(piece)
    return messages.storable("".join(pieces))


def _masked_data(alert_data: str, mask: Mask, *, other_size: int = 0) -> str:
    if len(alert_data.encode()) + other_size > DATA_MAX:
        raise TooLargeError
    return mask(alert_data)


def _short(text: str, longest: int, mask: Mask) -> str:
    """Mask `text` and cut it. Little more is masked than stays.

    A text that was cut before it was masked loses its end, which may be half a secret.
    """
    beginning = text[: longest + _BEYOND_CUT]
    masked = mask(beginning)
    return (masked if beginning == text else masked[:-_BEYOND_CUT])[:longest]


def _draft(
    alert_data: str,
    *,
    namespace: str,
    name: str,
    episode: tuple[str, int],
    object_labels: Mapping[str, str],
    summary: str,
    **fields: Any,
) -> Draft:
    large = len(json.dumps(alert_data, ensure_ascii=False).encode()) > INLINE_MAX
    if large:
        reference = hashlib.sha256(alert_data.encode()).hexdigest()[:32]
        fields["alert_data_ref"] = investigations.AlertDataRef(name=reference, size=len(alert_data.encode()))
    else:
        fields["alert_data"] = alert_data
    spec = investigations.Spec(**fields)
    manifest = {
        "apiVersion": base.API_VERSION,
        "kind": investigations.KIND,
        "metadata": {"name": name, "namespace": namespace, **({"labels": object_labels} if object_labels else {})},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return Draft(
        manifest=manifest, large=alert_data if large else None, summary=messages.storable(summary), episode=episode
    )


def masked_labels(labels: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """Return the labels, cut to the limits of the object. The alert data has them in full."""
    return {
        _short(name, 253, mask): _short(value, 1024, functools.partial(_masked, name[:253], mask=mask))
        for name, value in itertools.islice(labels.items(), 64)
    }


def _object_labels(labels: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """Return the Kubernetes labels of the object."""
    return subject.object_labels(labels, mask=functools.partial(_masked, mask=mask))


def _masked(name: str, value: str, *, mask: Mask) -> str:
    """Mask the value of a label together with its name, which may be the only sign of a secret."""
    try:
        masked_value: str = json.loads(mask(json.dumps({name: value}, ensure_ascii=False)))[name]
    except (ValueError, KeyError):  # the mask has replaced a quote or the name
        return "[MASKED]"
    return masked_value

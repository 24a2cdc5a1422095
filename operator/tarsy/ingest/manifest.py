"""The AlertInvestigation for an alert, masked: etcd never holds anything that is not in the object.

Objects stay small, because every status write stores the whole object again. Data over 16 KiB goes to the store, and
the object refers to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tarsy.config.model import platforms
from tarsy.ingest import alertmanager, formats, payload, plain, subject
from tarsy.resources import base, investigations, naming
from tarsy.transcript import messages

DATA_MAX = 1024 * 1024
"""Bytes of UTF-8 that an alert's data may have."""
INLINE_MAX = 16 * 1024
"""Bytes of JSON-escaped UTF-8 that stay in the object."""

_BEHIND_CUT = 1024
"""Characters behind a cut that the mask is shown: a secret that the cut would halve is masked whole."""

Mask = Callable[[str], str]


class TooLargeError(ValueError):
    """The alert's data is too large."""

    def __init__(self) -> None:
        super().__init__(f"alert data exceeds maximum size of {DATA_MAX} bytes")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An object to be made, and the data that is to be stored before it."""

    manifest: dict[str, Any]
    large: str | None
    """Alert data that the object refers to by `large_name`."""
    episode: tuple[str, int]
    """The key that makes it unique: a fingerprint and the start in milliseconds, or its own name."""

    def with_receipt(self, *, name: str, word: str) -> Draft:
        """The same under that name, with that receipt."""
        spec = self.manifest["spec"]
        manifest = {
            **self.manifest,
            "metadata": {**self.manifest["metadata"], "name": name},
            "spec": {**spec, "source": {**spec["source"], "receipt": word}},
        }
        return replace(self, manifest=manifest)

    def with_alert_type(self, alert_type: str) -> Draft:
        """The same with the default alert type, where no chain takes its own, which becomes its label `alertname`."""
        spec = self.manifest["spec"]
        own = spec["alertType"]
        if alert_type == own:
            return self
        labels = spec.get("labels", {}) | {"alertname": own}
        return replace(self, manifest={**self.manifest, "spec": {**spec, "alertType": alert_type, "labels": labels}})

    @property
    def namespace(self) -> str:
        """Where the object is to be."""
        return str(self.manifest["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def digest(self) -> str:
        """That of its spec."""
        return investigations.digest(investigations.Spec.model_validate(self.manifest["spec"]))

    def is_same_request(self, spec: investigations.Spec) -> bool:
        """Whether `spec` asks for the same: the same alert of the same type, with the same tools.

        The type is the alert's own: a chain that takes it may have come or gone since `spec` was made.
        """
        return _comparable(investigations.Spec.model_validate(self.manifest["spec"])) == _comparable(spec)

    @property
    def large_name(self) -> str:
        """The name of its large data."""
        return str(self.manifest["spec"]["alertDataRef"]["name"])


def _comparable(spec: investigations.Spec) -> tuple[object, ...]:
    """The parts of a posted alert's spec by which it is told from another one."""
    own_type = (spec.labels or {}).get("alertname", spec.alert_type)
    return own_type, spec.alert_data, spec.alert_data_ref, spec.mcp


def alert_type(alert: alertmanager.Alert, settings: platforms.Ingest) -> str:
    """The type that an alert names itself: by its own label, else by its alertname; "" where it has neither."""
    return alert.labels.get(settings.alert_type_label) or alert.alertname


def fingerprint(alert: alertmanager.Alert) -> str:
    """Alertmanager's fingerprint as 16 hex digits, or one made of the labels where it sent none."""
    return naming.hex16(alert.fingerprint or json.dumps(alert.labels, sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class NotificationData:
    """The common part of a notification's alerts, masked."""

    data: str
    """JSON of what stands in each alert's data."""
    receiver: str
    group_key: str
    external_url: str


WITHHELD_DATA = NotificationData(
    data='{"receiver":"[MASKED:withheld]"}', receiver="[MASKED:withheld]", group_key="", external_url=""
)
"""In the place of what could not be read or masked."""


def masked_receiver(notification: alertmanager.Notification, *, mask: Mask) -> str:
    """The notification's receiver, masked and cut."""
    return _short(notification.receiver, 253, mask)


def notification_data(notification: alertmanager.Notification, *, mask: Mask) -> NotificationData:
    """Return the common part of a notification's alerts; raises TooLargeError with the limit."""
    fields = (notification.receiver, notification.group_labels, notification.external_url)
    return NotificationData(
        data=_masked_data(_json(dict(zip(_SHARED, fields, strict=True))), mask),
        receiver=masked_receiver(notification, mask=mask),
        group_key=_short(notification.group_key, 4096, mask),
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
    """The object of one firing alert: the alert as JSON, with what its notification knows of it.

    A TooLargeError says how much is taken.
    """
    own = _json({name: value for name, value in alert.raw.items() if name not in _SHARED})
    own = _masked_data(own, mask, beside=len(shared.data.encode()))
    if own.endswith("}") and shared.data.startswith("{"):
        alert_data = f"{own[:-1]},{shared.data[1:]}"
    else:  # the mask took a brace along
        alert_data = f"{own}\n{shared.data}"
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
        labels=_labels(alert.labels, mask),
        object_labels=_object_labels(alert.labels, mask),
    )


def draft_from_posted(
    alert: plain.Alert, *, namespace: str, author: str, idempotency_key: str | None, mask: Mask
) -> Draft:
    """Return the object of an alert that a person posted; the same key gives the same name, whatever the alert.

    Raises TooLargeError with the limit.
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
        source=investigations.Source(type="api"),
        object_labels=_object_labels({"alertname": alert.alert_type, "severity": alert.severity or ""}, mask),
    )


_SHARED = ("receiver", "groupLabels", "externalURL")


def _json(value: object) -> str:
    """The data as JSON; a TooLargeError as soon as it has more than is taken."""
    pieces = []
    length = 0
    for piece in payload.compact(value):
        length += len(piece)
        if length > DATA_MAX:
            raise TooLargeError
        pieces.append(piece)
    return messages.storable("".join(pieces))


def _masked_data(alert_data: str, mask: Mask, *, beside: int = 0) -> str:
    if len(alert_data.encode()) + beside > DATA_MAX:
        raise TooLargeError
    return mask(alert_data)


def _short(text: str, longest: int, mask: Mask) -> str:
    """`text` masked and cut; the mask is shown little more than what stays."""
    seen = text[: longest + _BEHIND_CUT]
    return _uncut(mask(seen), is_complete=seen == text)[:longest]


def _uncut(masked: str, *, is_complete: bool) -> str:
    """Where the text was cut before it was masked: without its end, which may be a half of a secret."""
    return masked if is_complete else masked[:-_BEHIND_CUT]


def _draft(
    alert_data: str,
    *,
    namespace: str,
    name: str,
    episode: tuple[str, int],
    object_labels: Mapping[str, str],
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
    return Draft(manifest=manifest, large=alert_data if large else None, episode=episode)


def _labels(labels: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """The labels, cut to what the object may hold; the alert's data has them whole."""
    values = {}
    for name, value in itertools.islice(labels.items(), 64):
        seen = value[: 1024 + _BEHIND_CUT]
        values[_short(name, 253, mask)] = _uncut(_masked(name[:253], seen, mask), is_complete=seen == value)[:1024]
    return values


def _object_labels(labels: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """The labels of the object, by which people select it; the alert's own name, whatever type a chain takes it as."""
    return subject.object_labels(labels, mask=lambda name, value: _masked(name, value, mask))


def _masked(name: str, value: str, mask: Mask) -> str:
    """A label's value, masked beside its name: that may be all that tells a secret."""
    try:
        masked_value: str = json.loads(mask(json.dumps({name: value}, ensure_ascii=False)))[name]
    except (ValueError, KeyError):  # the mask took a quote along, or the name
        return "[MASKED]"
    return masked_value

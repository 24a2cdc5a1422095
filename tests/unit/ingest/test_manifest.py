"""From alerts to the objects that ask for their investigation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tarsy.ingest import alertmanager, manifest, plain
from tarsy.masking import masker
from tarsy.resources import investigations

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
HOSTILE = ["", "-", "../../etc", "A" * 300, "\U0001f4a5" * 80, "a\nb\x1b[31m", "x-" * 40, "Ünïcode Ñame", "İ" * 50]


@pytest.fixture
def payload(captures: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((captures / "alertmanager/alertmanager-0.33-webhook-firing.json").read_bytes())
    return loaded


def unmasked(text: str) -> str:
    return text


def masked(text: str) -> str:
    return text.replace("s3cret", "***")


def draft(payload: dict[str, Any], *, index: int = 0, mask: manifest.Mask = unmasked) -> manifest.Draft:
    notification = alertmanager.parse(json.dumps(payload).encode())
    return manifest.draft_from_alert(
        notification.readable[index],
        manifest.notification_data(notification, mask=mask),
        sent_by="alertmanager",
        alert_type="pod-crash",
        namespace="tarsy",
        author="api-client",
        mask=mask,
    )


def build(payload: dict[str, Any], *, index: int = 0) -> dict[str, Any]:
    return draft(payload, index=index).manifest


def posted(alert_data: Any, *, key: str | None = None, mask: manifest.Mask = unmasked, **fields: Any) -> manifest.Draft:
    alert = plain.Alert.model_validate({"alert_type": "pod-crash", "data": alert_data, **fields})
    return manifest.draft_from_posted(alert, namespace="tarsy", author="api-client", idempotency_key=key, mask=mask)


def test_an_alert_becomes_the_object_that_asks_for_its_investigation(payload: dict[str, Any]) -> None:
    first = payload["alerts"][0]
    first["annotations"]["runbook_url"] = "https://runbooks/crash"
    made = build(payload)
    alert_data = made["spec"].pop("alertData")
    assert made == {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AlertInvestigation",
        "metadata": {
            "name": "kubepodcrashlooping-6eb8c03418906421-mwqv3726",
            "namespace": "tarsy",
            "labels": {
                "tarsy.dev/severity": "critical",
                "tarsy.dev/alertname": "KubePodCrashLooping",
                "tarsy.dev/namespace": "shop",
                "tarsy.dev/workload": "web-0",
            },
        },
        "spec": {
            "alertType": "pod-crash",
            "fingerprint": "6eb8c03418906421",
            "startsAt": "2026-11-21T20:29:42.654068Z",
            "severity": first["labels"]["severity"],
            "author": "api-client",
            "runbookURL": "https://runbooks/crash",
            "labels": first["labels"],
            "source": {
                "type": "alertmanager",
                "receiver": "hook",
                "groupKey": payload["groupKey"],
                "generatorURL": first["generatorURL"],
                "externalURL": "http://alertmanager:9093",
            },
        },
    }
    assert json.loads(alert_data) == {
        **first,
        "receiver": "hook",
        "groupLabels": payload["groupLabels"],
        "externalURL": "http://alertmanager:9093",
    }


def test_posted_alert_becomes_an_investigation_object() -> None:
    made = posted("pod web-0 restarts", severity="critical", runbook="https://runbooks/crash")
    assert made.large is None
    assert re.fullmatch("pod-crash-[0-9a-f]{20}", made.name)
    assert made.manifest == {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AlertInvestigation",
        "metadata": {
            "name": made.name,
            "namespace": "tarsy",
            "labels": {"tarsy.dev/severity": "critical", "tarsy.dev/alertname": "pod-crash"},
        },
        "spec": {
            "alertType": "pod-crash",
            "alertData": "pod web-0 restarts",
            "severity": "critical",
            "author": "api-client",
            "runbookURL": "https://runbooks/crash",
            "source": {"type": "api"},
        },
    }


def test_investigation_object_has_name_and_word_of_receipt_and_links_to_its_page(payload: dict[str, Any]) -> None:
    for made in (draft(payload), posted("pod web-0 restarts"), posted("x" * 20_000)):
        received = made.with_receipt(name="web-crash", word="w0rd", pages="https://tarsy.example")
        assert (received.name, received.manifest["spec"]["source"]["receipt"]) == ("web-crash", "w0rd")
        assert (received.large, received.episode) == (made.large, made.episode)
        assert "receipt" not in made.manifest["spec"]["source"]
        assert received.manifest["metadata"].pop("annotations") == {
            "tarsy.dev/page": "https://tarsy.example/inv/tarsy/web-crash",
            "link.argocd.argoproj.io/tarsy": "TARSy investigation|https://tarsy.example/inv/tarsy/web-crash",
        }
        assert "annotations" not in made.with_receipt(name="web-crash", word="w0rd", pages=None).manifest["metadata"]
        received.manifest["metadata"] |= {"name": made.name}
        del received.manifest["spec"]["source"]["receipt"]
        assert received == made


def test_the_same_key_gives_the_same_name_and_no_key_another_each_time() -> None:
    assert posted("a", key="k").name == posted("b", key="k").name != posted("a", key="other").name
    assert posted("a").name != posted("a").name
    assert LABEL.fullmatch(posted("a", key="\xfc" * 999).name)


def test_object_has_labels_of_its_alert_that_kubernetes_takes_and_masking_left(payload: dict[str, Any]) -> None:
    payload["alerts"][0]["labels"] |= {"severity": "very bad", "alertname": "Own", "pod": "s3cret-0", "deployment": ""}
    labels = draft(payload, mask=masked).manifest["metadata"]["labels"]
    assert labels == {"tarsy.dev/alertname": "Own", "tarsy.dev/namespace": "shop"}, "whatever type a chain takes it as"
    payload["alerts"][0]["labels"] = {"alertname": "Ünïcode"}
    assert "labels" not in build(payload)["metadata"]


@pytest.mark.parametrize("name", HOSTILE)
def test_object_of_alert_with_any_name_has_valid_dns_label_as_name(payload: dict[str, Any], name: str) -> None:
    payload["alerts"][0]["labels"]["alertname"] = name
    assert LABEL.fullmatch(build(payload)["metadata"]["name"])
    assert LABEL.fullmatch(posted("a", alert_type=name[:253] or "-").name)


def test_same_episode_makes_same_object_despite_other_changes(payload: dict[str, Any]) -> None:
    before = build(payload)["metadata"]
    payload["alerts"].reverse()
    payload["alerts"][1]["annotations"] = {"summary": "still"}
    payload["notification_reason"] = "repeat interval elapsed"
    assert build(payload, index=1)["metadata"] == before
    payload["alerts"][1]["startsAt"] = "2026-11-21T20:29:42.655Z"
    assert build(payload, index=1)["metadata"] != before, "another episode"


def test_labels_tell_alerts_without_a_fingerprint_apart_in_any_order(payload: dict[str, Any]) -> None:
    first, second = payload["alerts"]
    second["startsAt"] = first["startsAt"]
    del first["fingerprint"], second["fingerprint"]
    names = {build(payload, index=index)["metadata"]["name"] for index in (0, 1)}
    assert len(names) == 2
    first["labels"] = dict(reversed(first["labels"].items()))
    assert build(payload)["metadata"]["name"] in names


@pytest.mark.parametrize(
    ("unit", "size"), [("x", 1), ("é", 2), ("磁", 3), ("\U0001f4a5", 4), ('"', 2), ("\n", 2), ("\x01", 6)]
)
def test_alert_data_over_16_kib_of_json_is_stored_separately_and_referenced(unit: str, size: int) -> None:
    unit_count, rest = divmod(manifest.INLINE_MAX - len('""'), size)
    fits = unit * (unit_count - 1) + "x" * (rest + size)  # never blank
    small, large = posted(fits), posted(fits + "x")
    assert (small.large, small.manifest["spec"]["alertData"]) == (None, fits)
    assert large.large == fits + "x"
    assert "alertData" not in large.manifest["spec"]
    reference = large.manifest["spec"]["alertDataRef"]
    assert reference == {"name": large.large_name, "size": len(large.large.encode())}
    assert posted(fits + "x").large_name == large.large_name != posted(fits + "y").large_name


@pytest.mark.parametrize("unit", ["x", "\U0001f4a5"])
def test_a_mebibyte_is_taken_and_no_byte_more(unit: str) -> None:
    fits = unit * (manifest.DATA_MAX // len(unit.encode()))
    assert posted(fits).large == fits
    with pytest.raises(manifest.TooLargeError, match=r"^alert data exceeds maximum size of 1048576 bytes$"):
        posted(fits + "x")


def test_labels_are_cut_to_object_limits_and_stay_complete_in_alert_data(payload: dict[str, Any]) -> None:
    labels = {"l" * 300: "v" * 1500} | {f"l{number}": "\U0001f4a5" * 1025 for number in range(80)}
    payload["alerts"][0] |= {"labels": labels, "generatorURL": "http://" + "g" * 3000}
    payload |= {"receiver": "r" * 300, "groupKey": "k" * 5000, "externalURL": "http://" + "e" * 3000}
    made = draft(payload)
    spec = investigations.Spec.model_validate(made.manifest["spec"])
    assert spec.labels is not None
    assert len(spec.labels) == 64
    assert spec.labels["l" * 253] == "v" * 1024
    assert spec.labels["l0"] == "\U0001f4a5" * 1024
    assert made.large is not None
    assert json.loads(made.large)["labels"] == labels


def test_everything_that_may_hold_a_secret_is_masked(payload: dict[str, Any]) -> None:
    leak = "http://u:s3cret@x/?token=s3cret"
    payload["alerts"][0]["labels"] |= {"severity": "s3cret", "token": "s3cret"}
    payload["alerts"][0]["annotations"] = {"note": leak, "runbook_url": leak}
    payload["alerts"][0]["generatorURL"] = payload["externalURL"] = payload["groupKey"] = leak
    payload["groupLabels"] = {"token": "s3cret"}
    for made in (
        draft(payload, mask=masked),
        posted({"password": "s3cret"}, runbook=leak, severity="s3cret", mask=masked),
        posted("s3cret" * 10_000, mask=masked),
    ):
        assert "s3cret" not in json.dumps(made.manifest) + (made.large or "")
        assert "***" in json.dumps(made.manifest) + (made.large or "")


@pytest.mark.parametrize("value", ["hunter2-s3cret", 'a"b\\c s3cret', "token: "])
def test_label_value_recognized_as_secret_only_by_label_name_is_masked(payload: dict[str, Any], value: str) -> None:
    payload["alerts"][0]["labels"] |= {"password": value, "pod": "web-0"}
    labels = draft(payload, mask=masker.Masker(groups=["security"]).text).manifest["spec"]["labels"]
    assert labels["password"].startswith("[MASKED")
    assert "s3cret" not in labels["password"]
    assert labels["pod"] == "web-0"


def test_secret_in_the_name_of_an_alert_or_of_a_label_stays_out_of_the_object(payload: dict[str, Any]) -> None:
    token = "ghp_" + "s3cret" * 6
    first = payload["alerts"][0]
    first["labels"] |= {"alertname": token, token: "value"}
    payload["groupLabels"] = {token: "x", "alertname": token}

    def mask(text: str) -> str:
        return text.replace(token, "[MASKED:token]")

    for made in (draft(payload, mask=mask), posted("x", mask=mask, alert_type=token)):
        object_text = json.dumps(made.manifest | {"spec": {**made.manifest["spec"], "alertType": ""}}) + (
            made.large or ""
        )
        assert "s3cret" not in object_text
        assert made.name.startswith("masked-token-")
        assert LABEL.fullmatch(made.name)
    labels = draft(payload, mask=mask).manifest["spec"]["labels"]
    assert labels["[MASKED:token]"] == "[MASKED]"


def test_a_secret_at_the_cut_is_masked_before_it_is_cut(payload: dict[str, Any]) -> None:
    payload["alerts"][0]["labels"]["note"] = "x" * 1020 + "s3cret"
    assert draft(payload, mask=masked).manifest["spec"]["labels"]["note"] == "x" * 1020 + "***"


SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("carrier", ["annotations", "labels"])
@pytest.mark.parametrize("value", [SPAN, SPAN.upper(), f"{SPAN}\n", f"01{SPAN[2:]}-more", "x" * 3000, ""])
def test_trace_parent_of_alert_is_kept_if_valid(payload: dict[str, Any], carrier: str, value: str) -> None:
    payload["alerts"][0][carrier]["traceparent"] = value
    spec = build(payload)["spec"]
    assert spec.get("traceparent") == (SPAN if value == SPAN else None)
    investigations.Spec.model_validate(spec)


@pytest.mark.parametrize(
    ("alert_data", "expected"),
    [({"traceparent": SPAN}, SPAN), ({"traceparent": [SPAN]}, None), (SPAN, None), ([SPAN], None)],
)
def test_trace_parent_in_data_of_posted_alert_is_kept(alert_data: Any, expected: str | None) -> None:
    assert posted(alert_data).manifest["spec"].get("traceparent") == expected


@pytest.mark.parametrize("index", [0, 1])
def test_built_object_is_what_the_kind_takes(payload: dict[str, Any], index: int) -> None:
    payload["alerts"][1]["startsAt"] = "0001-01-01T00:00:00Z"  # Alertmanager's zero time
    for made in (build(payload, index=index), posted({"a": 1}).manifest, posted("x" * 20_000).manifest):
        read = investigations.AlertInvestigation.model_validate({"metadata": made["metadata"], "spec": made["spec"]})
        assert read.spec.model_dump(mode="json", by_alias=True, exclude_none=True) == made["spec"]


def test_text_that_alerts_share_is_masked_once_and_the_mask_sees_little_of_what_is_cut(payload: dict[str, Any]) -> None:
    payload["groupKey"] = "x" * 5115 + "s3cret" + "k" * 100_000  # the secret is halved where the mask's view ends
    seen: list[str] = []

    def mask(text: str) -> str:
        seen.append(text)
        return masked(text)

    notification = alertmanager.parse(json.dumps(payload).encode())
    shared = manifest.notification_data(notification, mask=mask)
    assert max(map(len, seen)) < 6000
    assert shared.group_key == "x" * 4096
    before = len(seen)
    for alert in notification.readable:
        manifest.draft_from_alert(
            alert, shared, sent_by="alertmanager", alert_type="A", namespace="tarsy", author="api-client", mask=mask
        )
    assert not any("xxx" in text or "groupLabels" in text for text in seen[before:])


def test_a_receiver_is_masked_and_cut(payload: dict[str, Any]) -> None:
    payload["receiver"] = "s3cret " + "x" * 2000
    receiver = draft(payload, mask=masked).manifest["spec"]["source"]["receiver"]
    assert receiver.startswith("*** xxx")
    assert len(receiver) <= 253

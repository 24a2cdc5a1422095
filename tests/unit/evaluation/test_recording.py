"""Recording of a cluster, which is a recorded world here, and of the past of one."""

from __future__ import annotations

import functools
import json
import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tarsy.config.model import platforms
from tarsy.evaluation import checks, drafts, past_results, recording, scenarios, worlds
from tarsy.masking import known_secrets
from tarsy.resources import files
from tarsy_dev import tools

SCENARIO = scenarios.load(tools.ROOT / "scenarios" / "two-passwords")
NOW = datetime(2031, 1, 1, tzinfo=UTC)
WORLD = worlds.load(SCENARIO.world, now=NOW)
MASKER = platforms.DataMasking(fingerprints=True).masker(known_secrets.KnownSecrets())


def mask(text: str) -> str:
    return MASKER.text(text, investigation="recording")


def read(path: str, accept: str) -> tuple[int, str]:
    """The API server of the world, which serves whole objects in tables as a real one does."""
    split = urllib.parse.urlsplit(path)
    query = dict(urllib.parse.parse_qsl(split.query))
    answer = WORLD.answer(split.path, query, accept=accept)
    body = answer.body
    if isinstance(body, dict) and body.get("kind") == "Table":
        objects = WORLD.answer(split.path, query, accept=recording.JSON).body["items"]
        rows = [row | {"object": whole_object} for row, whole_object in zip(body["rows"], objects, strict=True)]
        body = body | {"rows": rows}
    return answer.status, body if isinstance(body, str) else json.dumps(body)


@functools.cache
def recorded(*namespaces: str) -> worlds.World:
    return recording.record(read, now=NOW, namespaces=set(namespaces), mask=mask)


def row(world: worlds.World, resource: tuple[str, str, str], name: str) -> worlds.Row:
    return next(row for row in world.rows[resource] if row.metadata["name"] == name)


def test_a_recording_without_a_mask_is_the_world_that_was_read(tmp_path: Path) -> None:
    again = recording.record(read, now=NOW, namespaces=None, mask=None)
    worlds.write(tmp_path, again)
    loaded = worlds.load(tmp_path, now=NOW)
    assert loaded.rows == WORLD.rows
    assert {key: log.error or log.text for key, log in loaded.logs.items()} == {
        key: log.error or log.text for key, log in WORLD.logs.items()
    }
    assert [kind.file for kind in loaded.index.kinds] == [kind.file for kind in WORLD.index.kinds]


def test_no_secret_is_recorded_and_two_that_differ_still_differ(tmp_path: Path) -> None:
    world = recorded("parcels")
    worlds.write(tmp_path, world)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(checks.has_secret(written, secret) for secret in SCENARIO.document.secrets)
    secrets = [row(world, ("", "v1", "secrets"), name).object["data"] for name in ("postgres", "tracking-db")]
    assert len({each["password"] for each in secrets}) == 2
    assert len({each["user"] for each in secrets}) == 1
    served = json.dumps(secrets)
    assert mask(served) == served
    assert platforms.DataMasking().masker(known_secrets.KnownSecrets()).text(served) == served


@pytest.mark.parametrize("value", ["plain", "WnEz", "x [MASKED:secret]", " ", "[MASKED"])
def test_secret_data_is_recorded_as_marker_even_if_masker_masks_nothing(value: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"key": value}}
    masked = recording.masked(worlds.Row(cells=["a"], object=secret), lambda text: text)
    assert masked.object["data"]["key"].startswith("[MASKED:")


@pytest.mark.parametrize("withheld", ["", "[withheld]", "{}", "[]", '{"apiVersion": "v1"}'])
def test_an_object_that_cannot_be_masked_keeps_its_name_alone(withheld: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}}}
    masked = recording.masked(worlds.Row(cells=["a", "secret"], object=pod), lambda _: withheld)
    assert (masked.is_only_listed, masked.cells, masked.metadata) == (True, ["a"], {"name": "a", "namespace": "b"})


def test_read_that_was_not_recorded_is_a_miss() -> None:
    world = recorded("parcels")
    assert "website" in world.index.left_out
    answer = world.answer("/api/v1/namespaces/website/pods", {}, accept=recording.JSON)
    assert answer.is_miss
    assert not world.answer("/api/v1/namespaces/other/pods", {}, accept=recording.JSON).is_miss
    assert {row.metadata["namespace"] for row in world.rows["", "v1", "pods"]} == {"parcels"}
    assert {key[0] for key in world.logs} == {"parcels"}


def test_a_kind_that_may_not_be_listed_is_a_miss_and_tarsy_is_invisible() -> None:
    def refusing(path: str, accept: str) -> tuple[int, str]:
        status, body = read(path, accept)
        if path.startswith("/api/v1/namespaces/parcels/secrets"):
            return 403, json.dumps({"message": "forbidden"})
        if path == "/apis":
            discovery = json.loads(body)
            version = discovery["items"][-1]["versions"][0]
            own = {"metadata": {"name": "tarsy.dev"}, "versions": [version]}
            return status, json.dumps(discovery | {"items": [*discovery["items"], own]})
        return status, body

    world = recording.record(refusing, now=NOW, namespaces={"parcels"}, mask=mask)
    assert world.answer("/api/v1/namespaces/parcels/secrets", {}, accept=recording.JSON).is_miss
    assert not any("tarsy" in kind.group for kind in world.index.kinds)


def test_long_lists_are_read_page_by_page() -> None:
    def paged(path: str, accept: str) -> tuple[int, str]:
        split = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(split.query))
        at = int(query.pop("continue", "0"))
        query.pop("limit", None)
        status, body = read(f"{split.path}?{urllib.parse.urlencode(query)}", accept)
        table = json.loads(body) if body.startswith("{") else {}
        if table.get("kind") != "Table":
            return status, body
        following = {"continue": str(at + 1)} if at + 1 < len(table["rows"]) else {}
        return status, json.dumps(table | {"rows": table["rows"][at : at + 1], "metadata": following})

    assert recording.record(paged, now=NOW, namespaces={"parcels"}, mask=mask).rows == recorded("parcels").rows


# -- of the past

ENDED = NOW - timedelta(hours=3)
POD = next(
    each["metadata"]["name"]
    for each in WORLD.objects()
    if each["kind"] == "Pod" and each["metadata"]["name"].startswith("tracking")
)


def call(tool: str, result: str, **arguments: Any) -> past_results.PastCall:
    return past_results.PastCall(tool=tool, arguments=arguments, result=result, references=("[tool 0.1]",))


def applied(*calls: past_results.PastCall, ended_at: datetime = NOW) -> worlds.World:
    return past_results.applied(recorded("parcels"), calls, ended_at=ended_at, mask=mask)


def test_an_object_is_as_the_investigation_saw_it() -> None:
    seen = yaml.safe_load(
        yaml.safe_dump(dict(row(recorded("parcels"), ("apps", "v1", "deployments"), "tracking").object))
    )
    seen["spec"]["replicas"] = 7
    for result in (yaml.safe_dump(seen), f"{yaml.safe_dump(seen)}\n{json.dumps(seen)}"):
        world = applied(call("resources_get", result, namespace="parcels", name="tracking"))
        then = row(world, ("apps", "v1", "deployments"), "tracking")
        assert then.object["spec"]["replicas"] == 7
        assert then.cells == row(recorded("parcels"), ("apps", "v1", "deployments"), "tracking").cells


def test_recorded_world_omits_objects_created_since_and_restores_removed_objects() -> None:
    metadata = {"name": "gone-0", "namespace": "parcels"}
    gone = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "app"}]}}
    table = (
        "NAMESPACE   APIVERSION   KIND   NAME      READY   STATUS             RESTARTS       AGE   LABELS\n"
        "parcels     v1           Pod    listed    0/1     CrashLoopBackOff   8 (61s ago)    22m   app=listed,tier=x\n"
        "\n"
    )
    world = applied(
        call("pods_log", "boom\n", namespace="parcels", name="gone-0", previous=True),
        call("pods_get", yaml.safe_dump(gone), namespace="parcels", name="gone-0"),
        call("pods_list_in_namespace", table, namespace="parcels"),
        call("pods_log", "only this\n", namespace="parcels", name="listed"),
        call("pods_log", "before the end\n", name="listed", previous=True),
        ended_at=ENDED,
    )
    pods = {row.metadata["name"]: row for row in world.rows["", "v1", "pods"]}
    assert POD not in pods
    assert not any(key[1] == POD for key in world.logs)
    assert world.logs["parcels", "gone-0", "app", True].text == "boom\n"
    columns = [column["name"] for kind in world.index.kinds if kind.file == "pods.v1.json" for column in kind.columns]
    cells = dict(zip(columns, pods["listed"].cells, strict=True))
    assert (cells["Restarts"], cells["IP"]) == ("8 (61s ago)", "<unknown>")
    listed = world.answer("/api/v1/pods", {"labelSelector": "app=listed"}, accept=recording.TABLE).body["rows"]
    assert len(listed) == 1
    path = "/api/v1/namespaces/parcels/pods/listed"
    assert world.answer(path, {}, accept=recording.JSON).is_miss
    assert world.answer(f"{path}/log", {}, accept="*/*").body == "only this\n"
    assert world.answer(f"{path}/log", {"previous": "true"}, accept="*/*").body == "before the end\n"
    assert world.answer(f"{path}/log", {"container": "other"}, accept="*/*").is_miss


def test_a_log_goes_as_far_as_it_went_then_and_begins_where_the_clusters_begins() -> None:
    now = recorded("parcels")
    key = next(key for key in now.logs if key[1] == POD and not key[3])
    first, second = now.logs[key].text.splitlines()
    world = applied(call("pods_log", first[-20:], namespace="parcels", name=POD, tail=1))
    assert world.logs[key].text == f"{first}\n"
    assert applied(call("pods_log", second, namespace="parcels", name=POD)).logs[key].text == f"{first}\n{second}\n"
    other = applied(call("pods_log", "another life", namespace="parcels", name=POD))
    assert other.logs[key].text == "another life\n"


def test_events_that_expired_come_back_once() -> None:
    listed = (
        "# The following events (YAML format) were found:\n- InvolvedObject:\n    Kind: Pod\n    Name: gone-0\n"
        "    apiVersion: v1\n  Message: 'Failed: token=ghp_abcdefghijklmnopqrstuvwxyz0123456789'\n"
        "  Namespace: parcels\n"
        "  Reason: Failed\n  Timestamp: 2030-12-31 20:00:00 +0000 UTC\n  Type: Warning\n"
    )
    world = applied(call("events_list", listed, namespace="parcels"), call("events_list", listed))
    (event,) = [row for row in world.rows["", "v1", "events"] if row.object["reason"] == "Failed"]
    assert event.object["lastTimestamp"] == "2030-12-31T20:00:00Z"
    assert "ghp_" not in json.dumps([event.cells, event.object])


@given(
    tool=st.sampled_from(scenarios.TOOLS),
    result=st.text() | st.sampled_from(["- {}", "[1]", "- InvolvedObject: {}", "NAME\n", "NAME KIND\n x", "a: b\n\n{"]),
    arguments=st.dictionaries(st.sampled_from(["name", "namespace", "container"]), st.text(max_size=5) | st.none()),
)
def test_any_result_leaves_a_world(tool: str, result: str, arguments: dict[str, Any]) -> None:
    past = past_results.PastCall(tool=tool, arguments=arguments, result=result, references=())
    world = past_results.applied(WORLD, [past], ended_at=NOW, mask=str)
    assert world.answer("/api/v1/pods", {}, accept=recording.TABLE).status == 200


@pytest.mark.parametrize("field", ["namespace", "name", "container"])
@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "", "A", "x" * 254, ".."])
def test_a_name_that_a_model_made_up_is_no_name_of_a_file(field: str, name: str) -> None:
    arguments = {"namespace": "parcels", "name": "gone-0", "container": "app"} | {field: name or "-"}
    world = applied(call("pods_log", "text", **arguments))
    assert world.logs == recorded("parcels").logs
    assert len(world.rows["", "v1", "pods"]) == len(recorded("parcels").rows["", "v1", "pods"])


# -- the begun scenario

ALERT = {"labels": {"alertname": "KubePodCrashLooping", "namespace": "parcels"}, "annotations": {}, "firing_for": "5m"}
ANALYSIS = (
    "## Root cause\nThe Secret tracking-db has a wrong password.\n\n## Evidence\nThe log says "
    '"password authentication failed" [tool 0.1].\n'
)


def begun(tmp_path: Path, calls: Sequence[past_results.PastCall] = (), *, right: str = "") -> scenarios.Scenario:
    content = drafts.content(
        WORLD, title="t", alert=ALERT, calls=calls, analysis=ANALYSIS if calls else "", right=right
    )
    (tmp_path / scenarios.FILE).write_text(files.to_yaml(content))
    return scenarios.load(tmp_path)


LOG = call("pods_log", "FATAL: password authentication failed for user", namespace="parcels", name=POD, previous=True)


def test_answer_confirmed_by_users_becomes_cause_and_its_quotes_become_evidence(tmp_path: Path) -> None:
    right_answer = "the Secret tracking-db has a wrong password"
    document = begun(tmp_path, [LOG, call("events_list", "nothing")], right=right_answer).document
    cause = document.cause
    assert (cause.cause_class, cause.kind, cause.namespace, cause.name) == (
        "credentials-wrong", "Secret", "parcels", "tracking-db",
    )  # fmt: skip
    (evidence,) = document.evidence
    assert (evidence.tool, evidence.matches) == ("pods_log", "password authentication failed")
    assert begun(tmp_path, [LOG], right="nothing is wrong").document.cause.cause_class == "nothing"


@pytest.mark.parametrize("calls", [[LOG], []])
def test_answers_that_people_did_not_give_have_to_be_filled_in(
    tmp_path: Path, calls: list[past_results.PastCall]
) -> None:
    with pytest.raises(files.FileError) as caught:
        begun(tmp_path, calls)
    problems = [str(problem) for problem in caught.value.problems]
    assert all(f"{scenarios.FILE}:" in problem and "FILL IN" in problem for problem in problems)
    assert any("cause.class: FILL IN: one of image-missing" in problem for problem in problems)
    assert any("The investigation claimed credentials-wrong" in problem for problem in problems) is bool(calls)


def test_the_alert_is_that_of_the_investigation() -> None:
    sent = {
        "labels": {"alertname": "A", "pod": "x"},
        "annotations": {"summary": "s"},
        "startsAt": "2030-12-31T20:00:00Z",
    }
    alert = drafts.alert_of(json.dumps(sent), alert_type="T", labels={}, starts_at=None, ended_at=ENDED)
    assert alert == {"labels": {"alertname": "A", "pod": "x"}, "annotations": {"summary": "s"}, "firing_for": "60m"}
    for text in ("pod web-0 restarts", "[]", "{}", '"labels"'):
        alert = drafts.alert_of(text, alert_type="T", labels={"namespace": "n"}, starts_at=NOW, ended_at=NOW)
        assert alert["labels"] == {"alertname": "T", "namespace": "n"}
        assert alert["annotations"] == {"description": text}
        scenarios.Alert.model_validate(alert)
    for days in (0, 1, 4, 400):
        started = NOW - timedelta(days=days)
        alert = drafts.alert_of("x", alert_type="T", labels={}, starts_at=started, ended_at=NOW)
        scenarios.Alert.model_validate(alert)

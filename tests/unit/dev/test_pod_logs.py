from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tarsy_dev import pod_logs

STARTED = dt.datetime(2026, 11, 21, 20, 26, 18, tzinfo=dt.UTC)
RUNNING = {"running": {"startedAt": "2026-11-21T20:26:18Z"}}
CRASHED = {"terminated": {"startedAt": "2026-11-21T20:26:10Z", "finishedAt": "2026-11-21T20:26:11Z"}}
BACKOFF = {"waiting": {"reason": "CrashLoopBackOff"}}
TEXT = "one\ntwo\nthree\n"


def pod(state: dict[str, Any], last: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    status = {"name": "web", "state": state, "lastState": last or {}}
    return {
        "metadata": {
            "name": "web-0",
            "annotations": {f"dev.tarsy.dev/{key}": text for key, text in annotations.items()},
        },
        "status": {"containerStatuses": [status]},
    }


def test_a_running_container_logs_its_own_life() -> None:
    assert pod_logs.life(pod(RUNNING, CRASHED), "web", previous=False) == (STARTED, True)


@pytest.mark.parametrize(("state", "previous"), [(BACKOFF, False), (BACKOFF, True), (RUNNING, True)])
def test_a_crashed_container_logs_its_last_life(state: dict[str, Any], previous: bool) -> None:
    assert pod_logs.life(pod(state, CRASHED), "web", previous=previous) == (STARTED - dt.timedelta(seconds=8), False)


@pytest.mark.parametrize(
    ("state", "container", "previous", "message"),
    [
        (RUNNING, "web", True, 'previous terminated container "web" in pod "web-0" not found'),
        ({"waiting": {"reason": "ImagePullBackOff"}}, "web", False, "waiting to start: trying and failing to pull"),
        ({"waiting": {"reason": "ContainerCreating"}}, "web", False, "waiting to start: ContainerCreating"),
        (RUNNING, "other", False, 'container "other" in pod "web-0" is not available'),
    ],
)
def test_a_life_that_was_not_lived_has_no_log(
    state: dict[str, Any], container: str, previous: bool, message: str
) -> None:
    with pytest.raises(pod_logs.LogError, match=message):
        pod_logs.life(pod(state), container, previous=previous)


def test_annotations_say_what_is_logged() -> None:
    assert pod_logs.log_text(pod(RUNNING, log="mine\n")) == "mine\n"
    assert "fatal: DATABASE_URL is not set" in pod_logs.log_text(pod(BACKOFF, CRASHED, crash="true"))
    assert "listening" in pod_logs.log_text(pod(RUNNING))


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, b"one\ntwo\nthree\n"),
        ({"tailLines": "1"}, b"three\n"),
        ({"tailLines": "0"}, b""),
        ({"tailLines": "9"}, b"one\ntwo\nthree\n"),
        ({"limitBytes": "5"}, b"one\nt"),
        ({"sinceSeconds": "60"}, b""),
        ({"sinceTime": "2026-11-21T20:26:18.0015Z"}, b"three\n"),
        ({"timestamps": "true", "tailLines": "1"}, b"2026-11-21T20:26:18.002000Z three\n"),
    ],
)
def test_the_options_of_kubectl_logs_cut_the_text(options: dict[str, str], lines: bytes) -> None:
    now = dt.datetime.now(dt.UTC)
    started = now - dt.timedelta(hours=1) if "sinceSeconds" in options else STARTED
    assert pod_logs.excerpt(TEXT, started, options) == lines

"""The details of component states: the JSON that is stored, and that of other versions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tarsy.telemetry import details

STORED: list[tuple[details.Kind, details.Detail, str]] = [
    (
        "process",
        details.Process(roles=("api", "worker"), version="1", build="b", slots=3),
        '{"roles": ["api", "worker"], "version": "1", "build": "b", "slots": 3}',
    ),
    (
        "configuration",
        details.Configuration(
            written={"queue": {"slots": 5}}, problems=(details.Remark(message="m", since="2026-11-21T12:00:00.0Z"),)
        ),
        '{"written": {"queue": {"slots": 5}}, "problems": [{"message": "m", "since": "2026-11-21T12:00:00.0Z"}]}',
    ),
    (
        "server",
        details.Server(problem="p", tools=2, stopped=(details.StoppedTool(tool="get", pinned="a", offered="b"),)),
        (
            '{"problem": "p", "missing": "", "tools": 2, '
            '"stopped": [{"tool": "get", "pinned": "a", "offered": "b", "written": ""}]}'
        ),
    ),
    (
        "tools",
        details.Tools(tools=(details.OfferedTool(name="get", description="Gets.", read_only=True, hash="h"),)),
        '{"tools": [{"name": "get", "description": "Gets.", "read_only": true, "hash": "h"}]}',
    ),
    (
        "provider",
        details.Provider(
            type="openai",
            model="m",
            price={"input": 1.0, "output": 2.0},
            limits={"requests_per_minute": 5},
            named=True,
            failure=details.Failure(kind="fatal", code="401"),
        ),
        (
            '{"type": "openai", "model": "m", "base_url": null, "price": {"input": 1.0, "output": 2.0}, '
            '"limits": {"requests_per_minute": 5}, "named": true, "problem": "", '
            '"failure": {"kind": "fatal", "code": "401"}}'
        ),
    ),
    (
        "passed",
        details.Passed(agents=(details.UnrunnableAgent(stage=0, index=1, reason="R", problem="p"),)),
        '{"agents": [{"stage": 0, "index": 1, "reason": "R", "problem": "p", "only_to_start": false}]}',
    ),
    ("watch", details.Watch(), "{}"),
]


@pytest.mark.parametrize(("kind", "detail", "stored"), STORED, ids=[kind for kind, *_ in STORED])
def test_each_kind_is_stored_as_it_always_was(kind: details.Kind, detail: details.Detail, stored: str) -> None:
    assert json.dumps(details.encode(detail)) == stored
    assert details.decode(kind, json.loads(stored)) == detail


@pytest.mark.parametrize(("kind", "detail", "stored"), STORED, ids=[kind for kind, *_ in STORED])
def test_what_a_later_version_adds_is_left_out(kind: details.Kind, detail: details.Detail, stored: str) -> None:
    assert details.decode(kind, json.loads(stored) | {"new": 1}) == detail


def test_what_an_earlier_version_does_not_report_has_a_default() -> None:
    assert details.decode("server", {"problem": "", "missing": "", "tools": 3}) == details.Server(tools=3)
    detail = details.decode("configuration", {"written": {}})
    assert detail == replace(detail, problems=())

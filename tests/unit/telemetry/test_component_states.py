"""The details of component states: the JSON that is stored, and that of other versions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tarsy.telemetry import component_states

STORED: list[tuple[component_states.Kind, component_states.Detail, str]] = [
    (
        "process",
        component_states.Process(roles=("api", "worker"), version="1", build="b", slots=3),
        '{"roles": ["api", "worker"], "version": "1", "build": "b", "slots": 3}',
    ),
    (
        "configuration",
        component_states.Configuration(
            written={"queue": {"slots": 5}},
            problems=(component_states.Remark(message="m", since="2026-11-21T12:00:00.0Z"),),
        ),
        '{"written": {"queue": {"slots": 5}}, "problems": [{"message": "m", "since": "2026-11-21T12:00:00.0Z"}]}',
    ),
    (
        "server",
        component_states.Server(
            problem="p", tools=2, stopped=(component_states.StoppedTool(tool="get", pinned="a", offered="b"),)
        ),
        (
            '{"problem": "p", "missing": "", "tools": 2, '
            '"stopped": [{"tool": "get", "pinned": "a", "offered": "b", "written": ""}]}'
        ),
    ),
    (
        "tools",
        component_states.Tools(
            tools=(component_states.OfferedTool(name="get", description="Gets.", read_only=True, hash="h"),)
        ),
        '{"tools": [{"name": "get", "description": "Gets.", "read_only": true, "hash": "h"}]}',
    ),
    (
        "provider",
        component_states.Provider(
            type="openai",
            model="m",
            price={"input": 1.0, "output": 2.0},
            limits={"requests_per_minute": 5},
            named=True,
            failure=component_states.Failure(kind="fatal", code="401"),
        ),
        (
            '{"type": "openai", "model": "m", "base_url": null, "price": {"input": 1.0, "output": 2.0}, '
            '"limits": {"requests_per_minute": 5}, "named": true, "problem": "", '
            '"failure": {"kind": "fatal", "code": "401"}}'
        ),
    ),
    (
        "passed",
        component_states.Passed(agents=(component_states.UnrunnableAgent(stage=0, index=1, reason="R", problem="p"),)),
        '{"agents": [{"stage": 0, "index": 1, "reason": "R", "problem": "p", "only_to_start": false}]}',
    ),
    ("watch", component_states.Watch(), "{}"),
    ("owners", component_states.Owners(), "{}"),
]


@pytest.mark.parametrize(("kind", "detail", "stored"), STORED, ids=[kind for kind, *_ in STORED])
def test_each_kind_is_stored_as_it_always_was_and_read_without_fields_of_later_versions(
    kind: component_states.Kind, detail: component_states.Detail, stored: str
) -> None:
    assert json.dumps(component_states.encode(detail)) == stored
    for added in ({}, {"new": 1}):
        assert component_states.decode(kind, json.loads(stored) | added) == detail


def test_field_that_an_earlier_version_does_not_report_has_a_default() -> None:
    assert component_states.decode("server", {"problem": "", "missing": "", "tools": 3}) == component_states.Server(
        tools=3
    )
    detail = component_states.decode("configuration", {"written": {}})
    assert detail == replace(detail, problems=())

"""The parts of the system page: each is read on its own, and drift is shown once for all processes."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from tarsy import errors
from tarsy.serve import problems
from tarsy.views import mcp_servers
from tarsy.views import system as views
from tarsy.web import system

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PINNED, OFFERED = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


async def reading(content: Any = None, error: Exception | None = None) -> Any:
    if error:
        raise error
    return content


def place(host: str) -> dict[str, Any]:
    stopped = {"tool": "pods_get", "pinned": PINNED, "offered": OFFERED}
    state = {"process": uuid.uuid4(), "host": host, "state": "connected", "since": NOON}
    return {**state, "problem": "", "missing": "", "stopped": [stopped]}


async def test_failed_part_of_system_page_shows_reason_and_other_parts_are_shown() -> None:
    refused = problems.Problem(HTTPStatus.FORBIDDEN, "User eve may not list agentchains")

    assert (await system.read_part(reading("chains"))).content == "chains"
    assert (await system.read_part(reading(error=refused))).problem == "User eve may not list agentchains"
    assert (await system.read_part(reading(error=errors.TemporaryError("no database")))).problem == "no database"


def test_tool_change_seen_by_several_processes_is_shown_as_one_change() -> None:
    tool = {"name": "pods_get", "description": "Gets <b>pods</b>.", "read_only": True, "hash": OFFERED}
    server = mcp_servers.Server.model_validate(
        {"name": "k8s", "state": "connected", "since": NOON, "processes": [place("b"), place("a")], "tools": [tool]}
    )

    (change,) = system.changes(server)

    assert (change.tool, change.pinned_hash, change.offered_hash) == ("pods_get", PINNED, OFFERED)
    assert (change.hosts, change.description) == (["a", "b"], "Gets <b>pods</b>.")


def test_a_configuration_is_yaml_of_bounded_length() -> None:
    def text(written: dict[str, Any]) -> str:
        return system.configuration_text(views.Configuration(digest="d", processes=[], written=written))

    assert text({}) == ""
    assert text({"queue": {"slots": 5}, "key": "[MASKED]"}) == "queue:\n  slots: 5\nkey: '[MASKED]'\n"
    assert len(text({"text": "x" * 1_000_000})) < system.CONFIGURATION_MAX + 100

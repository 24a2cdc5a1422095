"""The commands against an operator: running, finished, failed, cancelled and deleted investigations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_worlds import (
    World,
)


@pytest.mark.timeout(600)
async def test_every_kind_of_end_is_read(ended_world: World) -> None:
    run = ended_world.run
    deleted = await ended_world.uid("deleted")
    await ended_world.operator.kubectl("delete", "inv", "deleted")

    listed = await run.run("list", "--no-headers")
    assert (listed.code, len(listed.out.splitlines())) == (0, 4), listed.err
    assert "\x1b" not in listed.out
    for arguments, names in (
        (("--phase", "Failed"), ["failed"]),
        (("--alert", "other"), []),
        (("--sort-by", "name", "--limit", "2"), ["completed", "deleted"]),
        (("--limit", "0"), ["running", "deleted", "failed", "completed"]),
        (("-l", "tarsy.dev/severity=none"), []),
        (("--field-selector", "status.phase=Failed"), ["failed"]),
    ):
        listing = await run.run("list", *arguments, "-o", "json")
        items = json.loads(listing.out)["items"]
        assert sorted(row.get("name") or row["metadata"]["name"] for row in items) == sorted(names), arguments

    for name, phase in (("completed", "Completed"), ("failed", "Failed"), ("running", "Running")):
        got = await run.run("get", name)
        assert (got.code, f"Phase:      {phase}" in got.out) == (0, True), got
        assert not set("\x1b\x9b\u202e") & set(got.out)
        path = await run.run("get", f"inv/{name}", "-o", "jsonpath={.status.phase}")
        assert path.out == phase
    for which in (("deleted",), ("--uid", deleted)):
        gone = await run.run("get", *which)
        assert (gone.code, "Completed" in gone.out, gone.err) == (0, True, "Its object is gone, or cannot be read.\n")
        assert json.loads((await run.run("get", *which, "-o", "json")).out)["phase"] == "Completed"
        assert (await run.run("wait", *which)).code == 0
        exported = await run.run("export", *which)
        assert (exported.code, "root" in exported.out) == (0, True), exported.err

    wrong = await run.run("get", "complete")
    assert wrong.code == 2
    assert (
        f"There is no investigation complete in namespace {ended_world.operator.namespace}. The nearest: completed"
        in wrong.err
    )
    latest = await run.run("get", "@latest", "-o", "name")
    assert latest.out.startswith("alertinvestigation.tarsy.dev/")

    events = await run.run("events", "completed")
    assert "final_analysis" in events.out
    assert "\x1b" not in events.out
    lines = (await run.run("events", "completed", "-o", "jsonl")).out.splitlines()
    assert all(json.loads(line)["id"] for line in lines)


@pytest.mark.timeout(600)
async def test_outages_and_strangers_have_their_exit_codes(
    ended_world: World, unreachable: str, tmp_path: Path
) -> None:
    run, away = ended_world.run, ended_world.run.other(TARSY_API="http://127.0.0.1:1")
    listed = await away.run("list")
    assert (listed.code, len(listed.out.splitlines())) == (0, 5), listed
    assert "Without the API, this is one page of the cluster's objects, by name: " in listed.err
    assert (await away.run("list", "--chain", "kubernetes")).code == 5
    got = await away.run("get", "completed")
    assert (got.code, "Phase:      Completed" in got.out) == (0, True), got
    assert (await away.run("events", "completed")).code == 5
    assert (await away.run("wait", "failed")).code == 1

    far = run.other(KUBECONFIG=unreachable)
    assert (await far.run("list", "-n", ended_world.operator.namespace)).code == 0
    everywhere = await far.run("list", "-A")
    assert (everywhere.code, everywhere.out.split()[0]) == (0, "NAMESPACE"), everywhere
    assert (await far.run("get", "completed", "-n", ended_world.operator.namespace)).code == 0
    assert (await far.run("cancel", "completed", "-n", ended_world.operator.namespace)).code == 2
    both = away.other(KUBECONFIG=unreachable)
    for command in (
        ("list",),
        ("get", "completed"),
        ("wait", "completed"),
        ("watch", "completed"),
        ("cancel", "completed"),
    ):
        assert (await both.run(*command)).code == 5, command

    for command in (("list",), ("get", "completed"), ("cancel", "running"), ("watch", "running")):
        refused = await run.run(*command, "--as", "jane")
        assert refused.code == 7, refused
        assert 'User "jane" cannot' in refused.err
        assert 'resource "alertinvestigations"' in refused.err
    needs = await run.run("events", "completed", "--as", "jane", "--as-group", "system:masters")
    assert (needs.code, "--as" in needs.err) == (7, True)
